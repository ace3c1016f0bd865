//! LAuReL-RW+LR against its rank (Menghani et al., Figure 3).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("laurel", "laurel_rank")
}
