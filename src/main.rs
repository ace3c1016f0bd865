//! The program `residual-zoo`.

use std::process::ExitCode;

use residual_zoo::backend::PeakAlloc;

mod program;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    program::main()
}
