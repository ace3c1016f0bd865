//! Every variant of LAuReL against the baseline and a deeper one (Menghani et al., Table 5).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("laurel", "laurel_ablation")
}
