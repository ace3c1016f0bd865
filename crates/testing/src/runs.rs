//! Trains small models in processes of their own, and compares the results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use burn::backend::Flex;
use burn::tensor::TensorData;
use burn::tensor::backend::Backend;
use residual_zoo_exchange::Imported;
use residual_zoo_models::core::{ModelConfig as _, params};
use residual_zoo_models::data::{DataConfig, Source, Tokenizer};
use residual_zoo_models::runs::{Row, checkpoint, manifest, run_dir};
use residual_zoo_models::{ModelConfig, RunConfig};

use crate::my_turn;
use crate::program::{Scratch, text, zoo};

/// A tiny model of each architecture and of a composition, with dropout.
pub const MODELS: [(&str, &str); 6] = [
    (
        "gpt2",
        "Gpt2(n_layer: 2, n_head: 2, width: 16, context: 16, dropout: 0.1)",
    ),
    (
        "rmt",
        "Rmt(n_layer: 2, d_k: 4, d_v: 4, rank: 2, context: 16, dropout: 0.1)",
    ),
    (
        "laurel",
        "Composed(connection: PerSublayer(Laurel( \
         weights: Softmax, augmentation: LowRankPerStream(k: 2, rank: 2))), \
         layers: [Gpt2(n_layer: 2, n_head: 2, width: 16, context: 16, dropout: 0.1)])",
    ),
    (
        "tokenformer",
        "TokenFormer(n_layer: 2, n_head: 2, width: 16, n_attn: 12, n_ffn: 24, context: 16, \
         dropout: 0.1)",
    ),
    (
        "recurrent",
        "Composed(recurrence: (block: 8), \
         layers: [Gpt2(n_layer: 2, n_head: 2, width: 16, context: 16, dropout: 0.1)])",
    ),
    (
        "recurrent LAuReL around RMT",
        "Composed(recurrence: (block: 4), \
         connection: PerSublayer(Laurel(augmentation: LowRank(rank: 2))), \
         layers: [Rmt(n_layer: 2, d_k: 4, d_v: 4, rank: 2, context: 16, dropout: 0.1)])",
    ),
];

/// An experiment with four short runs.
const FOUR_RUNS: &str = r#"(
  title: "Four runs", about: "", data: (source: Synthetic(tokens: 3000)),
  train: (steps: 40, batch: 2, warmup: 2, validate_every: 20, validate_batches: 2),
  runs: [(name: "width", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16),
          vary: (field: "model.width", name: "width", over: [8, 12, 16, 20]))],
  columns: ["valid_loss"],
)"#;

/// Returns a command that runs an experiment with four short runs, and writes its reports and runs to `out`.
pub fn four_runs(scratch: &Scratch) -> Command {
    let file = scratch.path("four.ron");
    // Another process may be reading the file.
    if !file.exists() {
        fs::write(&file, FOUR_RUNS).unwrap();
    }
    let mut command = zoo("experiment");
    command.arg(file).arg("--runs").arg(scratch.path("out"));
    command
}

/// The number of training steps in a run.
pub const STEPS: usize = 24;

/// Writes the config of a run of `model`. Logs, validations, checkpoints and samples happen at different steps.
pub fn config(scratch: &Scratch, model: &str) -> PathBuf {
    let sampling = "sample_every: 5, sample_tokens: 4";
    config_on(scratch, model, "Synthetic(tokens: 3000)", sampling)
}

/// Like [`config`], with Muon and an average of the weights. Muon's state has two parts.
pub fn config_of_muon(scratch: &Scratch, model: &str) -> PathBuf {
    let settings = "sample_every: 5, sample_tokens: 4, ema: (decay: 0.9), \
                    optimizer: Muon(learning_rate: 0.02, form: Nanochat(beta_2: 0.9))";
    config_on(scratch, model, "Synthetic(tokens: 3000)", settings)
}

/// Like [`config`], with other data and additional settings.
pub fn config_on(scratch: &Scratch, model: &str, source: &str, settings: &str) -> PathBuf {
    let text = format!(
        "(model: {model}, data: (source: {source}), \
         train: (steps: {STEPS}, batch: 2, accumulate: 2, warmup: 4, learning_rate: 1e-2, \
         log_every: 2, validate_every: 4, validate_batches: 2, \
         checkpoint_every: 3, keep_checkpoints: 2, {settings}))"
    );
    scratch.file("run.ron", text)
}

/// Returns a command that trains the config file `config` in the directory `run`.
pub fn train(config: &Path, run: &Path) -> Command {
    let mut command = zoo("train");
    command.arg(config).arg("--run").arg(run).arg("--no-tui");
    command
}

/// Returns a command that resumes a run.
pub fn resume(run: &Path) -> Command {
    let mut command = zoo("train");
    command.arg("--resume").arg(run).arg("--no-tui");
    command
}

/// Starts a program and pipes its output.
pub fn start(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Injects a fault at the `at`th change on disk: the change fails (`fail`), this and all later changes fail
/// (`sticky`), or the process is killed (`kill`). `trace` prints all changes to standard error.
pub fn with_fault(mut command: Command, at: usize, kind: &str) -> Command {
    command.env("ZOO_FAULT", format!("{at}:{kind}"));
    command
}

/// Counts the changes that a command makes on disk.
pub fn count_changes(command: Command) -> usize {
    let output = crate::program::run(&mut with_fault(command, 0, "trace"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr).matches("fault ").count()
}

/// Whether SIGKILL ended the process.
#[cfg(unix)]
pub fn killed(output: &Output) -> bool {
    use std::os::unix::process::ExitStatusExt;
    output.status.signal() == Some(9)
}

/// The results of a finished run, except times and memory.
#[derive(PartialEq)]
pub struct Outcome {
    /// The metrics.
    pub rows: Vec<Row>,
    samples: String,
    model: Vec<u8>,
    /// The average of the weights, if the run has one.
    average: Option<Vec<u8>>,
    /// The moments, by their names in the files.
    optimizer: BTreeMap<String, Vec<u8>>,
}

/// Reads the results of the finished run in `run`.
pub fn outcome(run: &Path) -> Outcome {
    let rows = run_dir::read_metrics(run).unwrap();
    let untimed = rows.into_iter().map(|row| Row {
        seconds: 0.0,
        tokens_per_second: None,
        memory: None,
        ..row
    });
    let newest = checkpoint::newest(run).unwrap();
    assert_eq!(newest.path, checkpoint::directory(run, STEPS));
    Outcome {
        rows: untimed.collect(),
        samples: fs::read_to_string(run.join("samples.txt")).unwrap_or_default(),
        model: fs::read(newest.path.join("model.safetensors")).unwrap(),
        average: fs::read(newest.path.join("ema.safetensors")).ok(),
        optimizer: moments(&newest.path),
    }
}

/// Checks that the run in `found` has exactly the expected results, bit for bit.
pub fn assert_same(found: &Path, expected: &Outcome, what: &str) {
    let found = outcome(found);
    assert_eq!(found.rows, expected.rows, "{what}");
    assert_eq!(found.samples, expected.samples, "{what}");
    assert!(found.model == expected.model, "{what}: other weights");
    assert!(found.average == expected.average, "{what}: another average");
    assert!(
        found.optimizer == expected.optimizer,
        "{what}: other moments"
    );
}

/// Reads the moments and the step counts of a checkpoint, by name.
fn moments(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for file in checkpoint::optimizer_files(checkpoint).unwrap() {
        let (tensors, metadata) = checkpoint::read_tensors(&file).unwrap();
        let steps: BTreeMap<String, u64> = serde_json::from_str(&metadata["steps"]).unwrap();
        let steps = steps.into_iter();
        all.extend(steps.map(|(name, steps)| (name, steps.to_le_bytes().to_vec())));
        let tensors = tensors.into_iter();
        all.extend(tensors.map(|(name, data)| (name, data.as_bytes().to_vec())));
    }
    all
}

/// Compares two finished runs. Returns the largest relative difference between their metrics, and the root mean square
/// of the differences between their weights.
///
/// The largest difference of a single weight is not informative. AdamW moves a weight by up to the learning rate even
/// if the weight's gradient is only rounding error. The rounding depends on the kernels that a GPU backend finds
/// fastest.
pub fn differences(found: &Path, expected: &Outcome) -> (f64, f64) {
    let found = outcome(found);
    let steps = |outcome: &Outcome| -> Vec<(usize, u64)> {
        outcome
            .rows
            .iter()
            .map(|row| (row.step, row.tokens))
            .collect()
    };
    assert_eq!(steps(&found), steps(expected));
    let numbers = |row: &Row| [row.train_loss, row.valid_loss, row.grad_norm, row.lr];
    let rows = found.rows.iter().zip(&expected.rows);
    let pairs = rows.flat_map(|(a, b)| numbers(a).into_iter().zip(numbers(b)));
    let relative = pairs.filter_map(|(a, b)| Some((a? / b? - 1.0).abs()));
    let metrics = relative.fold(0.0, f64::max);

    let weights = |file: &[u8]| -> Vec<f32> {
        let mut tensors = safetensors::SafeTensors::deserialize(file)
            .unwrap()
            .tensors();
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        let bytes: Vec<u8> = tensors
            .iter()
            .flat_map(|(_, t)| t.data().to_vec())
            .collect();
        let (numbers, _) = bytes.as_chunks();
        numbers.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let (a, b) = (weights(&found.model), weights(&expected.model));
    assert_eq!(a.len(), b.len());
    let squares = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2));
    (metrics, (squares.sum::<f64>() / a.len() as f64).sqrt())
}

/// Overwrites the newest weights of the run in `directory` with weights whose outputs are not finite. `parts` is the
/// number of files with the checkpoint's moments.
pub fn ruin(directory: &Path, parts: usize) {
    let newest = checkpoint::newest(directory).unwrap().path;
    let path = newest.join(checkpoint::MODEL);
    let mut bytes = fs::read(&path).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for number in bytes[head..].chunks_exact_mut(4) {
        number.copy_from_slice(&3e38_f32.to_le_bytes());
    }
    fs::write(&path, bytes).unwrap();
    manifest::write(&newest, &checkpoint::files(parts, false)).unwrap();
}

/// Writes an untrained run of `model`, in which no weight has a special value, such as zero.
pub fn untrained(model: &ModelConfig, tokenizer: &Tokenizer, directory: &Path) {
    let (_turn, device) = (my_turn(), Default::default());
    Flex::seed(&device, 1);
    let built = model.build::<Flex>(tokenizer.vocab_size(), &device);
    let mut weights = params::export::<Flex, _>(&built.unwrap());
    for (salt, (name, tensor)) in weights.iter_mut().enumerate() {
        let noise = |i: usize| ((i * 7919 + salt * 104_729) as f32).sin();
        let size = if name == "block.alpha" { 0.0 } else { 0.1 };
        let numbers = tensor.iter::<f32>().enumerate();
        let numbers: Vec<f32> = numbers.map(|(i, x)| x + size * noise(i)).collect();
        *tensor = TensorData::new(numbers, tensor.shape.clone());
    }
    let config = RunConfig {
        data: DataConfig {
            source: Source::Imported,
            ..DataConfig::default()
        },
        ..RunConfig::new(model.clone())
    };
    let imported = Imported {
        kind: "test",
        path: "test".into(),
        config,
        tokenizer: tokenizer.clone(),
        weights,
        notes: Vec::new(),
    };
    imported.write(directory).unwrap();
}
