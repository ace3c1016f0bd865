use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Architecture, ConfigError, Cost, DecoderOf, ModelConfig, PlainModel, Shape, Transfer,
    Vocabulary,
};
use residual_zoo_data::{Corpus, DataConfig, Source, SyntheticConfig};
use residual_zoo_runs::{MinLearningRate, run_dir};
use serde::{Deserialize, Serialize};

use super::*;
use crate::Missing;
use crate::finished::Goal;
use crate::train_runs::train_runs;

/// A GPT-2 that cannot be built while a file exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Fragile {
    gpt2: Gpt2Config,
    #[serde(default)]
    breaks_while: Option<PathBuf>,
}

impl ModelConfig for Fragile {
    type Model<B: Backend> = DecoderOf<B, Gpt2Config>;

    fn name(&self) -> String {
        self.gpt2.name().into()
    }

    fn validate_fields(&self) -> Result<(), ConfigError> {
        self.gpt2.validate()
    }

    fn shape(&self) -> Shape {
        self.gpt2.shape()
    }

    fn assemble<B: Backend>(&self, vocabulary: Vocabulary, device: &B::Device) -> Self::Model<B> {
        let breaks = self.breaks_while.as_ref().is_some_and(|file| file.exists());
        assert!(!breaks, "out of memory");
        PlainModel(self.gpt2.clone()).assemble(vocabulary, device)
    }

    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        self.gpt2.cost(vocabulary)
    }
}

impl Transfer for Fragile {}

/// Makes three runs of two steps each. The third starts from the weights of the first.
fn small() -> (Vec<PlannedRun<Fragile>>, Corpus) {
    let text = r#"(
      title: "Three runs",
      about: "",
      train: (steps: 2, batch: 2, validate_batches: 1, validate_every: 1),
      runs: [
        (name: "first", model: (gpt2: (n_layer: 1, n_head: 1, width: 8, context: 8))),
        (name: "second", model: (gpt2: (n_layer: 1, n_head: 1, width: 4, context: 8))),
        (name: "third", model: (gpt2: (n_layer: 1, n_head: 1, width: 8, context: 8)), after: (run: "first")),
      ],
      columns: ["valid_loss"],
    )"#;
    let experiment = Experiment::parse(text, Path::new("experiment.ron")).unwrap();
    let data = DataConfig {
        source: Source::Synthetic(SyntheticConfig {
            tokens: 1_000,
            seed: 2,
            ..SyntheticConfig::default()
        }),
        ..DataConfig::default()
    };
    let mut planned = experiment.plan(&[]).unwrap();
    for run in &mut planned {
        run.config.as_mut().unwrap().data = data.clone();
    }
    (planned, Corpus::open(&data).unwrap())
}

fn options(pool: &Path) -> Options {
    Options::new(pool, BackendKind::Flex)
}

/// Runs `planned` for one seed.
fn run(pool: &Path, planned: &[PlannedRun<Fragile>], corpus: &Corpus, seed: u64) -> Outcome {
    run_to(Goal::Whole(&[]), planned, corpus, seed, &options(pool))
}

/// Waits for the turn of a test. Burn has one random generator per process, so tests that seed it take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `planned` for one seed up to `goal`.
fn run_to(
    goal: Goal,
    planned: &[PlannedRun<Fragile>],
    corpus: &Corpus,
    seed: u64,
    options: &Options,
) -> Outcome {
    let _turn = turn();
    let corpora = vec![corpus; planned.len()];
    train_runs(planned, &[seed], &corpora, goal, options)
}

fn run_small(pool: &Path) -> Outcome {
    let (planned, corpus) = small();
    run(pool, &planned, &corpus, 1)
}

/// Returns the directories of the three runs.
fn directories(pool: &Path, seed: u64) -> Vec<PathBuf> {
    let (planned, corpus) = small();
    let pool = Pool::open(&options(pool));
    pool.runs(&planned, &[seed], &[&corpus; 3])
}

#[test]
fn runs_keep_their_names() {
    // A new field of a config would change the hashes, so that trained runs would not be found: see `LATER` of the
    // pool.
    let found = directories(Path::new(""), 1);
    let names = found.iter().map(|run| run.to_str().unwrap());
    let expected = [
        "GPT-2-c8a2a18152b7",
        "GPT-2-3a4a7c7b7949",
        "GPT-2-1671113b4e89",
    ];
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

/// Makes the three runs. Run `which` breaks while `file` exists.
fn fragile(which: usize, file: &Path) -> (Vec<PlannedRun<Fragile>>, Corpus) {
    let (mut planned, corpus) = small();
    std::fs::write(file, "").unwrap();
    let config = planned[which].config.as_mut().unwrap();
    config.model.breaks_while = Some(file.into());
    (planned, corpus)
}

fn missing(outcome: &Outcome) -> Vec<String> {
    outcome.missing.iter().map(Missing::to_string).collect()
}

fn names(outcome: &Outcome) -> Vec<&str> {
    let runs = outcome.observations.iter();
    runs.map(|found| found.run.as_str()).collect()
}

#[test]
fn a_run_that_panics_leaves_the_others_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let (pool, file) = (directory.path().join("pool"), directory.path().join("file"));
    let (planned, corpus) = fragile(1, &file);
    let outcome = run(&pool, &planned, &corpus, 1);
    assert_eq!(names(&outcome), ["first", "third"]);
    let missing = missing(&outcome);
    let [missing] = &missing[..] else {
        panic!("{missing:?}");
    };
    assert!(
        missing.starts_with("second, seed 1: panicked: "),
        "{missing}"
    );
    assert!(missing.contains("out of memory"), "{missing}");

    // The second time, only the broken run is trained.
    let metrics = |which: usize| {
        let run = &Pool::open(&options(&pool)).runs(&planned, &[1], &[&corpus; 3])[which];
        std::fs::read_to_string(run.join("metrics.jsonl")).ok()
    };
    let before = [metrics(0), metrics(1), metrics(2)];
    std::fs::remove_file(file).unwrap();
    let outcome = run(&pool, &planned, &corpus, 1);
    assert_eq!(names(&outcome), ["first", "second", "third"]);
    assert!(before[1].is_none() && metrics(1).is_some());
    assert!(before[0].is_some() && before[0] == metrics(0) && before[2] == metrics(2));
}

#[test]
fn a_run_that_fails_takes_those_that_begin_with_its_weights_along() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let (planned, corpus) = fragile(0, &file);
    let outcome = run(&directory.path().join("pool"), &planned, &corpus, 1);
    assert_eq!(names(&outcome), ["second"]);
    assert_eq!(outcome.missing.len(), 2);
    assert_eq!(missing(&outcome)[1], "third, seed 1: first is missing");
}

#[test]
fn a_pool_can_be_moved() {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (
        directory.path().join("here"),
        directory.path().join("there"),
    );
    let before = run_small(&here);
    assert_eq!(before.missing, []);
    std::fs::rename(&here, &there).unwrap();
    let mut after = run_small(&there);
    assert_eq!(after.missing, []);
    // Only the directories of the runs differ.
    for (after, before) in after.observations.iter_mut().zip(&before.observations) {
        let place = after.directory.as_ref().unwrap();
        assert!(place.starts_with(&there), "{place:?}");
        after.directory.clone_from(&before.directory);
    }
    assert_eq!(after.observations, before.observations);
}

#[test]
fn a_pool_forgets_with_a_run_what_began_with_it_and_a_run_alone_is_deleted_alone() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let runs = |pool: &Path| directories(pool, 1);
    let there = |pool| {
        runs(pool)
            .iter()
            .map(|run| run.is_dir())
            .collect::<Vec<_>>()
    };
    run_small(&pool);
    run_dir::delete(&[runs(&pool).remove(0)].into()).unwrap();
    assert_eq!(there(&pool), [false, true, true]);
    run_small(&pool);
    let moved = directory.path().join("moved");
    std::fs::rename(&pool, &moved).unwrap();
    // A fourth run, which starts from the third.
    let all = runs(&moved);
    let name = |run: &Path| run.file_name().unwrap().to_str().unwrap().to_owned();
    let history = std::fs::read_to_string(all[2].join("history.jsonl")).unwrap();
    assert!(history.contains(&name(&all[0])));
    let fourth = moved.join("fourth");
    std::fs::create_dir(&fourth).unwrap();
    let history = history.replace(&name(&all[0]), &name(&all[2]));
    std::fs::write(fourth.join("history.jsonl"), history).unwrap();
    Pool::open(&options(&moved)).forget(&all[..1]).unwrap();
    assert_eq!(there(&moved), [false, true, false]);
    assert!(!fourth.exists());
}

#[test]
fn weights_other_than_those_it_began_with_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (
        directory.path().join("here"),
        directory.path().join("there"),
    );
    run_small(&here);
    // Replaces the weights of the first run by weights of another seed.
    let (planned, corpus) = small();
    let other = run(&there, &planned, &corpus, 2);
    assert_eq!(other.missing, []);
    let first = |pool: &Path, seed: u64| directories(pool, seed).remove(0);
    let moved = directory.path().join("moved");
    std::fs::rename(&here, &moved).unwrap();
    std::fs::remove_dir_all(first(&moved, 1).join("checkpoints")).unwrap();
    // The checkpoint records the length of the metrics, so both must come from the same run.
    for part in ["checkpoints", "metrics.jsonl"] {
        std::fs::rename(first(&there, 2).join(part), first(&moved, 1).join(part)).unwrap();
    }
    let outcome = run_small(&moved);
    let missing = missing(&outcome).join("\n");
    assert!(
        missing.contains("third, seed 1: ") && missing.contains("began with"),
        "{missing}"
    );
}

#[test]
fn a_run_whose_last_loss_is_not_finite_has_diverged() {
    let pool = tempfile::tempdir().unwrap();
    let (mut planned, corpus) = small();
    // The last update makes the loss infinite or NaN.
    let train = &mut planned[1].config.as_mut().unwrap().train;
    train.learning_rate = 1e30;
    train.min_learning_rate = MinLearningRate::Rate(1e30);
    train.warmup = 0;
    train.steps = 1;
    for _ in 0..2 {
        let outcome = run(pool.path(), &planned, &corpus, 1);
        assert_eq!(names(&outcome), ["first", "third"]);
        let [ruined] = &outcome.missing[..] else {
            panic!("{:?}", outcome.missing)
        };
        assert!(ruined.diverged);
        let says = "diverged by step 1 (validation loss ";
        assert!(ruined.why.starts_with(says), "{}", ruined.why);
    }
}

#[test]
fn a_stop_loses_no_results_of_the_pool() {
    let pool = tempfile::tempdir().unwrap();
    let (mut planned, corpus) = small();
    for run in &mut planned {
        run.config.as_mut().unwrap().train.steps = 4;
    }
    let (half, whole) = (Goal::Point(0.5), Goal::Whole(&[]));
    let losses = |outcome: &Outcome| -> Vec<(String, Option<f64>)> {
        let loss = |found: &Observation| found.quantities.get("valid_loss").copied();
        let found = outcome.observations.iter();
        found
            .map(|found| (found.run.clone(), loss(found)))
            .collect()
    };
    let stopped = options(pool.path());
    stopped.stop.stop(None);
    // The second run is trained to the end, and the first two are observed at half their steps, as a rung of a sweep is.
    let second = &planned[1..2];
    let ended = losses(&run_to(whole, second, &corpus, 1, &options(pool.path())));
    let first = losses(&run_to(
        half,
        &planned[..2],
        &corpus,
        1,
        &options(pool.path()),
    ));
    assert_eq!(first.len(), 2);
    assert_ne!(first[1], ended[0]);

    // Another process would train the third run.
    let outcome = run_to(half, &planned, &corpus, 1, &stopped);
    assert!(outcome.stopped);
    assert_eq!(losses(&outcome), first);
    assert_eq!(missing(&outcome), ["third, seed 1: not trained yet"]);
    let outcome = run_to(whole, &planned[..2], &corpus, 1, &stopped);
    assert!(outcome.stopped);
    assert_eq!(losses(&outcome), ended);
}

#[test]
fn a_forced_command_that_is_stopped_in_the_sweep_keeps_no_earlier_run() {
    let _turn = turn();
    let pool = tempfile::tempdir().unwrap();
    let text = r#"(
      title: "Swept",
      data: (source: Synthetic(tokens: 1000)),
      train: (steps: 2, batch: 2, warmup: 0, validate_batches: 1),
      seeds: [1, 2],
      sweep: (over: [(field: "train.learning_rate", values: Grid([0.001, 0.002]))], seeds: [11], tuned: true),
      runs: [(name: "only", model: (gpt2: (n_layer: 1, n_head: 1, width: 8, context: 8)))],
      columns: ["valid_loss"],
    )"#;
    let run = |options: &Options| {
        let path = Path::new("experiment.ron");
        run_experiment::<Fragile>(text, path, None, options).unwrap()
    };
    let runs = || std::fs::read_dir(pool.path()).unwrap().count();
    assert_eq!(run(&options(pool.path())).observations().len(), 2);
    assert_eq!(runs(), 4);
    let mut forced = options(pool.path());
    (forced.force, forced.were_opened) = (true, true);
    forced.stop.stop(None);
    assert!(run(&forced).observations().is_empty());
    assert_eq!(runs(), 0);
}
