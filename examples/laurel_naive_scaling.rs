//! LAuReL against one more layer (Menghani et al., Tables 6 and 7).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("laurel", "laurel_naive_scaling")
}
