//! Uses a trained model in a program of your own. This needs only the crate `residual-zoo-models`, not the
//! trainer or the dashboard (docs/embedding.md).
//!
//! ```sh
//! cargo run --release -- train gpt2/smoke
//! cargo run --release --example embed -- runs/gpt2-smoke
//! ```

use std::process::ExitCode;

use burn::backend::Flex;
use residual_zoo_models::Run;
use residual_zoo_models::core::{LanguageModel, token_ids};
use residual_zoo_models::runs::generate::Sampling;

fn main() -> ExitCode {
    let Some(directory) = std::env::args().nth(1) else {
        eprintln!("give the directory of a run, such as runs/gpt2-smoke");
        return ExitCode::from(2);
    };
    match embed(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn embed(directory: &str) -> Result<(), Box<dyn std::error::Error>> {
    let device = Default::default();

    // Generates text in three lines. `Run::open` works for a run in progress too.
    let run = Run::open(directory)?;
    let model = run.model::<Flex>(&device)?;
    println!("{}", run.generate(&model, None, 40, Sampling::default())?);

    // The model is an ordinary Burn module.
    let sizes = (run.vocabulary().ids(), run.config.time());
    let logits = model.forward(token_ids::<Flex>(&[[0, 1, 2]], sizes, &device)?); // [batch, time, vocab]
    println!("logits: {:?}", logits.dims());
    Ok(())
}
