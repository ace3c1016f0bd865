//! Signals, limits and foreign files. Some of them must not stop a run. Others must stop it before it does harm.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use residual_zoo::runs::{checkpoint, manifest, run_dir};
use residual_zoo_testing::program::{
    Scratch, ends, fails, in_shell, ok, path_of, run, signal, smoke, smoke_of, stopped_by, text,
    zoo,
};
use residual_zoo_testing::runs::{MODELS, config, four_runs, resume, ruin, train};
use residual_zoo_testing::terminal::wait;

/// Returns the number of steps that a run has logged.
fn logged(run: &Path) -> usize {
    let rows = run_dir::read_metrics(run).unwrap_or_default();
    rows.last().map_or(0, |row| row.step)
}

/// Trains the experiment with four runs, and returns the directory of one of them.
pub fn pooled(scratch: &Scratch) -> PathBuf {
    ok(&mut four_runs(scratch));
    let mut pool = fs::read_dir(scratch.path("out/pool")).unwrap();
    pool.next().unwrap().unwrap().path()
}

fn wait_until(done: impl Fn() -> bool) {
    assert!(wait(|| done().then_some(())).is_some());
}

#[test]
fn signals_that_were_ignored_at_the_start_stay_ignored() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let mut command = smoke_of(&directory, 100_000_000);
    command.args(["--set", "train.log_every=1"]);
    let mut command = in_shell("trap '' HUP INT", &command);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until(|| logged(&directory) > 0);
    for name in ["-HUP", "-INT"] {
        signal(&child, name);
        let before = logged(&directory);
        wait_until(|| logged(&directory) > before + 20);
    }
    signal(&child, "-TERM");
    assert_eq!(ends(&mut child).code(), stopped_by("-TERM"));
    assert!(checkpoint::newest(&directory).is_ok());
}

#[test]
fn a_file_that_may_not_grow_is_an_error() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    // The first checkpoint takes more than 40 blocks of 512 bytes.
    let output = run(&mut in_shell("ulimit -f 40", &smoke(&directory)));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("File too large"), "{error}");
    // With enough room, the run continues.
    ok(&mut smoke(&directory));
    // A resumed run cannot go to another place.
    let small = trained(&scratch, "small");
    let output = run(&mut in_shell("ulimit -f 0", &longer(&small)));
    let error = text(&output.stderr);
    assert!(error.ends_with("; free some space\n"), "{error}");
}

#[test]
fn a_hint_can_be_pasted_into_a_shell() {
    let scratch = Scratch::new();
    let directory = scratch.path("it's $(touch x) \"here\"");
    let shown = ok(&mut smoke(&directory));
    let hint = shown
        .lines()
        .find_map(|line| line.strip_prefix("sample it: residual-zoo "));
    let program = path_of("residual-zoo");
    let line = format!("'{}' {} --tokens 3", program.display(), hint.unwrap());
    let output = run(Command::new("sh").args(["-c", &line]));
    assert!(output.status.success(), "{line}\n{}", text(&output.stderr));
}

/// Trains a run that the test then turns into a foreign one.
fn trained(scratch: &Scratch, name: &str) -> PathBuf {
    let directory = scratch.path(name);
    ok(&mut train(&config(scratch, MODELS[0].1), &directory));
    directory
}

/// Returns a command that continues a run for more steps.
fn longer(run: &Path) -> Command {
    let mut command = resume(run);
    command.args(["--set", "train.steps=30"]);
    command
}

pub fn copied(from: &Path, to: &Path) {
    fs::remove_dir_all(to).ok();
    assert!(
        Command::new("cp")
            .arg("-r")
            .args([from, to])
            .status()
            .unwrap()
            .success()
    );
}

/// Replaces text in the config of a run.
pub fn edit(run: &Path, from: &str, to: &str) {
    let path = run.join("config.ron");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "no {from} in {text}");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn nothing_is_deleted_behind_a_linked_checkpoints_directory() {
    let scratch = Scratch::new();
    let (victim, evil) = (trained(&scratch, "victim"), scratch.path("evil"));
    copied(&victim, &evil);
    let (theirs, precious) = (
        evil.join("checkpoints"),
        victim.join("checkpoints/mine.partial"),
    );
    fs::remove_dir_all(&theirs).unwrap();
    symlink(victim.join("checkpoints"), &theirs).unwrap();
    fs::create_dir(&precious).unwrap();
    let listing = || {
        let entries = fs::read_dir(victim.join("checkpoints")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = listing();
    edit(&evil, "keep_checkpoints: 2", "keep_checkpoints: 1");
    edit(&evil, "steps: 24", "steps: 40");
    fails(&mut resume(&evil), 2, &["checkpoints", "is a link"]);
    fails(zoo("generate").arg(&evil), 2, &["checkpoints", "is a link"]);
    assert_eq!(listing(), before);
    // In the user's own run, a directory that is not a checkpoint is kept.
    ok(resume(&victim).args(["--set", "train.steps=26"]));
    assert!(precious.exists());
}

#[test]
fn linked_reports_are_refused_and_linked_measurements_replaced() {
    let scratch = Scratch::new();
    let runs = scratch.path("runs");
    let mut experiment = zoo("experiment");
    experiment
        .args(["laurel_start", "--scale", "smoke", "--runs"])
        .arg(&runs);
    ok(&mut experiment);
    let precious = scratch.file("precious", "precious");
    // The error for a linked page names the page.
    for page in ["laurel_start-smoke/report.html", "index.html"] {
        let (page, aside) = (runs.join(page), scratch.path("aside"));
        fs::rename(&page, &aside).unwrap();
        symlink(&precious, &page).unwrap();
        let says = format!("{} is a link or something else", page.display());
        fails(&mut experiment, 2, &[&says, "`--runs DIR`"]);
        fs::rename(&aside, &page).unwrap();
    }
    let pool = fs::read_dir(runs.join("pool")).unwrap();
    let links = pool.map(|run| run.unwrap().path().join("measured.json"));
    let links: Vec<PathBuf> = links.collect();
    for link in &links {
        fs::remove_file(link).unwrap();
        symlink(&precious, link).unwrap();
    }
    run(&mut experiment);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn sizes_beyond_the_memory_are_refused_before_anything_is_allocated() {
    let scratch = Scratch::new();
    let (own, evil) = (trained(&scratch, "own"), scratch.path("evil"));
    for (from, to) in [
        ("width: 16", "width: 200000"),
        ("n_layer: 2", "n_layer: 1000000000"),
        ("context: 16", "context: 18446744073709551615"),
        ("n_head: 2", "n_head: 0"),
    ] {
        copied(&own, &evil);
        edit(&evil, from, to);
        for command in [zoo("generate").arg(&evil), &mut resume(&evil)] {
            fails(command, 2, &["model"]);
        }
        let mut start = train(&config(&scratch, MODELS[0].1), &scratch.path("new"));
        start
            .arg("--init-from")
            .arg(&evil)
            .args(["--init-by", "grow-fresh"]);
        // The weights may fit, but no model of such sizes is built.
        let output = run(&mut start);
        assert!(output.status.code().is_some(), "{to}: {output:?}");
        assert!(
            !text(&output.stderr).contains("panicked"),
            "{to}: {output:?}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn limits_of_the_shell_count_as_memory() {
    let scratch = Scratch::new();
    let limited = |limit: &str, batch: &str| {
        let mut command = smoke(&scratch.path("run"));
        command.args(["--set", &format!("train.batch={batch}")]);
        in_shell(limit, &command)
    };
    for (limit, named) in [
        ("ulimit -v 6000000", "(`ulimit -v`)"),
        ("ulimit -d 6000000", "(`ulimit -d`)"),
    ] {
        for (batch, field) in [
            ("10000000", "`train.batch` is 10000000"),
            ("300000", "`train.batch` is 300000"),
        ] {
            let says = [field, "of memory", named, "--force"];
            fails(&mut limited(limit, batch), 2, &says);
        }
    }
    ok(&mut limited("ulimit -v 6000000", "2"));
}

/// Changes the state of the newest checkpoint, and makes the manifest valid again.
fn change_state(run: &Path, from: &str, to: &str) {
    let newest = checkpoint::newest(run).unwrap().path;
    let path = newest.join(checkpoint::STATE);
    let text = fs::read_to_string(&path).unwrap();
    let at = text
        .find(from)
        .unwrap_or_else(|| panic!("no {from} in {text}"));
    let end = at + text[at..].find(['\n', ',']).unwrap();
    fs::write(&path, format!("{}{to}{}", &text[..at], &text[end..])).unwrap();
    manifest::write(&newest, &checkpoint::files(1, false)).unwrap();
}

#[test]
fn a_state_that_no_run_can_have_is_refused() {
    let scratch = Scratch::new();
    let (own, evil) = (trained(&scratch, "own"), scratch.path("evil"));
    for (from, to) in [
        ("\"seconds\"", "\"seconds\": -1.0"),
        ("\"seconds\"", "\"seconds\": 1e308"),
        ("\"flops\"", "\"flops\": -1.0"),
        ("\"skipped\"", "\"skipped\": 18446744073709551615"),
        ("\"level\"", "\"level\": 18446744073709551615"),
        ("\"lr_scale\"", "\"lr_scale\": 1e300"),
        ("\"step\"", "\"step\": 18446744073709551615"),
    ] {
        copied(&own, &evil);
        change_state(&evil, from, to);
        fails(&mut resume(&evil), 2, &["state.json"]);
    }
    for seconds in ["-1.0", "1e308"] {
        copied(&own, &evil);
        let path = evil.join("metrics.jsonl");
        let rows = fs::read_to_string(&path).unwrap();
        let at = rows.rfind("\"seconds\":").unwrap();
        let end = at + rows[at..].find(',').unwrap();
        let changed = format!("{}\"seconds\":{seconds}{}", &rows[..at], &rows[end..]);
        fs::write(&path, changed).unwrap();
        for command in [&mut resume(&evil), zoo("plot").arg(&evil)] {
            fails(command, 2, &["metrics.jsonl", "`seconds`"]);
        }
    }
}

#[test]
fn weights_that_give_no_probabilities_generate_nothing() {
    let scratch = Scratch::new();
    let (own, evil) = (trained(&scratch, "own"), scratch.path("evil"));
    copied(&own, &evil);
    ruin(&evil, 1);
    for options in [[].as_slice(), &["--samples", "2"]] {
        let output = run(zoo("generate").arg(&evil).args(options));
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        assert!(error.contains("logits are not finite"), "{error}");
    }
}

#[test]
fn weights_and_moments_that_are_not_finite_are_refused() {
    let scratch = Scratch::new();
    let (own, evil) = (trained(&scratch, "own"), scratch.path("evil"));
    for file in [checkpoint::MODEL, checkpoint::OPTIMIZER] {
        copied(&own, &evil);
        let newest = checkpoint::newest(&evil).unwrap().path;
        let path = newest.join(file);
        let mut bytes = fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        manifest::write(&newest, &checkpoint::files(1, false)).unwrap();
        // The run gets more steps, so that the moments are needed.
        fails(&mut longer(&evil), 2, &[file, "not finite"]);
        if file == checkpoint::MODEL {
            fails(zoo("generate").arg(&evil), 2, &[file, "not finite"]);
        }
    }
}

#[test]
fn a_received_run_leads_to_no_file_of_the_user() {
    let scratch = Scratch::new();
    let own_text = scratch.file("own.txt", "my own text. ".repeat(400));
    let secret = scratch.file("secret.txt", "a secret text. ".repeat(400));
    let own = scratch.path("own");
    let mut start = train(&config(&scratch, MODELS[0].1), &own);
    start
        .arg("--data")
        .arg(&own_text)
        .args(["--tokenizer", "bytes"]);
    ok(&mut start);
    // The user's own run continues without further options.
    ok(resume(&own).args(["--set", "train.steps=26"]));
    ok(zoo("describe").arg(&own));

    let (evil, cache) = (scratch.path("evil"), scratch.path("cache"));
    copied(&own, &evil);
    let cached = format!("cache: {:?}", cache.to_str().unwrap());
    edit(&evil, "own.txt", "secret.txt");
    let says = ["`data.source` is", "secret.txt", "--allow-paths"];
    fails(&mut resume(&evil), 2, &says);
    let describe = run(zoo("describe").arg(&evil));
    assert_eq!(describe.status.code(), Some(2));
    // The same check applies to a tokenizer.
    edit(&evil, "secret.txt", "own.txt");
    let of_others = format!("tokenizer: File({:?})", secret.to_str().unwrap());
    edit(&evil, "tokenizer: Bytes", &of_others);
    let says = ["`data.tokenizer` is", "secret.txt", "--tokenizer"];
    fails(&mut resume(&evil), 2, &says);
    fails(zoo("describe").arg(&evil), 2, &says);
    edit(&evil, &of_others, "tokenizer: Bytes");
    edit(&evil, "own.txt", "secret.txt");
    // The run cannot choose where tokens are stored either, not even the tokens of its own text.
    edit(&evil, "secret.txt", "own.txt");
    edit(&evil, "cache: None", &cached);
    fails(&mut resume(&evil), 2, &["`data.cache` is", "--allow-paths"]);
    assert!(!cache.exists());
    // A cache inside the run is not trusted either.
    let inner = format!("cache: {:?}", evil.join("cache").to_str().unwrap());
    edit(&evil, &cached, &inner);
    fails(&mut resume(&evil), 2, &["`data.cache` is", "--allow-paths"]);
    edit(&evil, &inner, &cached);
    // The user can allow the paths.
    edit(&evil, "own.txt", "secret.txt");
    let allowed = run(resume(&evil).arg("--allow-paths"));
    assert!(
        text(&allowed.stderr).contains("--allow-config-change"),
        "{allowed:?}"
    );
    assert!(cache.exists());
    ok(resume(&own).arg("--data").arg(&own_text));
    drop(secret);
}

#[test]
fn the_owner_of_a_lock_cannot_drive_the_terminal() {
    let scratch = Scratch::new();
    let own = trained(&scratch, "own");
    fs::write(own.join("lock"), "\u{1b}]0;evil\u{7}").unwrap();
    let lock = File::open(own.join("lock")).unwrap();
    lock.lock().unwrap();
    let output = run(&mut resume(&own));
    let error = text(&output.stderr);
    assert!(
        error.contains("evil") && !error.contains(['\u{1b}', '\u{7}']),
        "{error:?}"
    );
}

#[test]
fn what_killed_processes_leave_in_the_cache_is_swept_and_entries_do_not_mix() {
    let scratch = Scratch::new();
    let cache = scratch.path("cache");
    let own_text = |name: &str| scratch.file(name, format!("text of {name}. ").repeat(400));
    let set = format!("data.cache={:?}", cache.to_str().unwrap());
    let tokenize = |text: &Path| {
        let mut command = zoo("describe");
        command
            .arg("experiments/gpt2/smoke.ron")
            .arg("--data")
            .arg(text);
        command.args(["--tokenizer", "bytes", "--set", &set]);
        command
    };
    // No process has this id, so its directory is a leftover.
    let left = cache.join(".new-999999999-abc");
    fs::create_dir_all(left.join("new")).unwrap();
    let mine = cache.join(format!(".new-{}-abc", std::process::id()));
    fs::create_dir(&mine).unwrap();
    let first = own_text("first");
    ok(&mut tokenize(&first));
    assert!(!left.exists() && mine.exists());
    let entries = || -> Vec<PathBuf> {
        let all = fs::read_dir(&cache)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        all.filter(|path| path.join("manifest.json").exists())
            .collect()
    };
    let of_first = entries();
    ok(&mut tokenize(&own_text("other")));
    let of_other: Vec<_> = entries()
        .into_iter()
        .filter(|path| !of_first.contains(path))
        .collect();
    fs::copy(
        of_other[0].join("train-00000.bin"),
        of_first[0].join("train-00000.bin"),
    )
    .unwrap();
    let output = run(&mut tokenize(&first));
    assert!(output.status.success());
    let note = text(&output.stderr);
    assert!(note.contains("tokenized the data again"), "{note}");
}

#[test]
fn a_log_that_the_checkpoint_would_cut_in_mid_line_keeps_its_rows() {
    let scratch = Scratch::new();
    let own = trained(&scratch, "own");
    let path = own.join("metrics.jsonl");
    let changed = fs::read_to_string(&path).unwrap().replace("}\n", "} \n");
    fs::write(&path, &changed).unwrap();
    let rows = run_dir::read_metrics(&own).unwrap();
    let shown = ok(&mut longer(&own));
    assert!(shown.contains("metrics.jsonl was changed"), "{shown}");
    assert!(run_dir::read_metrics(&own).unwrap().starts_with(&rows));
}

#[test]
fn links_in_place_of_all_checkpoints_are_refused() {
    let scratch = Scratch::new();
    let own = trained(&scratch, "own");
    let newest = checkpoint::newest(&own).unwrap().path;
    let aside = scratch.path("aside");
    fs::rename(&newest, &aside).unwrap();
    fs::remove_dir_all(own.join("checkpoints")).unwrap();
    fs::create_dir(own.join("checkpoints")).unwrap();
    symlink(&aside, &newest).unwrap();
    let before = fs::read(own.join("metrics.jsonl")).unwrap();
    fails(&mut longer(&own), 2, &["step-00000024", "is a link"]);
    assert_eq!(fs::read(own.join("metrics.jsonl")).unwrap(), before);
}

#[test]
fn links_in_place_of_the_files_of_a_run_are_not_read() {
    let scratch = Scratch::new();
    let (own, evil) = (trained(&scratch, "own"), scratch.path("evil"));
    let read_by_resume = ["config.ron", "data.json", "history.jsonl", "metrics.jsonl"];
    for name in ["tokenizer.json"].into_iter().chain(read_by_resume) {
        copied(&own, &evil);
        fs::remove_file(evil.join(name)).unwrap();
        symlink(own.join(name), evil.join(name)).unwrap();
        let mut generate = zoo("generate");
        let command = match name {
            "tokenizer.json" => generate.arg(&evil),
            _ => &mut resume(&evil),
        };
        fails(command, 2, &[name, "not a regular file"]);
    }
}

#[test]
fn a_file_with_another_name_is_not_written() {
    let scratch = Scratch::new();
    let own = trained(&scratch, "own");
    let backup = scratch.path("backup");
    let before = fs::read(own.join("metrics.jsonl")).unwrap();
    fs::hard_link(own.join("metrics.jsonl"), &backup).unwrap();
    // New rows go to a separate file, which replaces the link.
    ok(&mut longer(&own));
    assert_eq!(fs::read(&backup).unwrap(), before);
    let now = fs::read(own.join("metrics.jsonl")).unwrap();
    assert!(now.starts_with(&before) && now.len() > before.len());
    // A file that would have to be cut is refused.
    let path = own.join("history.jsonl");
    let before = fs::read(&path).unwrap();
    fs::hard_link(&path, scratch.path("history")).unwrap();
    fails(
        resume(&own).args(["--set", "train.steps=36"]),
        2,
        &["history.jsonl", "hard link"],
    );
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_checkpoint_is_of_the_step_in_its_name() {
    let scratch = Scratch::new();
    let own = trained(&scratch, "own");
    let newest = checkpoint::newest(&own).unwrap().path;
    fs::rename(&newest, checkpoint::directory(&own, 40)).unwrap();
    let says = ["step-00000040", "the state after 24 steps"];
    fails(&mut resume(&own), 2, &says);
}

#[test]
fn a_context_that_the_checkpoint_has_not_is_refused_before_it_is_allocated() {
    let scratch = Scratch::new();
    let own = trained(&scratch, "own");
    edit(&own, "context: 16", "context: 10000000");
    fails(
        zoo("generate").arg(&own),
        2,
        &["model.safetensors", "too small"],
    );
}

#[test]
fn training_again_deletes_runs_but_no_other_files() {
    let scratch = Scratch::new();
    let mut command = four_runs(&scratch);
    ok(&mut command);
    let pool = fs::read_dir(scratch.path("out/pool")).unwrap();
    let mut runs: Vec<_> = pool.map(|entry| entry.unwrap().path()).collect();
    runs.sort();
    command.arg("--force");
    let step = "checkpoints/step-00000040";
    assert!(runs[3].join(step).is_dir());
    for place in [".", "checkpoints", step] {
        let notes = runs[3].join(place).join("notes.partial");
        fs::write(&notes, "mine").unwrap();
        fails(&mut command, 2, &["notes.partial", "not part of a run"]);
        assert!(runs.iter().all(|run| run.join("config.ron").exists()));
        fs::remove_file(&notes).unwrap();
    }
    // This directory has the name of a directory that stood in the way of a checkpoint and was moved.
    let moved = runs[3].join("checkpoints/moved-step-00000040");
    fs::create_dir(&moved).unwrap();
    let says = ["moved-step-00000040", "not part of a run"];
    fails(&mut command, 2, &says);
    fs::remove_dir(&moved).unwrap();
    ok(&mut command);
}

#[test]
fn results_have_no_control_characters_and_are_still_json() {
    let scratch = Scratch::new();
    let file = scratch.file(
        "evil.ron",
        r#"(title: "a\u{1b}]0;b\u{7}\u{202e}c", about: "", data: (source: Synthetic(tokens: 3000)),
          train: (steps: 4, batch: 2, warmup: 2, validate_every: 2, validate_batches: 2),
          runs: [(name: "x\u{202e}y", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16))],
          columns: ["valid_loss"])"#,
    );
    ok(zoo("experiment")
        .arg(file)
        .arg("--runs")
        .arg(scratch.path("out")));
    let read = |name| fs::read_to_string(scratch.path("out/evil").join(name)).unwrap();
    for name in ["results.md", "results.csv", "report.html"] {
        assert!(!read(name).contains(['\u{1b}', '\u{7}']), "{name}");
    }
    let json: serde_json::Value = serde_json::from_str(&read("results.json")).unwrap();
    assert_eq!(json["title"], "a\u{1b}]0;b\u{7}\u{202e}c");
}

#[test]
fn errors_of_arguments_have_no_control_characters_and_lost_help_is_an_error() {
    let mut command = zoo("\u{1b}[31mX\u{7}");
    let output = run(&mut command);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        !error.contains(['\u{1b}', '\u{7}']) && error.contains('X'),
        "{error:?}"
    );
    let mut help = zoo("--help");
    let full = File::create("/dev/full").unwrap();
    let output = help.stdin(Stdio::null()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}
