//! Paths that lead nowhere or to the wrong kind of file: each error says what is at the path and what to do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use residual_zoo_testing::program::{Scratch, fails, ok, run, text, zoo};
use residual_zoo_testing::runs::{MODELS, config, resume, train};

/// Trains a run, and returns its directory.
fn trained(scratch: &Scratch) -> std::path::PathBuf {
    let run = scratch.path("run");
    ok(&mut train(&config(scratch, MODELS[0].1), &run));
    run
}

#[test]
fn links_that_lead_in_a_circle_are_bad_input_with_a_remedy() {
    let scratch = Scratch::new();
    let (link, ron) = (scratch.path("loop"), scratch.path("loop.ron"));
    symlink("loop", &link).unwrap();
    symlink("loop.ron", &ron).unwrap();
    let run = scratch.path("new");
    let on = |data: &Path| {
        let mut command = zoo("train");
        command.args(["gpt2/smoke", "--no-tui", "--run"]).arg(&run);
        command.arg("--data").arg(data);
        command
    };
    let with = |command: &str, path: &Path| {
        let mut command = zoo(command);
        command.arg(path);
        command
    };
    let mut commands: Vec<Command> = vec![on(&link)];
    commands.extend(
        [
            "train",
            "plan",
            "describe",
            "compare",
            "experiment",
            "bench",
        ]
        .map(|it| with(it, &ron)),
    );
    commands.extend(["describe", "plot", "generate", "evaluate"].map(|it| with(it, &link)));
    for mut command in commands {
        fails(&mut command, 2, &["form a loop; make the link again"]);
    }
    assert!(!run.exists());
    // This directory of texts has such a link.
    let texts = scratch.path("texts");
    fs::create_dir(&texts).unwrap();
    symlink("b", texts.join("a")).unwrap();
    symlink("a", texts.join("b")).unwrap();
    fs::write(texts.join("c.txt"), "x".repeat(1000)).unwrap();
    fails(&mut on(&texts), 2, &["form a loop"]);
    let inside = link.join("run");
    let mut into = zoo("train");
    into.args(["gpt2/smoke", "--no-tui", "--run"]).arg(&inside);
    fails(&mut into, 2, &["loop/run", "make the link again"]);
}

#[test]
fn a_check_of_a_new_run_finds_what_its_start_would_refuse() {
    let scratch = Scratch::new();
    let path = scratch.path("new");
    let start = |check: bool| {
        let mut command = train(&config(&scratch, MODELS[0].1), &path);
        command.args(check.then_some("--check"));
        command
    };
    for name in [
        "lock",
        "tokenizer.json",
        "data.json",
        "history.jsonl",
        "config.partial",
    ] {
        let file = path.join(name);
        fs::create_dir_all(&file).unwrap();
        fails(&mut start(true), 2, &[name, "is not a regular file"]);
        fails(&mut start(false), 2, &[name, "is not a regular file"]);
        fs::remove_dir(&file).unwrap();
        symlink("/nowhere", &file).unwrap();
        fails(&mut start(true), 2, &[name]);
        fails(&mut start(false), 2, &[name]);
        fs::remove_file(&file).unwrap();
        fs::remove_dir_all(&path).unwrap();
    }
    ok(&mut start(true));
    assert!(!path.exists());
}

#[test]
fn what_stands_in_the_place_of_a_config_is_named() {
    let scratch = Scratch::new();
    let run = trained(&scratch);
    let path = run.join("config.ron");
    let whole = fs::read_to_string(&path).unwrap();
    type Put = fn(&Path);
    let others: [Put; 4] = [
        |path| fs::create_dir(path).unwrap(),
        |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        |path| symlink("config.ron", path).unwrap(),
        |path| symlink("nowhere", path).unwrap(),
    ];
    let from = scratch.path("from");
    let mut init = zoo("train");
    init.args(["gpt2/smoke", "--no-tui", "--run"]).arg(&from);
    init.arg("--init-from").arg(&run);
    for put in others {
        fs::remove_file(&path).unwrap();
        put(&path);
        for command in [
            zoo("describe").arg(&run),
            &mut resume(&run),
            &mut train(&config(&scratch, MODELS[0].1), &run),
            &mut init,
        ] {
            let remedy = match path.is_symlink() {
                true => "replace it with a copy",
                false => "move it away",
            };
            fails(command, 2, &["config.ron is not a regular file", remedy]);
        }
        if path.is_dir() {
            fs::remove_dir(&path).unwrap();
            fs::write(&path, "").unwrap();
        }
    }
    fs::remove_file(&path).unwrap();
    fs::write(&path, &whole[..200]).unwrap();
    let says = ["config.ron:", "; restore it, or start another run"];
    fails(zoo("describe").arg(&run), 2, &says);
    fails(&mut resume(&run), 2, &says);
    fs::write(&path, whole).unwrap();
    ok(&mut resume(&run));
}

#[test]
fn a_curve_with_lost_rows_is_drawn_with_a_note() {
    let scratch = Scratch::new();
    let run_path = trained(&scratch);
    let log = run_path.join("metrics.jsonl");
    let whole = fs::read_to_string(&log).unwrap();
    let plotted = || {
        let mut command = zoo("plot");
        command
            .arg(&run_path)
            .arg("--out")
            .arg(scratch.path("p.svg"));
        command
    };
    let notes = || text(&run(&mut plotted()).stderr);
    assert!(!notes().contains("metrics.jsonl"), "{}", notes());
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    fs::write(&log, [&lines[..2], &lines[3..]].concat().concat()).unwrap();
    assert!(notes().contains("metrics.jsonl has lost"), "{}", notes());
    let edited = whole.replacen("\"tokens\":0", "\"tokens\":1", 1);
    assert_ne!(edited, whole);
    fs::write(&log, edited).unwrap();
    assert!(notes().contains("metrics.jsonl was changed"), "{}", notes());
    fs::remove_file(&log).unwrap();
    fails(
        &mut plotted(),
        2,
        &["has lost its metrics.jsonl; restore it"],
    );
    symlink("metrics.jsonl", &log).unwrap();
    fails(&mut plotted(), 2, &["metrics.jsonl is not a regular file"]);
    let card = scratch.path("exported");
    let mut export = zoo("export");
    export.arg(&run_path).arg(&card).args(["--to", "hf"]);
    fails(&mut export, 2, &["metrics.jsonl is not a regular file"]);
    fs::remove_file(&log).unwrap();
    fs::write(&log, whole).unwrap();
    assert!(!notes().contains("metrics.jsonl"), "{}", notes());
}

#[test]
fn weights_of_a_run_whose_config_was_edited_are_noted() {
    let scratch = Scratch::new();
    let first = trained(&scratch);
    let path = first.join("config.ron");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        whole.replacen("learning_rate: 0.01", "learning_rate: 0.02", 1),
    )
    .unwrap();
    let mut command = train(&config(&scratch, MODELS[0].1), &scratch.path("second"));
    let shown = text(&run(command.arg("--init-from").arg(&first)).stderr);
    assert!(
        shown.contains("config.ron has been edited since"),
        "{shown}"
    );
}

#[test]
fn a_text_in_the_place_of_a_config_is_given_by_data() {
    let scratch = Scratch::new();
    let text = scratch.file("mine.txt", "x".repeat(1000));
    let says = ["is a text", "give the text with `--data", "mine.txt"];
    for command in ["train", "plan", "tokenize"] {
        fails(zoo(command).arg(&text), 2, &says);
        let missing = scratch.path("missing.txt");
        fails(
            zoo(command).arg(&missing),
            2,
            &["missing.txt` does not exist"],
        );
    }
}

#[test]
fn an_experiment_with_a_wrong_name_of_its_runs_is_no_run_file() {
    let scratch = Scratch::new();
    let file = scratch.file(
        "experiment.ron",
        "(title: \"x\", run: [(name: \"a\", model: Gpt2(n_layer: 1, width: 8, n_head: 1, context: 8))])",
    );
    fails(
        zoo("experiment").arg(&file),
        2,
        &["unknown field `run`", "`runs`"],
    );
    let run_file = config(&scratch, MODELS[0].1);
    fails(
        zoo("experiment").arg(&run_file),
        2,
        &["is a run file; train it with"],
    );
}

#[test]
fn a_pipe_that_nobody_reads_is_an_error() {
    let scratch = Scratch::new();
    let run_path = trained(&scratch);
    let pipe = scratch.path("p.csv");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut plot = zoo("plot");
    plot.arg(&run_path).arg("--out").arg(&pipe);
    fails(
        &mut plot,
        1,
        &["p.csv", "it is a pipe that no program reads"],
    );
    // If the pipe has a reader, it is written.
    let reader = Command::new("cat")
        .arg(&pipe)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let written =
        residual_zoo_testing::terminal::wait(|| run(&mut plot).status.success().then_some(()));
    assert!(written.is_some());
    let table = text(&reader.wait_with_output().unwrap().stdout);
    assert!(table.contains("valid"), "{table}");
}

#[test]
fn a_run_in_a_place_that_cannot_be_is_told_why() {
    let scratch = Scratch::new();
    symlink("nowhere", scratch.path("dangling")).unwrap();
    fs::write(scratch.path("file"), "x").unwrap();
    let train_in = |place: &str| {
        let mut command = zoo("train");
        command.args(["gpt2/smoke", "--no-tui", "--run"]);
        command.arg(scratch.path(place));
        command
    };
    let says = ["dangling` is a symbolic link to `nowhere`"];
    fails(&mut train_in("dangling/x"), 2, &says);
    fails(
        &mut train_in("dangling"),
        2,
        &["dangling", "is a symbolic link to `nowhere`"],
    );
    fails(&mut train_in("file/x"), 2, &["could not create", "file/x"]);
    let run = trained(&scratch);
    let mut on_run = zoo("train");
    on_run.args(["gpt2/smoke", "--check", "--data"]);
    fails(
        on_run.arg(&run),
        2,
        &["is a directory that this program wrote, such as a run"],
    );
}
