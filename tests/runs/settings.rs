//! Programs pass settings to the C libraries that they use, in the process that the user started.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use residual_zoo_testing::program::{ends, fails, ok, zoo};

/// Returns the environment of a running program, as soon as it contains `wanted`, or after 20 seconds.
fn environment(child: &Child, wanted: &str) -> Vec<String> {
    let start = Instant::now();
    loop {
        let bytes = std::fs::read(format!("/proc/{}/environ", child.id())).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let found: Vec<String> = text.split('\0').map(String::from).collect();
        if found.iter().any(|entry| entry == wanted) || start.elapsed() > Duration::from_secs(20) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn freed_memory_is_kept_unless_the_user_says_otherwise() {
    let bench = || {
        let mut command = zoo("bench");
        command.args(["gpt2/smoke", "--steps", "100000"]);
        command
    };
    let mut child = start(bench().env_remove("MALLOC_MMAP_MAX_"));
    let found = environment(&child, "MALLOC_MMAP_MAX_=0");
    assert!(
        found.iter().any(|entry| entry == "MALLOC_MMAP_MAX_=0"),
        "{found:?}"
    );
    child.kill().ok();
    ends(&mut child);

    let mut child = start(bench().env("MALLOC_MMAP_MAX_", "7"));
    let found = environment(&child, "MALLOC_TRIM_THRESHOLD_=8000000000");
    assert!(
        found.iter().any(|entry| entry == "MALLOC_MMAP_MAX_=7"),
        "{found:?}"
    );
    child.kill().ok();
    ends(&mut child);
}

#[test]
fn a_form_of_operations_that_does_not_exist_is_named() {
    fails(
        zoo("list").env("RESIDUAL_ZOO_OPS", "plian"),
        2,
        &["RESIDUAL_ZOO_OPS is `plian`; set it to `plain`"],
    );
    ok(zoo("list").env("RESIDUAL_ZOO_OPS", ""));
}
