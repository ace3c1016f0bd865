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

/// What is damaged on a disk can be restored from a copy.
#[test]
fn a_damaged_file_ends_a_run_that_goes_on_when_it_is_restored() {
    let scratch = Scratch::new();
    let mut files = Vec::new();
    for (part, count) in [("train", 12), ("val", 2)] {
        for (class, red) in [("cat", 200u8), ("dog", 20)] {
            let folder = scratch.path(&format!("images/{part}/{class}"));
            fs::create_dir_all(&folder).unwrap();
            for i in 0..count {
                let path = folder.join(format!("{i}.png"));
                let colour = image::Rgb([red, 10 * i, 90]);
                image::RgbImage::from_pixel(9, 9, colour)
                    .save(&path)
                    .unwrap();
                files.push(path);
            }
        }
    }
    let source = format!(
        "Images(set: Folder(path: {:?}, classes: 2, size: 8, shorter: 8), flip: true)",
        scratch.path("images")
    );
    let file = config_on(&scratch, MODEL, &source, "spike_z: None");
    let whole = scratch.path("whole");
    ok(&mut train(&file, &whole));

    let last = |run: &std::path::Path| {
        let newest = residual_zoo::runs::checkpoint::newest(run).unwrap().path;
        fs::read(newest.join("model.safetensors")).unwrap()
    };
    // The first file whose damage is not found in the first step.
    for (i, path) in files.iter().enumerate() {
        let good = fs::read(path).unwrap();
        let mut bad = good.clone();
        let middle = good.len() - 20;
        bad[middle] ^= 0xff;
        fs::write(path, bad).unwrap();
        let run = scratch.path(&format!("damaged-{i}"));
        fails(&mut train(&file, &run), 2, &["is damaged", "restore it"]);
        fs::write(path, good).unwrap();
        if residual_zoo::runs::checkpoint::newest(&run).is_ok() {
            ok(&mut resume(&run));
            assert_eq!(last(&run), last(&whole));
            return;
        }
    }
    panic!("every file was read in the first step");
}
