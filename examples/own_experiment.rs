//! An experiment of your own: models, seeds and a claim in RON, trained and judged like the papers' experiments.
//! `residual-zoo experiment FILE.ron` runs such a file without any code.
//!
//! ```sh
//! cargo run --release --example own_experiment
//! ```

use std::path::{Path, PathBuf};

use residual_zoo::ModelConfig;
use residual_zoo::backend::BackendKind;
use residual_zoo::lab::{Options, run_experiment};

const EXPERIMENT: &str = r#"(
  title: "Does a second layer help?",
  about: "GPT-2 with one and with two layers on the synthetic language, three seeds.",
  data: (source: Synthetic(tokens: 50_000)),
  train: (steps: 150, batch: 8, warmup: 10, learning_rate: 3e-3, validate_every: 50, validate_batches: 8),
  seeds: [1, 2, 3],
  runs: [
    (
      name: "GPT-2",
      model: Gpt2(n_layer: 1, n_head: 2, width: 32, context: 32),
      vary: (field: "model.n_layer", name: "layers", over: [1, 2]),
    ),
  ],
  columns: ["parameters", "valid_loss", "step_time"],
  charts: [(title: "Loss during training", x: "tokens", y: "valid_loss", curves: true)],
  claims: [
    (
      says: "Two layers have a lower loss than one.",
      source: "this example",
      test: Lower(quantity: "valid_loss", run: "GPT-2, layers 2", than: "GPT-2, layers 1"),
    ),
  ],
)"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1);
    let directory = directory.map_or("runs/own-experiment".into(), PathBuf::from);
    // Runs that are already in the pool are not trained again.
    let options = Options::new(&directory.join("pool"), BackendKind::first()?);
    let path = Path::new("own_experiment.ron"); // the name of the text in error messages
    let mut results = run_experiment::<ModelConfig>(EXPERIMENT, path, None, &options)?;

    println!("\n{}", results.table().to_text());
    for found in results.claims() {
        let (says, verdict) = (&found.claim.says, found.verdict.name());
        println!("{says} {verdict}: {}", found.because);
    }
    results.look(&directory, false)?;
    results.write(&directory)?;
    println!("report: {}", directory.join("report.html").display());
    Ok(())
}
