//! Runs of image models.

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
    let shown = ok(&mut train(&file, &run));
    assert!(
        shown.contains("3 × 8 × 8 images in 4 classes")
            && shown.contains("10 validation images")
            && !shown.contains("token"),
        "{shown}"
    );
    let text = scratch.file("words.txt", "disc square triangle cross disc square");
    fails(
        zoo("evaluate").arg(&run).arg("--task").arg(&text),
        2,
        &["--task", "classifies its validation images"],
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

#[test]
fn changes_of_training_images_belong_to_the_run() {
    let scratch = Scratch::new();
    let file = config_on(&scratch, MODEL, SHAPES, "spike_z: None");
    let run = scratch.path("run");
    ok(train(&file, &run).args(["--set", "train.steps=2"]));
    let mut mixed = train(&file, &run);
    mixed.args(["--set", "train.steps=2", "--set", "data.source.mixup=0.5"]);
    fails(&mut mixed, 2, &["data.source.mixup was 0.0, now 0.5"]);
}

#[test]
fn evaluate_classifies_all_validation_images_and_shows_what_is_wrong() {
    let scratch = Scratch::new();
    let file = config_on(&scratch, MODEL, SHAPES, "spike_z: None");
    let run = scratch.path("run");
    ok(train(&file, &run).args([
        "--set",
        "train.validate_batches=1000",
        "--set",
        "train.batch=1",
    ]));
    let out = scratch.path("out");
    let evaluate = || {
        let mut command = zoo("evaluate");
        command
            .arg(&run)
            .arg("--out")
            .arg(&out)
            .args(["--batch", "3"]);
        command
    };
    let shown = ok(&mut evaluate());
    assert!(
        shown.contains("top-1 accuracy") && !shown.contains("top-5 accuracy"),
        "{shown}"
    );
    let results = fs::read_to_string(out.join("images.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let rows = run_dir::read_metrics(&run).unwrap();
    let last = rows
        .iter()
        .rev()
        .find_map(|row| Some((row.valid_loss?, row.valid_accuracy?)));
    let (loss, accuracy) = last.unwrap();
    assert!(
        (results["loss"].as_f64().unwrap() - loss).abs() < 1e-5,
        "{results}"
    );
    assert!(
        (results["top_1"].as_f64().unwrap() - accuracy).abs() < 1e-9,
        "{results}"
    );
    let confusion = results["confusion"].as_array().unwrap();
    let counts = confusion.iter().flat_map(|row| row.as_array().unwrap());
    let all: u64 = counts.map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(Some(all), results["images"].as_u64());
    let report = fs::read_to_string(out.join("images.html")).unwrap();
    assert!(
        report.contains("Confusion matrix") && report.contains("disc"),
        "{report}"
    );
    let wrong = (all as f64 * (1.0 - accuracy)).round() as usize;
    assert_eq!(
        report.matches("data:image/png;base64,").count(),
        wrong.min(24)
    );
    fails(
        evaluate().args(["--task", "words.txt"]),
        2,
        &["--task", "leave it out"],
    );
    let text = config_on(
        &scratch,
        "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8)",
        "Synthetic(tokens: 2000)",
        "spike_z: None",
    );
    let of_text = scratch.path("text");
    ok(&mut train(&text, &of_text));
    fails(zoo("evaluate").arg(&of_text), 2, &["--task", "is missing"]);
    fails(
        zoo("evaluate").arg(&of_text).args(["--data", "x"]),
        2,
        &["--data x", "--task"],
    );
}

#[test]
fn a_model_whose_weights_are_ruined_is_not_called_right() {
    let scratch = Scratch::new();
    let file = config_on(&scratch, MODEL, SHAPES, "spike_z: None");
    let run = scratch.path("run");
    let mut ruined = train(&file, &run);
    for set in [
        "train.learning_rate=1e18",
        "train.min_learning_rate=Ratio(1.0)",
        "train.warmup=0",
    ] {
        ruined.args(["--set", set]);
    }
    fails(&mut ruined, 1, &["not finite"]);
    let out = scratch.path("out");
    let mut evaluate = zoo("evaluate");
    evaluate.arg(&run).arg("--out").arg(&out);
    fails(&mut evaluate, 2, &["not finite", "newest checkpoint"]);
    assert!(!out.join("images.json").exists());
}

/// The layers of a ResNet differ, so their number cannot be set.
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

/// A file that is damaged on disk can be restored from a copy.
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
    let last = |run: &std::path::Path| {
        let newest = residual_zoo::runs::checkpoint::newest(run).unwrap().path;
        fs::read(newest.join("model.safetensors")).unwrap()
    };
    let whole = scratch.path("whole");
    ok(&mut train(&file, &whole));
    // The folder has fewer classes than the set `Shapes`, whose images replace the files in the estimate.
    ok(zoo("describe").arg(&file).arg("--memory"));
    // A single thread computes or reads the next batch, but never both at once.
    let alone = scratch.path("alone");
    ok(train(&file, &alone).env("RAYON_NUM_THREADS", "1"));
    assert_eq!(last(&alone), last(&whole));

    // The number of classes is the same, but one class has another name.
    fs::create_dir(scratch.path("others")).unwrap();
    for part in ["train", "val"] {
        for (from, to) in [("cat", "cat"), ("dog", "horse")] {
            let folder = scratch.path(&format!("others/{part}/{to}"));
            fs::create_dir_all(&folder).unwrap();
            let image = scratch.path(&format!("images/{part}/{from}/0.png"));
            fs::copy(image, folder.join("0.png")).unwrap();
        }
    }
    let mut of_others = zoo("evaluate");
    of_others.arg(&whole).arg("--out").arg(scratch.path("out"));
    of_others.arg("--data").arg(scratch.path("others"));
    fails(
        &mut of_others,
        2,
        &["data.source", "other classes", "--data"],
    );

    // Damages each file until the damage to one is found only after the first step.
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
