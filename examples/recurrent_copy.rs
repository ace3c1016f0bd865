//! The recurrent transformer on the copy task, by a curriculum (Table 4).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("recurrent", "recurrent_copy")
}
