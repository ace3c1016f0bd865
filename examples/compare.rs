//! Trains every architecture on the same data and budget and compares them.

use std::process::ExitCode;

fn main() -> ExitCode {
    residual_zoo::experiment::compare_main()
}
