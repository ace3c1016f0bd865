//! One recurrent layer against one and several ordinary ones, on Shakespeare (Table 6).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("recurrent", "recurrent_shakespeare")
}
