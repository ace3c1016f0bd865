//! Hours of kills, stops, full disks and closed terminals, with several processes that share one pool and one cache. No
//! data are lost or changed, no process hangs, and nothing is left behind.
//!
//! ```sh
//! cargo test --release --test soak -- --ignored --nocapture --test-threads 1
//! ```
//!
//! `SOAK_MINUTES` (120), `SOAK_CLOSINGS` (300) and `SOAK_SEED` (1) set the duration, the number of closed terminals and
//! the seed.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::hostile::Numbers;
use residual_zoo_testing::program::{
    Scratch, ends, in_shell, ok, run, signal, stopped_by, text, zoo,
};
use residual_zoo_testing::runs::{
    MODELS, Outcome, STEPS, assert_same, config, four_runs, outcome, resume, train, with_fault,
};
use residual_zoo_testing::terminal::{Terminal, wait};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// The number of times that each event has happened.
#[derive(Default)]
struct Counts(BTreeMap<&'static str, usize>);

impl Counts {
    fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn show(&self, since: Instant) {
        let counts = self.0.iter().map(|(what, count)| format!("{what} {count}"));
        let minutes = since.elapsed().as_secs() / 60;
        println!("{minutes} min: {}", counts.collect::<Vec<_>>().join(", "));
    }
}

/// Waits for the end of a process, which must come within a minute.
fn end(mut child: Child, what: &str) -> Option<i32> {
    let status = wait(|| child.try_wait().unwrap());
    if status.is_none() {
        child.kill().unwrap();
        panic!("{what} hangs");
    }
    status.unwrap().code()
}

fn quiet(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

fn pause(numbers: &mut Numbers, most: usize) {
    thread::sleep(Duration::from_millis(numbers.below(most) as u64));
}

/// Starts a command and harms it once. Returns the kind of harm.
fn harm(command: Command, scratch: &Scratch, numbers: &mut Numbers) -> &'static str {
    let mut command = command;
    let kinds = [
        "SIGKILL",
        "SIGTERM",
        "SIGINT",
        "SIGHUP",
        "SIGSTOP",
        "closing",
        "small files",
        "fault",
        "full disk",
        "kill on disk",
        "none",
    ];
    let kind = *numbers.of(&kinds);
    match kind {
        "SIGKILL" | "SIGTERM" | "SIGINT" | "SIGHUP" => {
            let child = quiet(&mut command);
            pause(numbers, 500);
            signal(&child, &kind.replace("SIG", "-"));
            end(child, kind);
        }
        "SIGSTOP" => {
            let child = quiet(&mut command);
            pause(numbers, 300);
            signal(&child, "-STOP");
            pause(numbers, 300);
            signal(&child, "-CONT");
            end(child, kind);
        }
        "closing" => {
            let arguments: Vec<_> = command
                .get_args()
                .filter(|word| *word != "--no-tui")
                .collect();
            let mut command = Command::new(command.get_program());
            command.args(arguments);
            close(&command, scratch, numbers.below(500));
        }
        "small files" => {
            let blocks = 1 + numbers.below(120);
            let limit = format!("ulimit -f {blocks}");
            end(quiet(&mut in_shell(&limit, &command)), kind);
        }
        "fault" | "full disk" | "kill on disk" => {
            let how = match kind {
                "fault" => "fail",
                "full disk" => "sticky",
                _ => "kill",
            };
            end(
                quiet(&mut with_fault(command, 1 + numbers.below(120), how)),
                kind,
            );
        }
        _ => drop(end(quiet(&mut command), kind)),
    }
    kind
}

/// Runs a command in a terminal that disappears after some milliseconds. Returns the exit code, or `None` if the
/// terminal disappeared before the program began.
fn close(command: &Command, scratch: &Scratch, after: usize) -> Option<i32> {
    let status = scratch.path("status");
    fs::remove_file(&status).ok();
    let mut terminal = Terminal::open(command, &status);
    thread::sleep(Duration::from_millis(after as u64));
    terminal.child.kill().unwrap();
    ends(&mut terminal.child);
    let program = command
        .get_args()
        .last()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let noted = || {
        let code = fs::read_to_string(&status).ok()?;
        code.trim().parse().ok()
    };
    let code = wait(|| match noted() {
        Some(code) => Some(Some(code)),
        None if is_running(&program) => None,
        None => {
            // The shell writes the exit code a moment later.
            thread::sleep(Duration::from_millis(500));
            Some(noted())
        }
    });
    code.unwrap_or_else(|| panic!("{command:?} hangs after its terminal went away"))
}

/// Whether a process with this argument exists.
fn is_running(argument: &str) -> bool {
    let found = Command::new("pgrep")
        .args(["-f", "--", argument])
        .output()
        .unwrap();
    found.status.success()
}

/// Returns the results of uninterrupted runs of all models.
fn references() -> Vec<Outcome> {
    let reference = |(_, model): &(&str, &str)| {
        let scratch = Scratch::new();
        let directory = scratch.path("run");
        ok(&mut train(&config(&scratch, model), &directory));
        outcome(&directory)
    };
    MODELS.iter().map(reference).collect()
}

fn is_finished(directory: &Path) -> bool {
    let newest = checkpoint::newest(directory);
    newest.is_ok_and(|newest| newest.path == checkpoint::directory(directory, STEPS))
}

/// Harms a run again and again, until it is finished.
fn harmed_run(references: &[Outcome], numbers: &mut Numbers, counts: &mut Counts) {
    let model = numbers.below(MODELS.len());
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[model].1);
    let directory = scratch.path("run");
    let mut done = Vec::new();
    while !is_finished(&directory) {
        let command = match directory.join("config.ron").exists() && numbers.below(2) == 0 {
            true => resume(&directory),
            false => train(&file, &directory),
        };
        let what = harm(command, &scratch, numbers);
        counts.add(what);
        done.push(what);
        assert!(done.len() < 200, "{done:?}");
    }
    // The run may have been stopped after its last checkpoint and before its end.
    ok(&mut train(&file, &directory));
    assert_same(
        &directory,
        &references[model],
        &format!("{}: {done:?}", MODELS[model].0),
    );
    counts.add("runs");
}

/// Returns the losses of an experiment.
fn losses(report: &Path) -> Vec<(String, f64)> {
    let text = fs::read_to_string(report.join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&text).unwrap();
    let loss = |found: &serde_json::Value| {
        let run = found["run"].as_str().unwrap().to_owned();
        (run, found["quantities"]["valid_loss"].as_f64().unwrap())
    };
    results["observations"]
        .as_array()
        .unwrap()
        .iter()
        .map(loss)
        .collect()
}

/// Runs several processes on one pool, and kills some of them.
fn harmed_pool(
    expected: &mut Option<Vec<(String, f64)>>,
    numbers: &mut Numbers,
    counts: &mut Counts,
) {
    let scratch = Scratch::new();
    let command = || four_runs(&scratch);
    for _ in 0..1 + numbers.below(3) {
        let processes: Vec<Child> = (0..3).map(|_| quiet(&mut command())).collect();
        pause(numbers, 700);
        for process in processes {
            let name = *numbers.of(&["-KILL", "-TERM", "-INT", "-CONT"]);
            signal(&process, name);
            end(process, "a process on a pool");
            counts.add("processes on a pool");
        }
    }
    ok(&mut command());
    let found = losses(&scratch.path("out/four"));
    match expected {
        Some(expected) => assert_eq!(found, *expected),
        None => *expected = Some(found),
    }
    counts.add("pools");
}

/// Tokenizes one text into one cache with several processes, and kills some of them.
fn harmed_cache(numbers: &mut Numbers, counts: &mut Counts) {
    let scratch = Scratch::new();
    let words: Vec<String> = (0..20_000)
        .map(|_| format!("w{} ", numbers.below(900)))
        .collect();
    let file = scratch.file("text.txt", words.concat());
    let cache = scratch.path("cache");
    let command = || {
        let mut command = zoo("describe");
        command
            .arg("experiments/gpt2/smoke.ron")
            .arg("--data")
            .arg(&file);
        command.args(["--tokenizer", "bpe:400", "--set"]);
        command.arg(format!("data.cache={cache:?}"));
        command
    };
    let processes: Vec<Child> = (0..4).map(|_| quiet(&mut command())).collect();
    pause(numbers, 400);
    for process in processes {
        if numbers.below(3) > 0 {
            signal(&process, "-KILL");
        }
        end(process, "a process on a cache");
        counts.add("processes on a cache");
    }
    ok(&mut command());
    let again = run(&mut command());
    assert!(
        again.status.success() && again.stderr.is_empty(),
        "{}",
        text(&again.stderr)
    );
    let names = || {
        fs::read_dir(&cache)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
    };
    if names().any(|name| name.to_string_lossy().starts_with(".new-")) {
        // The leftovers of a killed process stay until the next entry is written.
        fs::write(&file, "other words ".repeat(2000)).unwrap();
        ok(&mut command());
    }
    let left: Vec<_> = names()
        .filter(|name| name.to_string_lossy().starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    counts.add("caches");
}

/// An endless run, to see whether its memory or its number of files grows.
struct Endless {
    scratch: Scratch,
    child: Child,
    before: Option<(u64, usize)>,
}

impl Endless {
    fn start() -> Self {
        let scratch = Scratch::new();
        let mut command = train(&config(&scratch, MODELS[0].1), &scratch.path("run"));
        for setting in [
            "train.steps=1000000000",
            "train.validate_every=500",
            "train.checkpoint_every=500",
        ] {
            command.args(["--set", setting]);
        }
        command.args([
            "--set",
            "train.log_every=500",
            "--set",
            "train.sample_every=5000",
        ]);
        let mut nice = Command::new("nice");
        nice.args(["-n", "10"])
            .arg(command.get_program())
            .args(command.get_args());
        nice.current_dir(command.get_current_dir().unwrap());
        let child = quiet(&mut nice);
        Self {
            scratch,
            child,
            before: None,
        }
    }

    /// Returns the resident memory in KiB, and the number of files.
    fn takes(&self) -> (u64, usize) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        (memory, files(&self.scratch.path("run")))
    }

    fn look(&mut self) {
        self.before.get_or_insert(self.takes());
    }

    fn end(self) {
        let (after, before) = (self.takes(), self.before.unwrap());
        let steps = run_dir::read_metrics(&self.scratch.path("run"))
            .unwrap()
            .last()
            .unwrap()
            .step;
        println!("an endless run of {steps} steps: {before:?} KiB and files, {after:?} at the end");
        // The run keeps its rows and samples in memory, a few hundred bytes each.
        assert!(
            after.0 < before.0 + before.0 / 4 + 20_000,
            "{before:?} {after:?}"
        );
        assert!(after.1 <= before.1 + 6, "{before:?} {after:?}");
        signal(&self.child, "-TERM");
        assert_eq!(end(self.child, "the endless run"), stopped_by("-TERM"));
        assert!(checkpoint::newest(&self.scratch.path("run")).is_ok());
    }
}

fn files(directory: &Path) -> usize {
    let count = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false => 1,
    };
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| count(entry.unwrap().path())).sum()
}

#[test]
#[ignore = "takes two hours"]
fn soak() {
    let (start, seed) = (Instant::now(), setting("SOAK_SEED", 1));
    let time = Duration::from_secs(60 * setting("SOAK_MINUTES", 120));
    let references = references();
    let mut endless = Endless::start();
    let (mut numbers, mut counts, mut pool) = (Numbers(seed), Counts::default(), None);
    let mut shown = start;
    while start.elapsed() < time {
        match numbers.below(8) {
            0 => harmed_pool(&mut pool, &mut numbers, &mut counts),
            1 => harmed_cache(&mut numbers, &mut counts),
            _ => harmed_run(&references, &mut numbers, &mut counts),
        }
        if start.elapsed() > time / 10 {
            endless.look();
        }
        if shown.elapsed() > Duration::from_secs(60) {
            counts.show(start);
            shown = Instant::now();
        }
    }
    endless.end();
    counts.show(start);
}

#[test]
#[ignore = "takes ten minutes"]
fn closings() {
    let start = Instant::now();
    let (mut numbers, mut counts) = (Numbers(setting("SOAK_SEED", 1)), Counts::default());
    let scratch = Scratch::new();
    let words: Vec<String> = (0..40_000)
        .map(|_| format!("w{} ", numbers.below(900)))
        .collect();
    let text = scratch.file("text.txt", words.concat());
    // Every phase takes a part of the run's time: a tokenizer is trained, then validations, samples and checkpoints
    // alternate.
    let file = config(&scratch, MODELS[0].1);
    let command = |directory: &Path| {
        let mut command = zoo("train");
        command
            .arg(&file)
            .arg("--data")
            .arg(&text)
            .args(["--tokenizer", "bpe:400"]);
        let cache = directory.with_extension("cache");
        command.args([
            "--set",
            &format!("data.cache={cache:?}"),
            "--set",
            "train.validate_batches=20",
        ]);
        command.arg("--run").arg(directory);
        command
    };
    let straight = scratch.path("straight");
    let clock = Instant::now();
    ok(command(&straight).arg("--no-tui"));
    let (expected, whole) = (outcome(&straight), clock.elapsed().as_millis() as usize);
    for i in 0..setting("SOAK_CLOSINGS", 300) {
        let directory = scratch.path(&format!("run{i}"));
        let code = close(
            &command(&directory),
            &scratch,
            numbers.below(whole + whole / 3),
        );
        let began = directory.join("config.ron").exists();
        counts.add(match code {
            None | Some(129) if !began => "before the run",
            Some(0 | 129) => "in the run",
            code => panic!("closing {i}: exit code {code:?}, begun: {began}"),
        });
        if began {
            assert!(
                checkpoint::newest(&directory).is_ok(),
                "closing {i}: no checkpoint"
            );
            counts.add("with a checkpoint");
        }
        ok(command(&directory).arg("--no-tui"));
        assert_same(&directory, &expected, &format!("closing {i}"));
        fs::remove_dir_all(&directory).unwrap();
        fs::remove_dir_all(directory.with_extension("cache")).ok();
    }
    counts.show(start);
}
