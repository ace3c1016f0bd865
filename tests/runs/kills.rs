//! Runs are killed or stopped at any point, in any way, and resumed. They have the same metrics, samples, weights and
//! moments as an uninterrupted run, bit for bit.
//!
//! Dropout and gradient accumulation are on. The backend is the first that is compiled in.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use burn::backend::Flex;
use residual_zoo::core::params;
use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::hostile::Numbers;
use residual_zoo_testing::program::{Scratch, end, ends, ok, run, signal, stopped_by, text};
use residual_zoo_testing::runs::{
    self, MODELS, STEPS, assert_same, config, config_of_muon, config_on, killed, outcome, resume,
    start, train, with_fault,
};

/// The number of kills of each kind.
#[derive(Clone, Copy)]
struct Kills {
    /// Kills at changes on disk, most of them while a checkpoint is written. After each kill, the run is resumed to its
    /// end.
    on_disk: usize,
    /// Kills at any moment, one after the other in the same run.
    at_any_time: usize,
}

const MANY: Kills = Kills {
    on_disk: 20,
    at_any_time: 10,
};

/// Fewer kills, for slow runs.
const FEW: Kills = Kills {
    on_disk: 4,
    at_any_time: 3,
};

fn killed_runs_end_alike(model: usize) {
    let (name, model) = MODELS[model];
    let scratch = Scratch::new();
    killed_runs_of(&scratch, name, config(&scratch, model), MANY);
}

#[test]
fn killed_runs_with_muon_and_an_average_end_alike() {
    let (name, model) = MODELS[0];
    let scratch = Scratch::new();
    let file = config_of_muon(&scratch, model);
    killed_runs_of(&scratch, name, file, MANY);
    let newest = checkpoint::newest(&scratch.path("straight")).unwrap().path;
    assert!(newest.join(checkpoint::EMA).is_file());
}

fn killed_runs_of(scratch: &Scratch, name: &str, file: PathBuf, kills: Kills) {
    let straight = scratch.path("straight");
    let clock = Instant::now();
    ok(&mut train(&file, &straight));
    let duration = clock.elapsed();
    let expected = outcome(&straight);
    assert_eq!(expected.rows.last().unwrap().step, STEPS);
    let changes = runs::count_changes(train(&file, &scratch.path("counted")));
    let mut numbers = Numbers(name.len() as u64);

    for i in 0..kills.on_disk {
        let (at, directory) = (
            1 + numbers.below(changes),
            scratch.path(&format!("disk-{i}")),
        );
        let output = run(&mut with_fault(train(&file, &directory), at, "kill"));
        let what = format!("{name} killed at change {at}: {}", text(&output.stderr));
        assert!(killed(&output), "{what}");
        ok(&mut train(&file, &directory));
        assert_same(&directory, &expected, &what);
    }

    let directory = scratch.path("timed");
    // The shortest delay comes first, because a run that has ended cannot be killed.
    let delay = |_| duration.mul_f64(numbers.below(600) as f64 / 1000.0);
    let mut delays: Vec<Duration> = (0..kills.at_any_time).map(delay).collect();
    delays.sort();
    let mut died = 0;
    for delay in &delays {
        let mut child = start(&mut train(&file, &directory));
        std::thread::sleep(*delay);
        child.kill().unwrap();
        died += usize::from(killed(&end(child)));
    }
    assert!(died > 0, "all runs had ended before their kill: {delays:?}");
    ok(&mut train(&file, &directory));
    assert_same(
        &directory,
        &expected,
        &format!("{name} killed after {delays:?}"),
    );
}

#[test]
fn killed_runs_of_gpt2_end_alike() {
    killed_runs_end_alike(0);
}

#[test]
fn killed_runs_of_rmt_end_alike() {
    killed_runs_end_alike(1);
}

#[test]
fn killed_runs_of_laurel_end_alike() {
    killed_runs_end_alike(2);
}

#[test]
fn killed_runs_of_tokenformer_end_alike() {
    killed_runs_end_alike(3);
}

#[test]
fn killed_runs_of_recurrent_end_alike() {
    killed_runs_end_alike(4);
}

#[test]
fn killed_runs_of_a_composition_end_alike() {
    killed_runs_end_alike(5);
}

/// A recurrent model for sequences of up to 96 tokens.
const RECURRENT: &str = "Composed(recurrence: (block: 8), \
     layers: [Gpt2(n_layer: 1, n_head: 2, width: 16, context: 96, dropout: 0.1)])";

#[test]
fn killed_runs_with_a_curriculum_end_alike() {
    let scratch = Scratch::new();
    let source = "Copying(tokens: 4, noise: 8, most_noise: 60, selective: true)";
    // Every validation loss is below this bound, so that all levels are reached.
    let file = config_on(
        &scratch,
        RECURRENT,
        source,
        "curriculum_below: 100, schedule: Kausik",
    );
    killed_runs_of(&scratch, "curriculum", file, MANY);
    let rows = run_dir::read_metrics(&scratch.path("straight")).unwrap();
    let levels: Vec<_> = rows.iter().map(|row| (row.step, row.level)).collect();
    for (step, level) in [(4, 0), (6, 1), (8, 1), (9, 2), (14, 3), (24, 3)] {
        assert!(levels.contains(&(step, Some(level))), "{levels:?}");
    }
    // Sequences have 16 tokens, then 24, 40 and 68. A step has two times two sequences.
    let tokens = 4 * (4 * 16 + 4 * 24 + 4 * 40 + 12 * 68);
    assert_eq!(rows.last().unwrap().tokens, tokens);
}

#[test]
fn killed_runs_on_images_end_alike() {
    let scratch = Scratch::new();
    let record = |label: u8| -> Vec<u8> {
        let pixels = (0..3072u32).map(|i| (i * (u32::from(label) + 1) % 251) as u8);
        std::iter::once(label).chain(pixels).collect()
    };
    let images = |count: u8| (0..count).flat_map(|i| record(i % 10)).collect::<Vec<u8>>();
    scratch.file("data_batch_1.bin", images(20));
    scratch.file("test_batch.bin", images(5));
    let source = format!("Cifar10({:?})", scratch.path(""));
    // The blocks are short, because a sequence has 1024 pixels.
    let model = RECURRENT
        .replace("block: 8", "block: 64")
        .replace("n_head: 2, width: 16", "n_head: 1, width: 8")
        .replace("96", "1024");
    let file = config_on(&scratch, &model, &source, "spike_z: None");
    killed_runs_of(&scratch, "images", file, FEW);
    let rows = run_dir::read_metrics(&scratch.path("straight")).unwrap();
    assert!(rows.iter().any(|row| row.valid_accuracy.is_some()));
    assert!(
        (rows[0].valid_loss.unwrap() - 10f64.ln()).abs() < 0.5,
        "ten classes"
    );
}

#[test]
fn killed_runs_on_augmented_patches_end_alike() {
    let scratch = Scratch::new();
    let source = "Images(set: Shapes(images: 40, size: 8), crop: 2, flip: true)";
    let model = "Composed(patches: (size: 4), \
                 layers: [Gpt2(n_layer: 2, n_head: 2, width: 16, dropout: 0.1)])";
    let file = config_on(&scratch, model, source, "spike_z: None");
    killed_runs_of(&scratch, "patches", file, FEW);
    let rows = run_dir::read_metrics(&scratch.path("straight")).unwrap();
    assert!(rows.iter().any(|row| row.valid_accuracy.is_some()));
    assert!(
        (rows[0].valid_loss.unwrap() - 4f64.ln()).abs() < 0.5,
        "four classes"
    );
}

/// Each step draws its number of loops, and each micro-batch draws its states.
#[test]
fn killed_runs_with_drawn_loops_end_alike() {
    let scratch = Scratch::new();
    let model = "Composed(loops: (prelude: 1, coda: 1, times: Drawn(mean: 3), backward: 2, inject: Linear, \
                 start: Random(0.5), norm: true), \
                 layers: [Llama(n_layer: 3, n_head: 2, width: 16, context: 16, norm_places: Sandwich)])";
    let file = config_on(&scratch, model, "Synthetic(tokens: 3000)", "spike_z: None");
    killed_runs_of(&scratch, "loops", file, FEW);
}

/// Each micro-batch moves the running statistics of batch norms.
#[test]
fn killed_runs_with_batch_norm_end_alike() {
    let scratch = Scratch::new();
    let source = "Images(set: Shapes(images: 40, size: 8), crop: 2, flip: true)";
    let model = "Composed(connection: PerSublayer(Laurel(augmentation: LowRank(rank: 2))), layers: [ResNet(\
                 block: Basic, widths: [4, 6], depths: [2, 1], stem: Cifar, shortcut: Projection)])";
    let file = config_on(&scratch, model, source, "spike_z: None");
    killed_runs_of(&scratch, "resnet", file, FEW);
    let trained = residual_zoo::Run::open(scratch.path("straight")).unwrap();
    let model = trained.model::<Flex>(&Default::default()).unwrap();
    let mean = params::export::<Flex, _>(&model).remove("embeddings.stem.norm.running_mean");
    assert!(mean.unwrap().iter::<f32>().all(|x| x != 0.0));
}

/// Sends `signal` once the run has shown `step` or a later step, and waits for the run's end. Returns whether the run
/// was stopped. On a busy machine, the signal may come after the last step.
fn interrupt(command: &mut Command, signal: &str, step: usize) -> bool {
    let mut child = start(command);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reached = |line: String| {
        let shown = line.strip_prefix("step")?.split('/').next()?.trim().parse();
        shown.ok().filter(|shown: &usize| *shown >= step)
    };
    if !lines.any(|line| reached(line.unwrap()).is_some()) {
        assert!(ends(&mut child).success());
        return false;
    }
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let is_stopped = rest.iter().any(|line| line.contains("stopped after"));
    let code = if is_stopped {
        stopped_by(signal)
    } else {
        Some(0)
    };
    assert_eq!(ends(&mut child).code(), code);
    sent.unwrap().success() && is_stopped
}

#[test]
fn runs_stopped_by_ctrl_c_and_sigterm_end_alike() {
    for (i, (name, model)) in MODELS.into_iter().enumerate() {
        let scratch = Scratch::new();
        let file = config(&scratch, model);
        ok(&mut train(&file, &scratch.path("straight")));
        let expected = outcome(&scratch.path("straight"));
        let directory = scratch.path("stopped");
        // Stops the same run twice, at steps with different work, such as a log or a checkpoint.
        let stopped = (0..20).any(|_| {
            fs::remove_dir_all(&directory).ok();
            interrupt(&mut train(&file, &directory), "-INT", 2 + 2 * (i % 3))
                && interrupt(&mut resume(&directory), "-TERM", 10 + 2 * (i % 3))
        });
        assert!(stopped, "{name}");
        ok(&mut resume(&directory));
        assert_same(&directory, &expected, name);
    }
}

/// Makes a command draw a long sample after every `every` steps and after the last step. Sampling generates about
/// 12,000 tokens per second.
fn with_samples(mut command: Command, every: usize, tokens: usize) -> Command {
    command.args(["--set", &format!("train.sample_every={every}")]);
    command.args(["--set", &format!("train.sample_tokens={tokens}")]);
    command
}

/// Starts a run in `directory` and stops it during the sample after step `step`. Returns the output.
fn stop_in_the_sample(directory: &Path, command: impl Fn() -> Command, step: usize) -> String {
    let stop = || {
        fs::remove_dir_all(directory).ok();
        let mut child = start(&mut command());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let before = format!("step {}/", step - 2);
        assert!(lines.any(|line| line.unwrap().contains(&before)));
        // Two steps take milliseconds, unless the machine is busy.
        std::thread::sleep(Duration::from_millis(100));
        signal(&child, "-INT");
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        let is_stopped = rest.iter().any(|line| line.contains("stopped after"));
        let code = if is_stopped {
            stopped_by("-INT")
        } else {
            Some(0)
        };
        assert_eq!(ends(&mut child).code(), code);
        rest.join("\n")
    };
    let in_the_sample = |shown: &String| {
        shown.contains("stopped after") && checkpoint::directory(directory, step).exists()
    };
    (0..20).map(|_| stop()).find(in_the_sample).unwrap()
}

#[test]
fn a_run_stopped_in_a_sample_ends_alike() {
    let scratch = Scratch::new();
    let (name, model) = MODELS[0];
    let file = config(&scratch, model);
    // The last sample follows the last step.
    for (every, step, validated) in [(20, 20, 16), (100, STEPS, 20)] {
        let of = |directory: &Path| with_samples(train(&file, directory), every, 12_000);
        let straight = scratch.path(&format!("straight-{every}"));
        ok(&mut of(&straight));
        let expected = outcome(&straight);
        let directory = scratch.path(&format!("stopped-{every}"));
        let rest = stop_in_the_sample(&directory, || of(&directory), step);
        assert!(rest.contains(&format!("at step {validated}")), "{rest}");
        assert!(!rest.contains(&format!("step {step}/")), "{rest}");
        let samples = fs::read(directory.join("samples.txt")).unwrap_or_default();
        assert!(samples.is_empty());
        let newest = checkpoint::newest(&directory).unwrap().path;
        assert_eq!(newest, checkpoint::directory(&directory, step));
        let output = ok(&mut resume(&directory));
        assert!(output.contains("resuming from"), "{output}");
        assert_same(&directory, &expected, name);
        // The run has now ended, and stays as it is.
        let output = ok(&mut resume(&directory));
        assert!(output.contains("already trained"), "{output}");
        assert_same(&directory, &expected, name);
    }
}

#[test]
fn the_checkpoint_of_a_stop_in_the_last_sample_is_replaced_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[0].1);
    // Only the last step has a checkpoint, so no earlier checkpoint exists from which to continue.
    let of = |directory: &Path| {
        let mut command = with_samples(train(&file, directory), 100, 4000);
        command.args(["--set", "train.checkpoint_every=100"]);
        command
    };
    ok(&mut of(&scratch.path("straight")));
    let expected = outcome(&scratch.path("straight"));
    let stopped = scratch.path("stopped");
    stop_in_the_sample(&stopped, || of(&stopped), STEPS);
    let copy = |name: &str| {
        let to = scratch.path(name);
        let copied = Command::new("cp").arg("-r").args([&stopped, &to]).status();
        assert!(copied.unwrap().success());
        to
    };
    let changes = runs::count_changes(resume(&copy("counted")));
    assert!(changes > 10, "{changes}");
    for at in 1..=changes {
        for kind in ["fail", "kill"] {
            let directory = copy(&format!("{kind}-{at}"));
            let output = run(&mut with_fault(resume(&directory), at, kind));
            let what = format!("{kind} {at}: {}", text(&output.stderr));
            assert!(checkpoint::newest(&directory).is_ok(), "{what}");
            let again = ok(&mut resume(&directory));
            assert!(!again.contains("starting over"), "{what}");
            assert_same(&directory, &expected, &what);
            fs::remove_dir_all(&directory).unwrap();
        }
    }
}
