//! Signals that arrive together, readers that do not read, and processes that are suspended for a while.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::program::{
    SMOKE, Scratch, ends, in_shell, ok, run, signal, stopped_by, text, zoo,
};
use residual_zoo_testing::runs::{config_on, train};
use residual_zoo_testing::terminal::wait;

/// Returns a command for a run that logs every step and does not end by itself.
fn endless(directory: &Path) -> Command {
    let mut command = zoo("train");
    command.arg(SMOKE).arg("--run").arg(directory);
    for setting in [
        "train.steps=100000000",
        "train.validate_every=100000000",
        "train.sample_every=None",
        "train.log_every=1",
    ] {
        command.args(["--set", setting]);
    }
    command
}

fn logged(run: &Path) -> usize {
    run_dir::read_metrics(run).unwrap_or_default().len()
}

fn wait_for_steps(run: &Path, steps: usize) {
    assert!(wait(|| (logged(run) > steps).then_some(())).is_some());
}

/// Checks that the process that got `signal` ends by itself, and leaves a checkpoint.
fn ends_with_a_checkpoint(mut child: Child, run: &Path, signal: &str, what: &str) {
    assert_eq!(ends(&mut child).code(), stopped_by(signal), "{what}");
    assert!(checkpoint::newest(run).is_ok(), "{what}");
}

/// Reading the images of a batch takes seconds. A stopped run ends without reading the batch, and reads it when it
/// continues.
#[test]
fn a_run_that_decodes_large_images_ends_soon_and_goes_on() {
    let scratch = Scratch::new();
    for part in ["train", "val"] {
        let class = scratch.path(&format!("images/{part}/a"));
        fs::create_dir_all(&class).unwrap();
        let image = image::GrayImage::from_pixel(6000, 6000, image::Luma([7]));
        image.save(class.join("x.png")).unwrap();
    }
    let set = format!(
        "Images(set: Folder(path: {:?}, classes: 1, size: 8, shorter: 8))",
        scratch.path("images")
    );
    let model = "Composed(patches: (size: 4), layers: [Gpt2(n_layer: 1, n_head: 2, width: 16)])";
    let file = config_on(&scratch, model, &set, "spike_z: None");
    let directory = scratch.path("run");
    let settings = [
        "--set",
        "train.batch=100",
        "--set",
        "train.validate_batches=1",
        "--set",
        "train.steps=1",
    ];
    let mut command = train(&file, &directory);
    let child = command
        .args(settings)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The config is written before the first batch.
    assert!(wait(|| directory.join("config.ron").exists().then_some(())).is_some());
    signal(&child, "-TERM");
    ends_with_a_checkpoint(child, &directory, "-TERM", "images");
    assert_eq!(
        checkpoint::newest(&directory).unwrap().path,
        checkpoint::directory(&directory, 0)
    );
}

#[test]
fn an_estimate_of_memory_can_be_stopped() {
    let scratch = Scratch::new();
    for name in ["-TERM", "-INT"] {
        let out = scratch.path(name);
        let mut command = zoo("describe");
        command.args(["experiments/gpt2/bench.ron", "--memory"]);
        let mut child = command.stdout(File::create(&out).unwrap()).spawn().unwrap();
        let printed = || fs::read_to_string(&out).unwrap();
        // This line is the last one before the estimate.
        assert!(wait(|| printed().contains("\ncheckpoint ").then_some(())).is_some());
        signal(&child, name);
        assert_eq!(ends(&mut child).code(), stopped_by(name));
        assert!(!printed().contains("memory of training"), "{}", printed());
    }
}

/// Writes the config of a model that reads so many tokens that a pass takes a minute, from a text of `bytes` bytes.
fn slow(scratch: &Scratch, bytes: usize) -> PathBuf {
    let text = "to be or not to be ".repeat(bytes / 19);
    let text = scratch.file("text.txt", text);
    let config = format!(
        "(model: Gpt2(n_layer: 1, n_head: 1, width: 64, context: 131072), \
         data: (source: Path({text:?}), tokenizer: Bytes), \
         train: (steps: 1, warmup: 1, batch: 1, validate_batches: 1))"
    );
    scratch.file("slow.ron", config)
}

/// Stops `child` during a long pass, and checks that it ends soon.
fn ends_within_a_pass(mut child: Child) {
    thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    signal(&child, "-INT");
    assert_eq!(ends(&mut child).code(), stopped_by("-INT"));
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[test]
fn an_estimate_ends_within_a_pass() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let mut command = zoo("describe");
    command.arg(slow(&scratch, 2_000_000)).arg("--memory");
    let child = command.stdout(File::create(&out).unwrap()).spawn().unwrap();
    let printed = || fs::read_to_string(&out).unwrap();
    assert!(wait(|| printed().contains("\ncheckpoint ").then_some(())).is_some());
    ends_within_a_pass(child);
}

#[test]
fn an_evaluation_ends_within_a_window() {
    let scratch = Scratch::new();
    let [run, out] = ["run", "out"].map(|name| scratch.path(name));
    let mut train = zoo("train");
    train
        .arg(slow(&scratch, 200_000))
        .args(["--set", "train.time=16"]);
    ok(train.arg("--run").arg(&run).arg("--no-tui"));
    let mut command = zoo("evaluate");
    command
        .arg(&run)
        .arg("--task")
        .arg(scratch.path("text.txt"));
    let child = command
        .arg("--force")
        .arg("--out")
        .arg(&out)
        .spawn()
        .unwrap();
    assert!(wait(|| out.is_dir().then_some(())).is_some());
    ends_within_a_pass(child);
}

#[test]
fn signals_that_come_together_are_one() {
    for (i, (first, second)) in [("-TERM", "-TERM"), ("-HUP", "-HUP"), ("-INT", "-TERM")]
        .into_iter()
        .enumerate()
    {
        let scratch = Scratch::new();
        let directory = scratch.path("run");
        let child = endless(&directory).stdout(Stdio::null()).spawn().unwrap();
        wait_for_steps(&directory, 5);
        signal(&child, first);
        thread::sleep(Duration::from_millis(2 * i as u64));
        signal(&child, second);
        ends_with_a_checkpoint(child, &directory, first, first);
    }
}

#[test]
fn a_reader_who_does_not_read_does_not_keep_a_run_from_saving() {
    let scratch = Scratch::new();
    for name in ["both", "out"] {
        let directory = scratch.path(name);
        let mut command = endless(&directory);
        command.stdout(Stdio::piped());
        match name {
            "both" => command.stderr(Stdio::piped()),
            _ => command.stderr(File::create(scratch.path("err")).unwrap()),
        };
        let child = command.spawn().unwrap();
        // When no further step is logged, the pipe is full.
        let mut last = (0, Instant::now());
        let full = wait(|| {
            let steps = logged(&directory);
            if steps != last.0 {
                last = (steps, Instant::now());
            }
            (steps > 0 && last.1.elapsed() > Duration::from_secs(2)).then_some(())
        });
        assert!(full.is_some());
        signal(&child, "-TERM");
        ends_with_a_checkpoint(child, &directory, "-TERM", name);
    }
}

#[test]
fn a_process_that_no_shell_can_continue_is_not_stopped() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let program = endless(&directory);
    let mut command = Command::new("setsid");
    command.arg(program.get_program()).args(program.get_args());
    command.current_dir(program.get_current_dir().unwrap());
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_for_steps(&directory, 5);
    signal(&child, "-TSTP");
    thread::sleep(Duration::from_millis(500));
    let before = logged(&directory);
    wait_for_steps(&directory, before + 5);
    signal(&child, "-TERM");
    ends_with_a_checkpoint(child, &directory, "-TERM", "setsid");
}

#[test]
fn the_time_in_which_a_process_is_stopped_is_no_training() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let start = Instant::now();
    let child = endless(&directory).stdout(Stdio::null()).spawn().unwrap();
    wait_for_steps(&directory, 5);
    signal(&child, "-STOP");
    thread::sleep(Duration::from_secs(4));
    signal(&child, "-CONT");
    let before = logged(&directory);
    wait_for_steps(&directory, before + 5);
    signal(&child, "-TERM");
    ends_with_a_checkpoint(child, &directory, "-TERM", "stopped");
    let rows = run_dir::read_metrics(&directory).unwrap();
    let trained = rows.last().unwrap().seconds;
    let most = start.elapsed().as_secs_f64() - 3.5;
    assert!(trained < most, "{trained} s of at most {most} s");
}

#[test]
fn a_directory_or_configuration_that_burn_cannot_use_is_an_error() {
    let scratch = Scratch::new();
    let fails = |command: &mut Command, says: &str| {
        let output = run(command);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.starts_with("error: ") && error.contains(says),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    let mut command = zoo("train");
    command
        .arg("gpt2/smoke")
        .arg("--run")
        .arg(scratch.path("run"));
    let gone = scratch.path("gone");
    fs::create_dir(&gone).unwrap();
    let leave = format!("cd {0} && rmdir {0}", gone.display());
    fails(
        &mut in_shell(&leave, &command),
        "the current directory is gone",
    );

    scratch.file("burn.toml", "x[[");
    let inner = scratch.path("inner");
    fs::create_dir(&inner).unwrap();
    fails(command.current_dir(&inner), "right format");
    #[cfg(unix)]
    {
        let pipe = inner.join("cubecl.toml");
        let made = Command::new("mkfifo").arg(pipe).status().unwrap();
        assert!(made.success());
        fails(command.current_dir(inner), "is not a regular file");
    }
}
