//! A TokenFormer grown from small to large against one trained from scratch (Wang et al., Tables 6
//! and 7, Figures 3 and 4).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("tokenformer", "tokenformer_growth")
}
