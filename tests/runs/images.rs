//! Runs of models of images.

use std::fs;

use residual_zoo::runs::run_dir;
use residual_zoo_testing::program::{Scratch, fails, ok, zoo};
use residual_zoo_testing::runs::{config_on, resume, train};

const MODEL: &str =
    "Composed(patches: (size: 4), layers: [Gpt2(n_layer: 1, n_head: 2, width: 16)])";
const SHAPES: &str = "Images(set: Shapes(images: 40, size: 8), crop: 2, flip: true)";

#[test]
fn what_needs_text_refuses_a_model_of_images() {
    let scratch = Scratch::new();
    let file = config_on(&scratch, MODEL, SHAPES, "spike_z: None");
    let run = scratch.path("run");
    ok(&mut train(&file, &run));
    let text = scratch.file("words.txt", "disc square triangle cross disc square");
    fails(
        zoo("evaluate").arg(&run).arg("--task").arg(&text),
        2,
        &["not trained on text"],
    );
    fails(
        zoo("generate").arg(&run).args(["--prompt", "disc"]),
        2,
        &["not trained on text"],
    );
    fails(
        zoo("export")
            .arg(&run)
            .args(["--to", "hf"])
            .arg(scratch.path("hf")),
        2,
        &["not trained on text"],
    );
}

/// Its layers differ, so their number cannot be set.
#[test]
fn the_memory_of_a_resnet_is_estimated() {
    let plan = ok(zoo("plan").args(["resnet/smoke", "--memory", "--tflops", "1"]));
    let row = plan.lines().find(|line| line.starts_with("resnet/smoke"));
    assert!(
        row.is_some_and(|row| row.matches("MiB").count() == 3),
        "{plan}"
    );
}

#[test]
fn other_crops_are_another_run() {
    let scratch = Scratch::new();
    let file = config_on(&scratch, MODEL, SHAPES, "spike_z: None");
    let run = scratch.path("run");
    ok(&mut train(&file, &run));
    let before = fs::read_to_string(run.join("config.ron")).unwrap();
    let mut other = resume(&run);
    other.args(["--set", "data.source.crop=1"]);
    fails(
        &mut other,
        2,
        &["data.source.crop was 2, now 1", "--allow-config-change"],
    );
    assert_eq!(fs::read_to_string(run.join("config.ron")).unwrap(), before);
    let mut allowed = resume(&run);
    allowed.args(["--set", "data.source.crop=1", "--set", "train.steps=30"]);
    ok(allowed.arg("--allow-config-change"));
    let history = run_dir::read_history(&run).unwrap();
    let changes = history.last().unwrap().changes.join("; ");
    assert!(
        changes.contains("data.source.crop was 2, now 1"),
        "{changes}"
    );
}
