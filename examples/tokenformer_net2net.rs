//! Growth of a TokenFormer against Net2Net widening of a transformer, on new data (Wang et al.,
//! Figures 6 and 7).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("tokenformer", "tokenformer_net2net")
}
