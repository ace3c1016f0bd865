//! Trains seven models of the zoo on the same data and budget, and compares them.

use std::process::ExitCode;

fn main() -> ExitCode {
    residual_zoo::experiment::compare_main()
}
