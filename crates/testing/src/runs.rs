//! Small runs as processes, and what makes two of them equal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use residual_zoo::train::{Row, checkpoint, run_dir};

use crate::program::{Scratch, example, text};

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

/// Steps of a run.
pub const STEPS: usize = 24;

/// Writes the file of a run of `model` in which logs, validations, checkpoints and samples fall
/// on different steps.
pub fn config(scratch: &Scratch, model: &str) -> PathBuf {
    let sampling = "sample_every: 5, sample_tokens: 4";
    config_on(scratch, model, "Synthetic(tokens: 3000)", sampling)
}

/// The same on other data, with more settings.
pub fn config_on(scratch: &Scratch, model: &str, source: &str, settings: &str) -> PathBuf {
    let text = format!(
        "(model: {model}, data: (source: {source}), \
         train: (steps: {STEPS}, batch: 2, accumulate: 2, warmup: 4, learning_rate: 1e-2, \
         min_learning_rate: 1e-3, log_every: 2, validate_every: 4, validate_batches: 2, \
         checkpoint_every: 3, keep_checkpoints: 2, {settings}))"
    );
    scratch.file("run.ron", text)
}

/// `train` of that file.
pub fn train(config: &Path, run: &Path) -> Command {
    let mut command = example("train");
    command.arg(config).arg("--run").arg(run).arg("--no-tui");
    command
}

/// `train --resume`.
pub fn resume(run: &Path) -> Command {
    let mut command = example("train");
    command.arg("--resume").arg(run).arg("--no-tui");
    command
}

/// Starts a program whose output is read later.
pub fn start(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// With the `at`th change on disk failing (`fail`), it and all later ones (`sticky`), killing the
/// process (`kill`), or all told on standard error (`trace`).
pub fn with_fault(mut command: Command, at: usize, kind: &str) -> Command {
    command.env("ZOO_FAULT", format!("{at}:{kind}"));
    command
}

/// How often a command changes something on disk.
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

/// All that a finished run leaves, but for times and memory.
#[derive(PartialEq)]
pub struct Outcome {
    /// The metrics.
    pub rows: Vec<Row>,
    samples: String,
    model: Vec<u8>,
    optimizer: Vec<u8>,
}

/// What the finished run in `run` left.
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
        optimizer: fs::read(newest.path.join("optimizer.safetensors")).unwrap(),
    }
}

/// Both left the same, to the bit.
pub fn assert_same(found: &Path, expected: &Outcome, what: &str) {
    let found = outcome(found);
    assert_eq!(found.rows, expected.rows, "{what}");
    assert_eq!(found.samples, expected.samples, "{what}");
    assert!(found.model == expected.model, "{what}: other weights");
    assert!(
        found.optimizer == expected.optimizer,
        "{what}: other moments"
    );
}

/// How far two finished runs are apart: the largest relative difference of a number in the metrics,
/// and the largest absolute one of a weight.
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
    let apart = a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs()));
    (metrics, apart.fold(0.0, f64::max))
}
