//! Tests a panic while the dashboard is open, in a terminal that the command `script` provides.

use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use crate::dashboard::{Dashboard, Display, Title, Unit};

const PANICS: &str = "RESIDUAL_ZOO_TEST_PANICS";

#[test]
fn a_panic_leaves_the_screen_before_its_message() {
    if std::env::var_os(PANICS).is_some() {
        return panics();
    }
    let test = std::env::current_exe().unwrap();
    let name = thread::current().name().unwrap().to_owned();
    let line = format!(
        "stty rows 24 cols 80; {PANICS}=1 '{}' --exact {name} --nocapture; stty -a",
        test.display()
    );
    let output = Command::new("script")
        .args(["--quiet", "--command", &line, "/dev/null"])
        .env("TERM", "xterm-256color")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let entered = shown.find("\x1b[?1049h").unwrap();
    let left = shown.rfind("\x1b[?1049l").unwrap();
    assert!(entered < left, "{shown:?}");
    for text in ["a note", "out of memory"] {
        assert!(shown[left..].contains(text), "no {text:?} in {shown:?}");
    }
    assert!(
        shown.contains(" icanon") && shown.contains(" echo "),
        "{shown:?}"
    );
}

/// Opens the dashboard and panics, as a backend does if it runs out of memory.
fn panics() {
    let about = About {
        title: &Title::default(),
        model: "GPT-2",
        parameters: 1,
        seed: 1,
        directory: Path::new("runs/a"),
        steps: (0, 10),
        unit: Unit::Tokens(None),
    };
    let mut dashboard = Dashboard::open(Display::Terminal, &about, &Interrupter::new());
    dashboard.note("a note");
    thread::sleep(Duration::from_millis(300));
    panic!("out of memory");
}
