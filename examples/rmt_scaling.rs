//! How the loss of RMT and transformer falls with compute and parameters (Mak & Flanigan, Figure 2,
//! Tables 8 and 9).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("rmt", "rmt_scaling")
}
