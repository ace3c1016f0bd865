//! The recurrent transformer on images as sequences of grey pixels (Tables 1 and 2).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("recurrent", "recurrent_image")
}
