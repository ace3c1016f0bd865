use burn::backend::{Autodiff, Flex};
use residual_zoo_data::{Corpus, DataConfig, Source, SyntheticConfig};

use super::*;
use crate::dashboard::Display;
use crate::{Error, Interrupter, RunOptions, Summary};

struct NoMeter;

impl Meter for NoMeter {
    fn start(&self) {}

    fn peak(&self) -> Option<u64> {
        None
    }
}

/// A suite of three runs of two steps, the third from the weights of the first.
fn small() -> (Vec<Planned<PlainModel<Gpt2Config>>>, Corpus) {
    let text = r#"(
      title: "Three runs",
      about: "",
      train: (steps: 2, batch: 2, validate_batches: 1, validate_every: 1),
      runs: [
        (name: "first", model: (n_layer: 1, n_head: 1, width: 8, context: 8)),
        (name: "second", model: (n_layer: 1, n_head: 1, width: 4, context: 8)),
        (name: "third", model: (n_layer: 1, n_head: 1, width: 8, context: 8), after: (run: "first")),
      ],
      columns: ["valid_loss"],
    )"#;
    let suite: Gpt2Suite = Suite::parse(text, Path::new("suite.ron")).unwrap();
    let data = DataConfig {
        source: Source::Synthetic(SyntheticConfig {
            tokens: 1_000,
            seed: 2,
        }),
        ..DataConfig::default()
    };
    let mut planned = suite.plan(&[]).unwrap();
    for run in &mut planned {
        run.config.as_mut().unwrap().data = data.clone();
    }
    (planned, Corpus::open(&data).unwrap())
}

fn train(
    config: RunConfig<PlainModel<Gpt2Config>>,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<Summary, Error> {
    crate::run::<Autodiff<Flex>, _>(config, corpus, options, Default::default())
}

fn run_small(
    pool: &Path,
    train: impl FnMut(RunConfig<PlainModel<Gpt2Config>>, &Corpus, &RunOptions) -> Result<Summary, Error>,
) -> Outcome {
    let _turn = crate::tests::my_turn();
    let (planned, corpus) = small();
    let options = SuiteOptions {
        pool: pool.into(),
        display: Display::Quiet,
        peak_tflops: None,
        backend: "flex".into(),
        stop: Interrupter::new(),
    };
    let corpora = vec![&corpus; planned.len()];
    super::super::run_suite(&planned, &[1], &corpora, &options, &NoMeter, train)
}

fn names(outcome: &Outcome) -> Vec<&str> {
    let runs = outcome.observations.iter();
    runs.map(|found| found.run.as_str()).collect()
}

#[test]
fn a_run_that_panics_leaves_the_others_and_says_why() {
    let pool = tempfile::tempdir().unwrap();
    let outcome = run_small(pool.path(), |config, corpus, options| {
        assert_ne!(config.model.0.width, 4, "out of memory");
        train(config, corpus, options)
    });
    assert_eq!(names(&outcome), ["first", "third"]);
    let [missing] = &outcome.missing[..] else {
        panic!("{:?}", outcome.missing);
    };
    assert!(
        missing.starts_with("second, seed 1: panicked: "),
        "{missing}"
    );
    assert!(missing.contains("out of memory"), "{missing}");

    // The next time it is trained alone.
    let mut trained = Vec::new();
    let outcome = run_small(pool.path(), |config, corpus, options| {
        let known = options.directory.join("measured.json").exists();
        trained.extend((!known).then_some(config.model.0.width));
        train(config, corpus, options)
    });
    assert_eq!(names(&outcome), ["first", "second", "third"]);
    assert_eq!(trained, [4]);
}

#[test]
fn a_run_that_fails_takes_those_that_begin_with_its_weights_along() {
    let pool = tempfile::tempdir().unwrap();
    let mut calls = 0;
    let outcome = run_small(pool.path(), |config, corpus, options| {
        calls += 1;
        assert_ne!(calls, 1, "no memory");
        train(config, corpus, options)
    });
    assert_eq!(names(&outcome), ["second"]);
    assert_eq!(outcome.missing.len(), 2);
    assert_eq!(outcome.missing[1], "third, seed 1: first is missing");
}

#[test]
fn a_pool_can_be_moved() {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (
        directory.path().join("here"),
        directory.path().join("there"),
    );
    let before = run_small(&here, train);
    assert_eq!(before.missing, [""; 0]);
    std::fs::rename(&here, &there).unwrap();
    let after = run_small(&there, train);
    assert_eq!(after.missing, [""; 0]);
    assert_eq!(after.observations, before.observations);
}

#[test]
fn a_pool_forgets_with_a_run_what_began_with_it_and_a_run_alone_is_deleted_alone() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("pool");
    let (planned, corpus) = small();
    let runs = |pool: &Path| Pool::new(pool, "flex").runs(&planned, &[1], &[&corpus; 3]);
    let there = |pool| {
        runs(pool)
            .iter()
            .map(|run| run.is_dir())
            .collect::<Vec<_>>()
    };
    run_small(&pool, train);
    crate::run_dir::delete(&[runs(&pool).remove(0)].into()).unwrap();
    assert_eq!(there(&pool), [false, true, true]);
    run_small(&pool, train);
    let moved = directory.path().join("moved");
    std::fs::rename(&pool, &moved).unwrap();
    // A fourth run, which began with the third as that did with the first.
    let all = runs(&moved);
    let name = |run: &Path| run.file_name().unwrap().to_str().unwrap().to_owned();
    let history = std::fs::read_to_string(all[2].join("history.jsonl")).unwrap();
    assert!(history.contains(&name(&all[0])));
    let fourth = moved.join("fourth");
    std::fs::create_dir(&fourth).unwrap();
    let history = history.replace(&name(&all[0]), &name(&all[2]));
    std::fs::write(fourth.join("history.jsonl"), history).unwrap();
    Pool::new(&moved, "flex").forget(&all[..1]).unwrap();
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
    run_small(&here, train);
    // Another program's run in the place of the first.
    let other = run_small(&there, |mut config, corpus, options| {
        config.train.seed += 1;
        train(config, corpus, options)
    });
    assert_eq!(other.missing, [""; 0]);
    let first = |pool: &Path| {
        let (planned, corpus) = small();
        let corpora = vec![&corpus; planned.len()];
        Pool::new(pool, "flex").runs(&planned, &[1], &corpora)[0].clone()
    };
    let moved = directory.path().join("moved");
    std::fs::rename(&here, &moved).unwrap();
    std::fs::remove_dir_all(first(&moved).join("checkpoints")).unwrap();
    std::fs::rename(
        first(&there).join("checkpoints"),
        first(&moved).join("checkpoints"),
    )
    .unwrap();
    let outcome = run_small(&moved, train);
    let missing = outcome.missing.join("\n");
    assert!(
        missing.contains("third, seed 1: ") && missing.contains("began with"),
        "{missing}"
    );
}

#[test]
fn a_loss_that_is_not_finite_in_the_end_is_no_loss() {
    let pool = tempfile::tempdir().unwrap();
    let outcome = run_small(pool.path(), |mut config, corpus, options| {
        if config.model.0.width == 4 {
            // The last update ruins it.
            config.train.learning_rate = 1e30;
            config.train.min_learning_rate = 1e30;
            config.train.warmup = 0;
            config.train.steps = 1;
        }
        train(config, corpus, options)
    });
    let of = |run: &str| {
        let found = outcome.observations.iter().find(|found| found.run == run);
        found.unwrap_or_else(|| panic!("{:?}", outcome.missing))
    };
    assert!(of("first").quantities["valid_loss"].is_finite());
    let ruined = of("second");
    assert!(ruined.quantities["first_valid_loss"].is_finite());
    assert_eq!(ruined.quantities.get("valid_loss"), None);
    assert_eq!(ruined.quantities.get("perplexity"), None);
}
