//! What takes the place of the softmax in Pattention, and the parameters of norms (Wang et al.,
//! Tables 4 and 5), on language.

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("tokenformer", "tokenformer_ablation")
}
