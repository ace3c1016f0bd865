//! Opens runs as another program does.

use std::fs;

use burn::backend::Flex;
use burn::tensor::{Int, Tensor};
use residual_zoo_models::Run;
use residual_zoo_models::core::LanguageModel;
use residual_zoo_models::runs::checkpoint;
use residual_zoo_models::runs::generate::Sampling;
use residual_zoo_testing::program::{Scratch, ends, example, ok, smoke, smoke_of, text, zoo};

fn greedy() -> Sampling {
    Sampling {
        temperature: 0.0,
        ..Sampling::default()
    }
}

#[test]
fn an_opened_run_generates_what_the_program_does() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    ok(&mut smoke(&directory));
    let run = Run::open(&directory).unwrap();
    let model = run.model::<Flex>(&Default::default()).unwrap();
    let generated = run.generate(&model, Some("the"), 12, greedy()).unwrap();
    let mut command = zoo("generate");
    command.arg(&directory);
    command.args(["--prompt", "the", "--tokens", "12", "--temperature", "0"]);
    assert_eq!(ok(&mut command), generated.clone() + "\n");
    let pieces = run.stream(&model, Some("the"), 12, greedy()).unwrap();
    let pieces: Result<Vec<String>, _> = pieces.collect();
    let pieces = pieces.unwrap();
    assert!(pieces.len() > 12, "{pieces:?}");
    assert_eq!(pieces.concat(), generated);
    let prompts = [Some("the"), Some("the the")];
    let together = run.generate_all(&model, &prompts, 12, greedy()).unwrap();
    let other = run.generate(&model, Some("the the"), 12, greedy()).unwrap();
    assert_eq!(together, [generated.clone(), other]);
    let shown = ok(command.args(["--prompt", "the the"]));
    assert_eq!(shown, together.join("\n---------------\n") + "\n");
    // The number of texts exceeds the number that is generated at once.
    let many = vec![Some("the"); 40];
    let many = run
        .generate_all(&model, &many, 3, Sampling::default())
        .unwrap();
    assert_eq!(many.len(), 40);
    assert!(many.iter().collect::<std::collections::BTreeSet<_>>().len() > 20);
    let shown = ok(command.args(["--samples", "3"]));
    assert_eq!(shown.matches("---------------").count(), 5, "{shown}");
    assert_eq!(run.rows().unwrap().last().unwrap().step, 4);
    // The example of the documentation also opens this run.
    let shown = ok(example("embed").arg(&directory));
    assert!(shown.contains("logits: [1, 3, 56]"), "{shown}");
}

#[test]
fn a_run_is_opened_while_it_trains() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let mut command = smoke_of(&directory, 100_000);
    command.args(["--set", "train.checkpoint_every=2"]);
    command.args(["--set", "train.keep_checkpoints=1"]);
    let mut training = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let checkpoints = directory.join("checkpoints");
    let saved = || {
        fs::read_dir(&checkpoints).is_ok_and(|mut entries| {
            entries.any(|entry| entry.unwrap().path().extension().is_none())
        })
    };
    while !saved() {
        assert!(training.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // Meanwhile, checkpoints appear and disappear.
    let opened = (0..20).map(|_| {
        let run = Run::open(&directory).unwrap();
        run.model::<Flex>(&Default::default()).map(drop)
    });
    let opened: Result<Vec<()>, _> = opened.collect();
    training.kill().unwrap();
    ends(&mut training);
    opened.unwrap();
}

#[test]
fn a_checkpoint_of_ones_choice_is_loaded() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    ok(smoke(&directory).args(["--set", "train.checkpoint_every=2"]));
    let run = Run::open(&directory).unwrap();
    let device = Default::default();
    let logits = |step| {
        let path = checkpoint::directory(run.directory(), step);
        let model = run.model_at::<Flex>(&path, &device).unwrap();
        let ids = Tensor::<Flex, 2, Int>::zeros([1, 1], &device);
        model.forward(ids).into_data()
    };
    assert_ne!(logits(2), logits(4));
    let newest = run.model::<Flex>(&device).unwrap();
    let ids = Tensor::<Flex, 2, Int>::zeros([1, 1], &device);
    assert_eq!(newest.forward(ids).into_data(), logits(4));
}

#[test]
fn what_is_no_run_or_cannot_be_built_is_an_error() {
    let scratch = Scratch::new();
    let error = Run::open(scratch.path("")).unwrap_err().to_string();
    assert!(error.contains("give a run directory"), "{error}");
    let directory = scratch.path("run");
    ok(&mut smoke(&directory));
    let config = directory.join("config.ron");
    let good = fs::read_to_string(&config).unwrap();
    for (from, to, says) in [
        (
            "n_layer: 2",
            "n_layer: 1000000000",
            "model.n_layer` is 1000000000; it must be at most 16777216",
        ),
        ("n_head: 2", "n_head: 0", "n_head"),
        ("width: 32", "width: 33", "n_head"),
    ] {
        assert!(good.contains(from), "{from} in {good}");
        fs::write(&config, good.replace(from, to)).unwrap();
        let error = Run::open(&directory).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_examples_for_burn_users_run() {
    let scratch = Scratch::new();
    let shown = ok(example("own_loop").arg("21"));
    assert!(shown.contains("step 20: loss"), "{shown}");
    assert!(shown.contains("the entropy rate is"), "{shown}");

    let directory = scratch.path("experiment");
    let output = example("own_experiment").arg(&directory).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("Two layers have a lower loss than one. "));
    assert!(directory.join("report.html").is_file());
}
