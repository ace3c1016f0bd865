//! The loss of the RMT against the size of its residual stream, all else being equal (Mak & Flanigan,
//! Figure 6).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

fn main() -> std::process::ExitCode {
    experiment!("rmt", "rmt_stream_size")
}
