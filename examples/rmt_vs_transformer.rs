//! RMT against a transformer on the same tokens: loss per token, FLOP and second (Mak & Flanigan,
//! Tables 3 and 4, Figures 3 and 4).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("rmt", "rmt_vs_transformer")
}
