//! Run directories from strangers: each field of config, state, manifest, data, history and metrics gets extreme
//! values. No command panics, aborts, hangs, or writes or deletes anything outside the run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use residual_zoo::runs::{checkpoint, manifest};
use residual_zoo_testing::hostile::{EXTREMES, Numbers, mutant};
use residual_zoo_testing::program::{Scratch, in_shell, ok, signal, text, zoo};
use residual_zoo_testing::runs::{MODELS, config, train};

/// Returns the number of hostile runs, and the seed of their random numbers. `HOSTILE_RUNS=10000:7` makes 10,000 runs
/// with seed 7.
fn runs() -> (usize, u64) {
    let asked = std::env::var("HOSTILE_RUNS").unwrap_or("300:0".into());
    let (count, seed) = asked.split_once(':').unwrap();
    (count.parse().unwrap(), seed.parse().unwrap())
}

/// The address space that a command may reserve, in KiB. A thread reserves more memory than it uses.
const MEMORY: usize = 6 << 20;

/// Returns the content of every file below a directory.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(content(&path)),
            false => {
                let bytes = fs::read(&path).unwrap();
                found.insert(path, bytes);
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Changes one value after a `:` in a text file: a number, a word or a path.
fn change_value(path: &Path, outside: &Path, numbers: &mut Numbers) {
    let text = fs::read_to_string(path).unwrap();
    let starts: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
    let starts = match starts.is_empty() {
        true => text.match_indices(':').map(|(at, _)| at + 1).collect(),
        false => starts,
    };
    if starts.is_empty() {
        return;
    }
    let start = *numbers.of(&starts);
    let rest = &text[start..];
    let end = start + rest.find([',', '\n', '}']).unwrap_or(rest.len());
    let outside = format!("{:?}", outside.to_str().unwrap());
    let new = match numbers.below(8) {
        0 => outside,
        1 => format!("Path({outside})"),
        _ => (*numbers.of(&EXTREMES)).to_owned(),
    };
    fs::write(path, format!("{}{new}{}", &text[..start], &text[end..])).unwrap();
}

/// Turns a good run into a hostile one. Returns a description of the change.
fn harm(run: &Path, outside: &Path, numbers: &mut Numbers) -> String {
    let newest = checkpoint::newest(run).unwrap().path;
    let files = [
        run.join("config.ron"),
        run.join("config.ron"),
        run.join("config.ron"),
        run.join("data.json"),
        run.join("history.jsonl"),
        run.join("metrics.jsonl"),
        run.join("tokenizer.json"),
        newest.join(checkpoint::STATE),
        newest.join(checkpoint::STATE),
        newest.join("manifest.json"),
        newest.join(checkpoint::MODEL),
        newest.join(checkpoint::OPTIMIZER),
    ];
    let file = numbers.of(&files).clone();
    let is_text = file
        .extension()
        .is_some_and(|ending| ending != "safetensors");
    let how = match numbers.below(10) {
        0 => {
            fs::remove_file(&file).unwrap();
            symlink(outside.join("precious.txt"), &file).unwrap();
            "a link"
        }
        1 => {
            fs::remove_file(&file).unwrap();
            "missing"
        }
        2 | 3 => {
            let good = fs::read(&file).unwrap();
            fs::write(&file, mutant(&[&good], numbers)).unwrap();
            "random changes"
        }
        _ if is_text => {
            for _ in 0..=numbers.below(3) {
                change_value(&file, outside, numbers);
            }
            "extreme values"
        }
        _ => {
            let mut bytes = fs::read(&file).unwrap();
            let at = bytes.len() - 4 - 4 * numbers.below(bytes.len() / 8);
            let value = *numbers.of(&[f32::NAN, f32::INFINITY, f32::MAX, -0.0, 1e-40]);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            fs::write(&file, bytes).unwrap();
            "an extreme number"
        }
    };
    // Usually, a hostile checkpoint has a valid manifest.
    if file.parent() == Some(&newest) && !file.ends_with("manifest.json") && numbers.below(4) > 0 {
        manifest::write(&newest, &checkpoint::files(1, false)).ok();
    }
    format!("{}: {how}", file.strip_prefix(run).unwrap().display())
}

fn command(run: &Path, good: &Path, scratch: &Scratch, numbers: &mut Numbers) -> Command {
    let mut command = zoo("train");
    match numbers.below(8) {
        0 => {
            command = zoo("generate");
            command.arg(run).args(["--tokens", "5"]);
        }
        1 => {
            command = zoo("describe");
            command.arg(run);
        }
        2 => {
            command = zoo("plot");
            command
                .args([run, good])
                .arg("--out")
                .arg(scratch.path("plot.svg"));
        }
        3 => {
            let name = format!("from-{}", numbers.below(usize::MAX));
            command.arg(scratch.path("run.ron")).arg("--no-tui");
            command.arg("--run").arg(scratch.path(&name));
            command.arg("--init-from").arg(run);
            command.args(["--init-by", *numbers.of(&["grow", "grow-fresh"])]);
        }
        kind => {
            command.arg("--resume").arg(run).arg("--no-tui");
            if kind > 5 {
                command.args(["--set", "train.steps=26"]);
            }
        }
    }
    command
}

/// Returns the command with a memory limit. Only its error output is kept.
fn limited(command: &Command) -> Command {
    let mut command = in_shell(&format!("ulimit -v {MEMORY}; ulimit -c 0"), command);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn ends(child: &mut Child, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Runs a command to its end. A long command must stop soon after a signal, and at once after a second signal.
fn end(command: &mut Command) -> (Option<i32>, String) {
    let mut child = command.spawn().unwrap();
    for time in [2, 3, 5] {
        if ends(&mut child, Duration::from_secs(time)) {
            break;
        }
        signal(&child, "-TERM");
    }
    if !ends(&mut child, Duration::from_secs(5)) {
        child.kill().unwrap();
        return (None, "it hangs".into());
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text(&output.stderr))
}

fn attack(part: usize, of: usize) -> BTreeMap<Option<i32>, usize> {
    let scratch = Scratch::new();
    let good = scratch.path("good");
    ok(&mut train(
        &config(&scratch, MODELS[part % MODELS.len()].1),
        &good,
    ));
    let outside = scratch.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious.txt"), "precious text. ".repeat(100)).unwrap();
    let (theirs, ours) = (content(&outside), content(&good));
    let (runs, seed) = runs();
    let mut numbers = Numbers(seed + part as u64);
    let mut codes = BTreeMap::new();
    for i in (part..runs).step_by(of) {
        let evil = scratch.path("evil");
        fs::remove_dir_all(&evil).ok();
        copy(&good, &evil);
        let done = harm(&evil, &outside, &mut numbers);
        let mut command = limited(&command(&evil, &good, &scratch, &mut numbers));
        let (code, error) = end(&mut command);
        let is_clean = matches!(code, Some(0 | 1 | 2 | 130)) && !error.contains("panicked");
        assert!(is_clean, "{i}, {done}: {code:?} {command:?}\n{error}");
        let is_line = code == Some(0) || error.lines().any(|line| line.starts_with("error: "));
        assert!(
            is_line || code == Some(130),
            "{i}, {done}: {code:?}\n{error}"
        );
        assert_eq!(content(&outside), theirs, "{i}, {done}: {command:?}");
        *codes.entry(code).or_default() += 1;
    }
    assert_eq!(content(&good), ours);
    codes
}

#[test]
fn hostile_runs_do_no_harm() {
    let threads = thread::available_parallelism()
        .map_or(2, usize::from)
        .clamp(2, 6);
    let parts: Vec<_> = (0..threads)
        .map(|part| thread::spawn(move || attack(part, threads)))
        .collect();
    let mut codes: BTreeMap<Option<i32>, usize> = BTreeMap::new();
    for part in parts {
        for (code, count) in part.join().unwrap() {
            *codes.entry(code).or_default() += count;
        }
    }
    let (runs, _) = runs();
    println!("exit codes of {runs} hostile runs: {codes:?}");
    // Some changes do no harm. Of all runs, more than a quarter are refused as bad input.
    assert!(codes[&Some(0)] > 0 && codes[&Some(2)] > runs / 4);
}
