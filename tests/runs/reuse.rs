//! Reused parameter tokens: `train --tune` and `merge`.

use residual_zoo::runs::run_dir;
use residual_zoo::tokenformer::Added;
use residual_zoo::{Run, Zoo};
use residual_zoo_testing::program::{Scratch, fails, ok, text, zoo};
use residual_zoo_testing::runs::{MODELS, config, resume, train};

use std::path::Path;
use std::process::Command;

/// Trains new tokens of the run `base`, as many as `new_tokens` says. Returns the directory of the tuned run.
fn tune(scratch: &Scratch, new_tokens: &str, seed: usize) -> std::path::PathBuf {
    let directory = scratch.path(&format!("tuned-{seed}"));
    let mut command = train(&scratch.path("base").join("config.ron"), &directory);
    command.args(["--init-from", scratch.path("base").to_str().unwrap()]);
    command.args(["--tune", &format!("new_tokens={new_tokens}")]);
    command.args(["--set", &format!("train.seed={seed}")]);
    ok(&mut command);
    directory
}

fn merge(a: &Path, b: &Path, run: &Path) -> Command {
    let mut command = zoo("merge");
    command.args([a, b]).arg("--run").arg(run);
    command
}

fn base(scratch: &Scratch) {
    let (_, model) = MODELS[3];
    ok(&mut train(&config(scratch, model), &scratch.path("base")));
}

fn added(run: &Path) -> Option<Added> {
    let run = Run::open(run).unwrap();
    let Some(Zoo::TokenFormer(config)) = run.config.model.plain() else {
        panic!("a TokenFormer");
    };
    config.added
}

#[test]
fn two_models_that_were_tuned_from_one_are_merged() {
    let scratch = Scratch::new();
    base(&scratch);
    let mut checked = train(
        &scratch.path("base").join("config.ron"),
        &scratch.path("checked"),
    );
    checked.arg("--init-from").arg(scratch.path("base"));
    let shown = ok(checked.args(["--tune", "new_tokens=3,5", "--check"]));
    assert!(
        shown.contains(" parameters that are trained of "),
        "{shown}"
    );
    let (a, b) = (tune(&scratch, "3,5", 1), tune(&scratch, "2", 2));
    assert_eq!(added(&a), Some(Added { attn: 3, ffn: 5 }));
    let both = scratch.path("both");
    ok(&mut merge(&a, &b, &both));
    assert_eq!(added(&both), Some(Added { attn: 5, ffn: 7 }));
    let history = run_dir::read_history(&both).unwrap();
    assert!(
        history[0].changes[0].starts_with("merged from "),
        "{history:?}"
    );
    let generated = ok(zoo("generate").arg(&both).args(["--tokens", "5"]));
    assert!(!generated.is_empty());
    let mut best = zoo("generate");
    let says = "has not trained, so it has no validation loss; take the `newest` checkpoint";
    fails(best.arg(&both).args(["--checkpoint", "best"]), 2, &[says]);
    // The merged run can initialise another run.
    let more = scratch.path("more");
    let mut command = train(&both.join("config.ron"), &more);
    ok(command.arg("--init-from").arg(&both));
    assert_eq!(added(&more), Some(Added { attn: 5, ffn: 7 }));
    fails(&mut merge(&a, &b, &both), 2, &["both", "--run"]);
}

#[test]
fn a_tuned_run_keeps_the_weights_of_its_base() {
    let scratch = Scratch::new();
    base(&scratch);
    let tuned = tune(&scratch, "3", 1);
    let weights = |run: &Path| {
        let run = Run::open(run).unwrap();
        let path = run.checkpoint().unwrap().path;
        let path = path.join(residual_zoo::runs::checkpoint::MODEL);
        residual_zoo::runs::checkpoint::read_finite_tensors(&path)
            .unwrap()
            .0
    };
    let (before, after) = (weights(&scratch.path("base")), weights(&tuned));
    for (name, value) in &before {
        assert_eq!(&after[name], value, "{name}");
    }
    let moved = |name: &&String| {
        name.contains(".added.keys") && after[*name].iter::<f32>().any(|x| x != 0.0)
    };
    assert_eq!(after.keys().filter(moved).count(), 2 * 5);
}

#[test]
fn what_cannot_be_tuned_or_merged_is_named() {
    let scratch = Scratch::new();
    base(&scratch);
    let (_, gpt2) = MODELS[0];
    let other = scratch.path("gpt2");
    ok(&mut train(&config(&scratch, gpt2), &other));
    let base = scratch.path("base");
    let new = scratch.path("new");
    fails(
        &mut merge(&base, &other, &new),
        2,
        &["gpt2", "GPT-2", "TokenFormer"],
    );
    fails(
        merge(&base, &base, &new).args(["--value-scale", "0"]),
        2,
        &["`value_scale` is 0"],
    );
    fails(
        &mut merge(&base, &scratch.path("nothing"), &new),
        2,
        &["nothing"],
    );
    assert!(!new.exists());
    let tuned = tune(&scratch, "3", 1);
    let described = ok(zoo("describe").arg(&tuned));
    assert!(
        described.contains("parameters that are trained") && described.contains("more than "),
        "{described}"
    );
    fails(
        &mut merge(&base, &tuned, &new),
        2,
        &["`added`", "one of the models only"],
    );
    for tune in ["3", "new_tokens=x", "new_tokens=3,", "new_tokens=0"] {
        let mut command = train(&base.join("config.ron"), &new);
        command.arg("--init-from").arg(&base).args(["--tune", tune]);
        fails(&mut command, 2, &["--tune", "new_tokens=8"]);
    }
    let tune_from = |config: &Path, from: &Path| {
        let mut command = train(&config.join("config.ron"), &new);
        command.arg("--init-from").arg(from);
        command.args(["--tune", "new_tokens=3"]);
        command
    };
    fails(
        &mut tune_from(&other, &other),
        2,
        &["--tune", "needs a TokenFormer"],
    );
    fails(
        &mut tune_from(&base, &other),
        2,
        &["--tune", "weights of a TokenFormer"],
    );
    fails(
        &mut tune_from(&base, &tuned),
        2,
        &["--tune", "tuned already"],
    );
    // Without initial weights, all frozen weights would be random.
    fails(
        &mut train(&tuned.join("config.ron"), &new),
        2,
        &["model.added", "--init-from"],
    );
    // A model that is merged with itself is the same function if the values are halved.
    ok(merge(&base, &base, &new).args(["--value-scale", "0.5"]));
    let greedy = |run: &Path| {
        let mut command = zoo("generate");
        command
            .arg(run)
            .args(["--tokens", "10", "--temperature", "0"]);
        text(ok(&mut command).as_bytes())
    };
    assert_eq!(greedy(&new), greedy(&base));
    fails(
        &mut resume(&new),
        2,
        &["was merged from", "--init-from", "--run NEW"],
    );
}

#[test]
fn an_experiment_begins_with_the_merged_weights_of_two_runs() {
    let scratch = Scratch::new();
    let experiment = || {
        let mut command = zoo("experiment");
        command
            .arg("tokenformer_merge")
            .arg("--runs")
            .arg(scratch.path("runs"));
        command
    };
    ok(&mut experiment());
    let results = scratch.path("runs/tokenformer_merge-smoke/results.json");
    let results = std::fs::read_to_string(results).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let of = |run: &str, quantity: &str| {
        let mut all = results["observations"].as_array().unwrap().iter();
        let found = all.find(|found| found["run"] == run).unwrap();
        found["quantities"][quantity].as_f64().unwrap()
    };
    // Only the new tokens are trained. The merged model has the new tokens of both runs.
    let tuned = of("tuned on the first text", "parameters");
    assert_eq!(of("merged, first text", "parameters"), 2.0 * tuned);
    // Merging the two tuned runs with the command `merge` gives the same weights.
    let pool = scratch.path("runs/pool");
    let runs = std::fs::read_dir(&pool)
        .unwrap()
        .map(|run| run.unwrap().path());
    let runs: Vec<_> = runs.collect();
    let merged = runs
        .iter()
        .find(|run| run.to_string_lossy().contains("merged-"))
        .unwrap();
    let is_tuned = |run: &&std::path::PathBuf| added(run) == Some(Added { attn: 4, ffn: 6 });
    let tuned: Vec<_> = runs.iter().filter(is_tuned).collect();
    let by_hand = scratch.path("by-hand");
    let change = &run_dir::read_history(merged).unwrap()[0].changes[0];
    let first_is =
        |run: &std::path::Path| change.contains(&format!("merged from {}", run.display()));
    let (a, b) = if first_is(tuned[0]) {
        (tuned[0], tuned[1])
    } else {
        (tuned[1], tuned[0])
    };
    ok(&mut merge(a, b, &by_hand));
    let weights = |run: &Path| std::fs::read(run_dir_weights(run)).unwrap();
    assert_eq!(weights(merged), weights(&by_hand));
    // A missing merged run is made again.
    std::fs::remove_dir_all(merged).unwrap();
    ok(&mut experiment());
    assert_eq!(weights(merged), weights(&by_hand));
    // A run that starts from a deleted run is trained again. Merged runs are then made again too.
    let before = std::fs::metadata(merged.join("config.ron"))
        .unwrap()
        .modified()
        .unwrap();
    ok(experiment().args(["--force", "--only", "tuned on the second text"]));
    assert!(!merged.exists());
    ok(&mut experiment());
    assert!(
        std::fs::metadata(merged.join("config.ron"))
            .unwrap()
            .modified()
            .unwrap()
            > before
    );
}

fn run_dir_weights(run: &Path) -> std::path::PathBuf {
    let checkpoint = Run::open(run).unwrap().checkpoint().unwrap().path;
    checkpoint.join(residual_zoo::runs::checkpoint::MODEL)
}
