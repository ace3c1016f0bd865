//! Texts, configs and tokenizers as other programs write them.

use std::fs;
use std::path::Path;
use std::process::Command;

use residual_zoo_testing::program::{SMOKE, Scratch, fails, ok, run, text, zoo};
use residual_zoo_testing::runs::{MODELS, config, resume, train};

/// Returns a command with its own cache.
fn with_cache(scratch: &Scratch, command: &str) -> Command {
    let mut command = zoo(command);
    command.env("XDG_CACHE_HOME", scratch.path("cache"));
    command
}

/// Returns the output of `tokenize` for this text, from both streams.
fn tokenized(scratch: &Scratch, data: &Path) -> String {
    let mut command = with_cache(scratch, "tokenize");
    command.args(["--tokenizer", "bytes", "--data"]).arg(data);
    let output = run(&mut command);
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn hidden_files_are_no_texts_and_others_are_named() {
    let scratch = Scratch::new();
    let texts = scratch.path("texts");
    fs::create_dir_all(texts.join(".ipynb_checkpoints")).unwrap();
    fs::write(texts.join("notes.md"), "x".repeat(160)).unwrap();
    fs::write(texts.join("._notes.md"), "x".repeat(100)).unwrap();
    let copy = texts.join(".ipynb_checkpoints/notes-checkpoint.md");
    fs::write(copy, "x".repeat(139)).unwrap();
    let said = tokenized(&scratch, &texts);
    assert!(said.contains("144 training and 16 validation"), "{said}");
    assert!(!said.contains("note:"), "{said}");
    for name in ["b.txt.xz", "c.ndjson", "d.json"] {
        fs::write(texts.join(name), "x").unwrap();
    }
    let said = tokenized(&scratch, &texts);
    assert!(said.contains("144 training and 16 validation"), "{said}");
    assert!(said.contains("note: 3 files were skipped"), "{said}");
    assert!(said.contains("b.txt.xz`"), "{said}");
    let said = tokenized(&scratch, &texts.join("b.txt.xz"));
    assert!(said.contains("packed as xz"), "{said}");
}

#[test]
fn byte_order_marks_are_skipped_in_configs_and_texts() {
    let scratch = Scratch::new();
    let marked = |text: &str| [b"\xef\xbb\xbf", text.as_bytes()].concat();
    let config = scratch.file("run.ron", marked(&fs::read_to_string(SMOKE).unwrap()));
    ok(zoo("describe").arg(&config));
    ok(zoo("plan").arg(&config));
    let line = "{\"text\": \"0123456789\"}\r\n".repeat(10);
    let lines = scratch.file("lines.jsonl", marked(&line));
    // The text has ten documents, joined by line breaks.
    let said = tokenized(&scratch, &lines);
    assert!(said.contains("98 training and 11 validation"), "{said}");
    let wide: Vec<u8> = "()".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let wide = scratch.file("wide.ron", [b"\xff\xfe", wide.as_slice()].concat());
    fails(zoo("describe").arg(wide), 2, &["UTF-16", "iconv"]);
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_and_not_opened() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe.ron");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let pipe = pipe.display().to_string();
    let commands = [
        format!("train {pipe}"),
        format!("train gpt2/smoke --data {pipe}"),
        format!("train gpt2/smoke --data tinyshakespeare --tokenizer {pipe}"),
        format!("describe {pipe}"),
        format!("plan {pipe}"),
        "plan /dev/zero".into(),
        format!("sweep {pipe} --over train.batch=1,2"),
        format!("experiment --config {pipe}"),
        format!("tokenize {pipe}"),
        format!("tokenize --data {pipe}"),
        format!("bench {pipe}"),
        format!("plot {pipe}"),
        format!("import {pipe} --run {pipe}.run"),
        format!("generate {pipe}"),
        format!("evaluate {pipe} --task {pipe}"),
    ];
    for command in commands {
        let mut words = command.split(' ');
        let mut started = with_cache(&scratch, words.next().unwrap());
        let mut started = started
            .args(words)
            .current_dir(scratch.path(""))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Opening the pipe would wait for its other end without a limit.
        let mut tries = 0;
        let status = loop {
            match started.try_wait().unwrap() {
                Some(status) => break status,
                None if tries == 1200 => {
                    started.kill().unwrap();
                    panic!("`{command}` hangs");
                }
                None => std::thread::sleep(std::time::Duration::from_millis(50)),
            }
            tries += 1;
        };
        assert!(
            matches!(status.code(), Some(1 | 2)),
            "`{command}`: {status}"
        );
    }
}

/// Returns a command that trains a short run in `run` on `data`. Paths are relative to the scratch directory.
fn trained(scratch: &Scratch, data: &str, tokenizer: &str, run: &str) -> Command {
    let mut command = with_cache(scratch, "train");
    command.current_dir(scratch.path(""));
    command.args(["gpt2/smoke", "--no-tui", "--data", data]);
    command.args(["--tokenizer", tokenizer, "--run", run]);
    command.args(["--set", "train.steps=3", "--set", "train.warmup=1"]);
    command
}

/// Returns a command that continues the run for two steps.
fn resumed(scratch: &Scratch, run: &str) -> Command {
    let mut command = with_cache(scratch, "train");
    command.current_dir(scratch.path(""));
    command.args(["--resume", run, "--no-tui", "--set", "train.steps=5"]);
    command
}

#[test]
fn a_run_within_its_data_continues() {
    let scratch = Scratch::new();
    scratch.file(
        "a.txt",
        "to be or not to be, that is the question\n".repeat(150),
    );
    ok(&mut trained(&scratch, ".", "bytes", "runs/x"));
    ok(&mut trained(&scratch, ".", "bytes", "runs/x"));
    let said = ok(&mut resumed(&scratch, "runs/x"));
    assert!(said.contains("step 5/5"), "{said}");
}

#[test]
fn a_run_continues_with_its_own_tokenizer_where_the_file_has_moved() {
    let scratch = Scratch::new();
    let line = "to be or not to be, that is the question\n";
    scratch.file("t.txt", line.repeat(150));
    ok(&mut trained(&scratch, "t.txt", "bpe:300", "first"));
    fs::copy(
        scratch.path("first/tokenizer.json"),
        scratch.path("tok.json"),
    )
    .unwrap();
    ok(&mut trained(&scratch, "t.txt", "tok.json", "run"));
    fs::rename(scratch.path("tok.json"), scratch.path("moved.json")).unwrap();
    ok(with_cache(&scratch, "describe")
        .current_dir(scratch.path(""))
        .arg("run"));
    let said = ok(&mut resumed(&scratch, "run"));
    assert!(said.contains("step 5/5"), "{said}");
}

#[test]
fn every_command_says_where_a_lost_tokenizer_is_found_again() {
    let scratch = Scratch::new();
    scratch.file(
        "t.txt",
        "to be or not to be, that is the question\n".repeat(150),
    );
    ok(&mut trained(&scratch, "t.txt", "chars", "run"));
    let own = fs::read(scratch.path("run/tokenizer.json")).unwrap();
    fs::copy(scratch.path("run/tokenizer.json"), scratch.path("tok.json")).unwrap();
    ok(&mut trained(&scratch, "t.txt", "tok.json", "of-file"));
    let words = |command: &str| {
        let mut words = command.split(' ');
        let mut command = with_cache(&scratch, words.next().unwrap());
        command.current_dir(scratch.path("")).args(words);
        command
    };
    for run in ["run", "of-file"] {
        let file = scratch.path(run).join("tokenizer.json");
        let again = format!("`residual-zoo train --resume {run} --allow-paths` writes it again");
        for damage in ["cannot be read", "is missing"] {
            match damage {
                "is missing" => fs::remove_file(&file).unwrap(),
                _ => fs::write(&file, "{").unwrap(),
            }
            for command in [
                "generate R",
                "describe R",
                "train --resume R",
                "serve R",
                "export --to hf R e",
            ] {
                let problem = format!("{run}/tokenizer.json {damage}");
                let mut command = words(&command.replace('R', run));
                fails(&mut command, 2, &[&problem, "restore it, or ", &again]);
            }
        }
        // The remedy works, even for a run that has finished.
        ok(&mut words(&format!(
            "train --resume {run} --allow-paths --no-tui"
        )));
        assert_eq!(fs::read(&file).unwrap(), own);
    }
    // The file from which the tokenizer was made is gone too.
    fs::remove_file(scratch.path("tok.json")).unwrap();
    fs::write(scratch.path("of-file/tokenizer.json"), "{").unwrap();
    for command in [
        "generate of-file",
        "describe of-file",
        "train --resume of-file",
        "train of-file/config.ron",
    ] {
        let says = [
            "of-file/tokenizer.json cannot be read",
            "and put back tok.json",
        ];
        fails(&mut words(command), 2, &says);
    }
}

#[test]
fn another_tokenizer_is_refused_and_a_lost_one_is_written_again() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let file = config(&scratch, MODELS[0].1);
    ok(train(&file, &run).args(["--set", "train.steps=12"]));
    let path = run.join("tokenizer.json");
    let own = fs::read_to_string(&path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&own).unwrap();
    json["words"].as_array_mut().unwrap().reverse();
    for other in [json.to_string(), String::new()] {
        fs::write(&path, other).unwrap();
        for mut command in [resume(&run), train(&file, &run)] {
            fails(
                command.args(["--set", "train.steps=14"]),
                2,
                &["tokenizer.json ", "restore it, or delete it"],
            );
        }
    }
    fs::remove_file(&path).unwrap();
    ok(resume(&run).args(["--set", "train.steps=14"]));
    assert_eq!(fs::read_to_string(&path).unwrap(), own);
}

#[test]
fn tokenize_fails_where_the_tokens_cannot_be_stored() {
    let scratch = Scratch::new();
    let data = scratch.file("t.txt", "text ".repeat(1000));
    let cache = scratch.file("no-directory", "");
    let assignment = format!("data.cache=Some({:?})", cache.join("cache"));
    let mut command = zoo("tokenize");
    command.args(["--tokenizer", "bytes", "--set", &assignment]);
    fails(command.arg("--data").arg(&data), 2, &["could not write"]);
    // Training continues with the tokens in memory.
    let mut command = trained(&scratch, "t.txt", "bytes", "run");
    let output = run(command.args(["--set", &assignment]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("kept in memory"));
}

#[test]
fn tokenizers_that_take_too_long_are_refused_in_one_line() {
    let scratch = Scratch::new();
    let file = |name: &str, split: &str, model: &str| {
        let json = format!(r#"{{"version": "1.0", "pre_tokenizer": {split}, "model": {model}}}"#);
        scratch.file(name, json)
    };
    let word_piece = r###"{"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 1000000000, "vocab": {"a": 0, "?": 1}}"###;
    let words = r#"{"type": "WordLevel", "unk_token": "?", "vocab": {"a": 0, "?": 1}}"#;
    let slow = r#"{"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false}"#;
    let data = scratch.file("t.txt", "a".repeat(40) + "b" + &" ok".repeat(50));
    for (tokenizer, says) in [
        (
            file("a.json", "null", word_piece),
            "max_input_chars_per_word",
        ),
        (file("b.json", slow, words), "takes too long"),
    ] {
        let mut command = with_cache(&scratch, "tokenize");
        command
            .arg("--data")
            .arg(&data)
            .arg("--tokenizer")
            .arg(tokenizer);
        fails(&mut command, 2, &[says]);
        let output = run(&mut command);
        assert_eq!(
            text(&output.stderr).lines().count(),
            1,
            "{}",
            text(&output.stderr)
        );
    }
}
