//! Losses that are not finite, and loss spikes.

use std::process::Command;

use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::program::{Scratch, fails, ok, run, text};
use residual_zoo_testing::runs::{
    MODELS, STEPS, assert_same, config, killed, outcome, resume, train, with_fault,
};

#[test]
fn a_run_without_a_finite_loss_stops_and_names_the_parameters() {
    for (name, model) in MODELS {
        let scratch = Scratch::new();
        let (file, directory) = (config(&scratch, model), scratch.path("run"));
        let mut command = train(&file, &directory);
        // The first step makes the weights so large that the second step has no finite loss.
        for assignment in [
            "train.warmup=0",
            "train.learning_rate=1e30",
            "train.max_skipped=5",
        ] {
            command.args(["--set", assignment]);
        }
        fails(
            &mut command,
            1,
            &[
                "5 steps in a row",
                "or a smaller `train.grad_clip`",
                "gradient of",
                "step-0000",
                "train.learning_rate",
            ],
        );
        let newest = checkpoint::newest(&directory).unwrap().path;
        assert!(newest >= checkpoint::directory(&directory, 6), "{name}");
        // If the run is resumed unchanged, it soon stops again, and the earlier skipped steps still count. If the steps
        // so far have left weights that are not finite, the run does not continue at all.
        let error = text(&run(&mut resume(&directory)).stderr);
        let says = ["6 steps in a row", "has values that are not finite"];
        assert!(
            says.iter().any(|part| error.contains(part)),
            "{name}: {error}"
        );
    }
}

#[test]
fn skipped_steps_are_in_the_metrics_and_survive_a_stop() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[0].1);
    let wild = |run: &str| {
        let mut command = train(&file, &scratch.path(run));
        command.args([
            "--set",
            "train.warmup=0",
            "--set",
            "train.learning_rate=1e30",
        ]);
        command.args(["--set", "train.max_skipped=1000"]);
        command.args(["--set", "train.min_learning_rate=Rate(1e30)"]);
        command
    };
    // The run ends, and reports the state of its weights.
    let ruined = |mut command: Command| {
        let output = run(&mut command);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("the weights are ruined"), "{error}");
        (text(&output.stdout), error)
    };
    let (shown, _) = ruined(wild("straight"));
    assert!(shown.contains("skipped: the loss was"), "{shown}");
    let rows = run_dir::read_metrics(&scratch.path("straight")).unwrap();
    let skipped: usize = rows.iter().filter_map(|row| row.skipped).sum();
    assert!(skipped >= STEPS - 3, "{skipped}");
    let idle = rows.iter().find(|row| row.skipped == Some(2)).unwrap();
    assert_eq!((idle.train_loss, idle.grad_norm), (None, None));
    assert_eq!(rows.last().unwrap().tokens, (STEPS * 2 * 2 * 16) as u64);

    let (_, traced) = ruined(with_fault(wild("counted"), 0, "trace"));
    let changes = traced.matches("fault ").count();
    let output = run(&mut with_fault(wild("stopped"), changes / 2, "kill"));
    assert!(killed(&output));
    ruined(wild("stopped"));
    let expected = outcome(&scratch.path("straight"));
    assert_same(&scratch.path("stopped"), &expected, "stopped");
}

#[test]
fn a_loss_that_jumps_is_reported() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    let mut command = train(&file, &directory);
    // The limit is low, and the learning rate is so high that losses rise.
    command.args(["--set", "train.steps=60", "--set", "train.spike_z=0.01"]);
    command.args(["--set", "train.learning_rate=0.3"]);
    let shown = ok(&mut command);
    assert!(shown.contains("standard deviations above"), "{shown}");
    let rows = run_dir::read_metrics(&directory).unwrap();
    let spikes: Vec<_> = rows.iter().filter(|row| row.spike.is_some()).collect();
    assert!(!spikes.is_empty());
    assert!(
        spikes
            .iter()
            .all(|row| row.step > 32 && row.spike >= Some(0.01))
    );

    let quiet = scratch.path("quiet");
    let output = run(train(&file, &quiet).args(["--set", "train.steps=60"]));
    assert!(output.status.success());
    assert!(!text(&output.stdout).contains("standard deviations"));
}

#[test]
fn ruined_weights_do_not_push_the_best_checkpoint_out() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    let set = |mut command: std::process::Command, assignments: &[&str]| {
        for assignment in assignments {
            command.args(["--set", assignment]);
        }
        command
    };
    let short = [
        "train.steps=6",
        "train.keep_checkpoints=1",
        "train.validate_every=1",
        "train.checkpoint_every=1",
    ];
    ok(&mut set(train(&file, &directory), &short));
    let mut ruin = set(
        resume(&directory),
        &[
            "train.steps=24",
            "train.learning_rate=1e30",
            "train.max_skipped=4",
        ],
    );
    ruin.arg("--allow-config-change");
    fails(&mut ruin, 1, &["4 steps in a row"]);
    let best = run_dir::read_metrics(&directory).unwrap();
    let best = best
        .iter()
        .filter(|row| row.step > 0 && row.valid_loss.is_some());
    let best = best.min_by(|a, b| a.valid_loss.unwrap().total_cmp(&b.valid_loss.unwrap()));
    let best = checkpoint::directory(&directory, best.unwrap().step);
    assert!(best.is_dir(), "{}", best.display());
}
