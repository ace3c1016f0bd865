//! `--check` reports the runs that would be trained, and the errors that would occur.

use std::fs;

use residual_zoo_testing::program::{Scratch, fails, ok, outside, smoke, zoo};

use super::counts::described;

#[test]
fn a_check_trains_nothing_and_says_what_would_be_trained() {
    let scratch = Scratch::new();
    let mut command = outside(&scratch, "train");
    let shown = ok(command.args(["gpt2/smoke", "--check"]));
    for part in [
        "27.6k parameters for 56 token ids",
        "45k training and 5k validation tokens",
        "60 steps of 256 tokens: 15.4k tokens, 0.341 passes over the training tokens",
    ] {
        assert!(shown.contains(part), "no `{part}` in: {shown}");
    }
    assert!(!scratch.path("runs").exists());
    let curriculum = ok(outside(&scratch, "train").args(["recurrent/copy-smoke", "--check"]));
    assert!(
        curriculum.contains("600 steps of at most 1.28k tokens: at most 768k tokens"),
        "{curriculum}"
    );
    let described_as = ok(outside(&scratch, "describe").arg("recurrent/copy-smoke"));
    assert_eq!(
        described(&described_as, "tokens of the run"),
        "at most 768k"
    );
    let images = ok(outside(&scratch, "describe").arg("vit/smoke"));
    assert_eq!(described(&images, "images of the run"), "6.4k");
    let mut wrong = outside(&scratch, "train");
    wrong.args(["gpt2/smoke", "--check", "--set", "model.n_head=5"]);
    fails(&mut wrong, 2, &["model.n_head"]);
    let short = scratch.file("short.txt", "too short");
    let mut wrong = outside(&scratch, "train");
    wrong.args(["gpt2/smoke", "--check", "--data"]).arg(short);
    fails(
        &mut wrong,
        2,
        &["text has ", " tokens, but a window needs "],
    );
    let experiment = ok(outside(&scratch, "experiment").args(["rmt_scaling", "--check"]));
    let header = experiment.lines().find(|line| line.starts_with("run "));
    for column in [
        "vocabulary",
        "parameters",
        "steps",
        "tokens",
        "passes",
        "seeds",
    ] {
        assert!(header.unwrap().contains(column), "{experiment}");
    }
    assert!(!scratch.path("runs").exists());
}

#[test]
fn the_check_of_an_experiment_finds_what_would_fail_at_the_start() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "to be or not to be ".repeat(40));
    let of = |fields: &str, run: &str| {
        let text = format!(
            "(title: \"t\", data: (source: Path({text:?}), tokenizer: Bytes), train: (steps: 2, batch: 1), \
             columns: [\"valid_loss\"], {fields} runs: [\
             (name: \"short\", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)), \
             (name: \"long\", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 80), {run})])"
        );
        scratch.file("experiment.ron", text)
    };
    let window = "`long`: the validation text has 76 tokens, but a window needs 81";
    let point = "short, context 80`: the validation text has";
    let sweep = "sweep: (over: [(field: \"model.context\", values: Grid([16, 80]))], seeds: [7], tuned: true),";
    let tasks = scratch.file(
        "words.jsonl",
        format!("{{\"text\": \"a {}\"}}\n", "b".repeat(80)),
    );
    let tasks = format!("tasks: [(name: \"words\", kind: \"lambada\", file: {tasks:?})],");
    let shorter = "set: [\"train.time=20\"]";
    for (fields, run, says) in [
        ("", "", window),
        (sweep, "", point),
        (&tasks, shorter, "document 0 of words"),
    ] {
        let file = of(fields, run);
        for check in [&["--check"][..], &[]] {
            fails(
                outside(&scratch, "experiment").arg(&file).args(check),
                2,
                &[says],
            );
        }
    }
    // Nothing is trained before the error.
    assert!(!scratch.path("runs").exists());
    let huge = "set: [\"model.width=100000\", \"train.time=20\"]";
    let huge = ok(outside(&scratch, "experiment")
        .arg(of("", huge))
        .arg("--check"));
    assert!(
        huge.contains("note: `long` cannot be trained here: `model` needs at least"),
        "{huge}"
    );
    let file = of("", shorter);
    ok(outside(&scratch, "experiment").arg(&file).arg("--check"));
    fs::create_dir_all(scratch.path("runs/experiments/experiment")).unwrap();
    fs::write(scratch.path("runs/experiments/experiment/mine.txt"), "mine").unwrap();
    let mut taken = outside(&scratch, "experiment");
    fails(taken.arg(&file).arg("--check"), 2, &["mine.txt"]);
}

#[test]
fn missing_data_are_named_with_the_option_that_gives_them() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "to be or not to be ".repeat(400));
    let data = ["--data", text.to_str().unwrap()];
    let cpu = ["--scale", "cpu", data[0], data[1]];
    let paper = ["--scale", "paper", data[0], data[1]];
    let swept = [
        "--scale",
        "cpu",
        data[0],
        data[1],
        "--over",
        "train.z_loss=0,1",
    ];
    for (command, name, options, says) in [
        (
            "experiment",
            "recurrent_image",
            &[][..],
            "give the data with `--data PATH`",
        ),
        (
            "experiment",
            "recurrent_image",
            &["--jobs", "2"],
            "give the data with `--data PATH`",
        ),
        (
            "experiment",
            "tokenformer_merge",
            &cpu,
            "give the new data with `--new-data PATH`",
        ),
        (
            "experiment",
            "rmt_scaling",
            &paper,
            "give a tokenizer with `--tokenizer NAME|PATH`",
        ),
        (
            "experiment",
            "zero_shot",
            &cpu,
            "give the task with `--task wikitext=FILE`",
        ),
        (
            "sweep",
            "tokenformer_merge",
            &swept,
            "change `new_data` in the file",
        ),
    ] {
        let mut command = outside(&scratch, command);
        fails(
            command.arg(name).args(options),
            2,
            &["does not exist", says],
        );
        // A check needs no data, but notes missing data.
        if command.get_args().next() == Some("experiment".as_ref()) {
            let shown = ok(command.arg("--check"));
            assert_eq!(shown.matches(says).count(), 1, "{shown}");
            assert!(shown.contains("note: "), "{shown}");
        }
    }
    assert!(!scratch.path("runs").exists());
}

#[test]
fn plan_and_check_name_the_scale_and_plan_notes_passes() {
    let plan = ok(zoo("plan").arg("rmt_scaling"));
    assert!(plan.starts_with("scale paper\n\nrun "), "{plan}");
    let times = "Times are at the full rate of matrix products on this machine, ";
    assert!(
        plan.contains(times) && plan.contains("; a real run takes longer."),
        "{plan}"
    );
    let smoke = ok(zoo("plan").args(["rmt_scaling", "--scale", "smoke", "--tflops", "1"]));
    assert!(smoke.starts_with("scale smoke\n"), "{smoke}");
    assert!(!smoke.contains("passes "), "{smoke}");
    let check = ok(zoo("experiment").args(["rmt_scaling", "--check"]));
    assert_eq!(check.lines().nth(1), Some("scale smoke"));
    let many = ["gpt2/smoke", "--set", "train.steps=100000", "--tflops", "1"];
    let many = ok(zoo("plan").args(many));
    assert!(
        many.contains("note: the run passes 569 times over its training tokens"),
        "{many}"
    );
    assert!(!many.contains("scale "), "{many}");
    let many = [
        "laurel_rank",
        "--scale",
        "smoke",
        "--set",
        "train.steps=1000000",
        "--tflops",
        "1",
    ];
    let many = ok(zoo("plan").args(many));
    assert_eq!(
        many.matches(" times over its training tokens").count(),
        1,
        "{many}"
    );
}

/// A path that cannot be used gives exit code 2, because the user can change it. A full disk, as in `disk.rs`, gives
/// exit code 1.
#[cfg(unix)]
#[test]
fn a_place_that_cannot_be_written_gives_one_exit_code() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("r")));
    scratch.file("file", "");
    let few = ["--set", "train.steps=1"];
    for place in ["file/x", "/proc/x"] {
        for (command, options) in [
            ("train", ["gpt2/smoke", "--run"].as_slice()),
            ("compare", &["gpt2/smoke", "--run"]),
            (
                "sweep",
                &["gpt2/smoke", "--over", "train.batch=1,2", "--runs"],
            ),
            ("experiment", &["rmt_stream_size", "--runs"]),
        ] {
            let mut command = outside(&scratch, command);
            fails(command.args(options).arg(place).args(few), 2, &[place]);
        }
        let figure = format!("{place}/a.svg");
        fails(
            outside(&scratch, "plot").args(["r", "--out", &figure]),
            2,
            &[place],
        );
        fails(
            outside(&scratch, "export").args(["r", "--to", "hf", place]),
            2,
            &[place],
        );
        let json = format!("{place}/a.json");
        let mut bench = outside(&scratch, "bench");
        fails(bench.args(["gpt2/smoke", "--json", &json]), 2, &[place]);
    }
    let mut full = outside(&scratch, "plot");
    fails(full.args(["r", "--out", "r"]), 2, &["--out"]);
}
