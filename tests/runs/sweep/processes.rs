//! Processes that share a pool of runs.

use super::*;

fn shared(scratch: &Scratch) -> Command {
    let mut command = four_runs(scratch);
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .stdin(Stdio::null());
    command
}

#[test]
fn two_processes_on_one_pool_share_the_runs() {
    let scratch = Scratch::new();
    let processes: Vec<Child> = (0..3).map(|_| shared(&scratch).spawn().unwrap()).collect();
    let mut trained = 0;
    for process in processes {
        let output = end(process);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        trained += shown.matches("trained in").count();
        let all = shown.matches("validation loss").count();
        assert_eq!(all, 4, "{shown}");
    }
    assert_eq!(trained, 4);
    let observations = &results(&scratch.path("out").join("four"))["observations"];
    assert_eq!(observations.as_array().unwrap().len(), 4);
}

#[test]
fn times_beside_other_runs_are_not_reported() {
    for (jobs, is_timed) in [("1", true), ("2", false)] {
        let scratch = Scratch::new();
        for force in [&[][..], &["--force"]] {
            let shown = ok(shared(&scratch).args(["--jobs", jobs]).args(force));
            // A line is printed when a run begins, and another when it ends.
            assert_eq!(shown.matches(" …\n").count(), 4, "{shown}");
            assert_eq!(shown.matches("trained in").count(), 4, "{shown}");
        }
        // Without `--jobs`, the same command finds the same runs.
        ok(&mut shared(&scratch));
        let found = results(&scratch.path("out").join("four"));
        for observation in found["observations"].as_array().unwrap() {
            let quantities = &observation["quantities"];
            assert!(quantities["valid_loss"].is_number());
            assert_eq!(quantities["step_time"].is_number(), is_timed, "{jobs}");
        }
    }
}

/// Returns the runs of a pool that are being trained.
fn in_use(pool: &Path) -> Vec<PathBuf> {
    let runs = fs::read_dir(pool).into_iter().flatten();
    let runs = runs.filter_map(Result::ok).map(|entry| entry.path());
    let is_in_use = |run: &PathBuf| residual_zoo::runs::run_dir::is_in_use(run);
    runs.filter(is_in_use).collect()
}

/// Waits until exactly `count` runs of a pool are being trained.
fn wait_for(pool: &Path, count: usize) {
    let start = std::time::Instant::now();
    while in_use(pool).len() != count {
        assert!(start.elapsed().as_secs() < 60, "{:?}", in_use(pool));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn the_others_take_over_from_a_killed_worker() {
    let scratch = Scratch::new();
    let mut command = shared(&scratch);
    command.args(["--jobs", "2", "--set", "train.steps=1000"]);
    let process = command.spawn().unwrap();
    let pool = scratch.path("out").join("pool");
    wait_for(&pool, 2);
    // The lock file names the process, as in `process 123 on host`, a moment after the lock is taken.
    let run = in_use(&pool).swap_remove(0);
    let worker = loop {
        let lock = fs::read_to_string(run.join("lock")).unwrap();
        if let Some(worker) = lock.split_whitespace().nth(1) {
            break worker.to_string();
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    ok(Command::new("kill").args(["-9", &worker]));
    let output = end(process);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("a process ended early"), "{shown}");
    let observations = &results(&scratch.path("out").join("four"))["observations"];
    assert_eq!(observations.as_array().unwrap().len(), 4);
}

#[cfg(unix)]
#[test]
fn workers_end_with_the_process_that_started_them() {
    let scratch = Scratch::new();
    let mut command = shared(&scratch);
    command.args(["--jobs", "2", "--set", "train.steps=1000000"]);
    let mut process = command.spawn().unwrap();
    let pool = scratch.path("out").join("pool");
    wait_for(&pool, 2);
    process.kill().unwrap();
    ends(&mut process);
    wait_for(&pool, 0);
}

/// With `--force`, a repeated command would delete the finished runs.
#[cfg(unix)]
#[test]
fn a_stopped_sweep_with_force_is_continued_without_it() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let options = ["--over", RATES, "--force", "--set", "train.steps=100000000"];
    let mut command = sweep(&scratch, &file, &options);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = process.spawn().unwrap();
    wait_for(&scratch.path("out").join("pool"), 1);
    signal(&process, "-INT");
    let output = end(process);
    assert_eq!(output.status.code(), stopped_by("-INT"));
    let said = text(&output.stderr);
    let advice = "to continue: repeat the command without --force\n";
    assert!(said.ends_with(advice), "{said}");
}

#[cfg(unix)]
#[test]
fn a_stop_of_several_processes_says_how_to_continue() {
    let scratch = Scratch::new();
    let file = scratch.path("four.ron");
    drop(shared(&scratch));
    let four = fs::read_to_string(&file).unwrap();
    let (before, after) = four.split_once("runs: [").unwrap();
    let short = "(name: \"short\", model: Gpt2(n_layer: 1, n_head: 1, width: 4, context: 8), set: [\"train.steps=2\"]),";
    let long = before.replacen("train: (steps: ", "train: (steps: 100000", 1);
    assert_ne!(before, long);
    fs::write(&file, format!("{long}runs: [{short}{after}")).unwrap();
    ok(shared(&scratch).args(["--only", "short"]));
    let mut command = shared(&scratch);
    command.args(["--jobs", "2"]);
    let process = command.spawn().unwrap();
    wait_for(&scratch.path("out").join("pool"), 2);
    signal(&process, "-INT");
    let output = end(process);
    assert_eq!(output.status.code(), stopped_by("-INT"));
    let said = text(&output.stderr);
    assert!(
        said.ends_with("stopped; to continue: repeat the command\n"),
        "{said}"
    );
    // The report has the runs that were trained before.
    let found = results(&scratch.path("out").join("four"));
    let observations = found["observations"].as_array().unwrap();
    assert!(
        observations.iter().any(|found| found["run"] == "short"),
        "{found}"
    );
    assert!(
        observations.iter().all(|found| found["run"] == "short"),
        "{found}"
    );
    assert_eq!(found["missing"].as_array().unwrap().len(), 4, "{found}");
}

#[cfg(unix)]
#[test]
fn a_stop_before_the_first_result_keeps_the_earlier_report() {
    let scratch = Scratch::new();
    ok(&mut shared(&scratch));
    let directory = scratch.path("out").join("four");
    let earlier = results(&directory);
    let mut command = shared(&scratch);
    let process = command
        .args(["--set", "train.steps=1000000"])
        .spawn()
        .unwrap();
    wait_for(&scratch.path("out").join("pool"), 1);
    signal(&process, "-INT");
    let output = end(process);
    assert_eq!(output.status.code(), stopped_by("-INT"));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("there is nothing new to report; the earlier report stays: "),
        "{shown}"
    );
    assert_eq!(results(&directory), earlier);
}
