use std::fs;
use std::path::Path;

use super::*;

fn report(directory: &Path, results: Option<&str>) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join(REPORT), "<html>").unwrap();
    if let Some(text) = results {
        fs::write(directory.join("results.json"), text).unwrap();
    }
}

#[test]
fn the_index_links_every_report_whatever_else_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let results = |title: &str, date: &str| {
        format!(
            r#"{{"title": "{title}", "date": "{date}", "origin": {{"scale": "cpu", "name": "x"}},
            "missing": ["one"], "more": 1, "claims": [{{"verdict": "holds"}}, {{"verdict": "holds"}},
            {{"verdict": "does-not-hold", "because": "so"}}, {{"verdict": "not-tested"}}]}}"#
        )
    };
    report(
        &root.join("old one"),
        Some(&results("Old <b>", "2025-01-01 10:00 UTC")),
    );
    report(
        &root.join("new#1"),
        Some(&results("New", "2026-01-01 10:00 UTC")),
    );
    report(&root.join("broken"), Some("{\"title\": "));
    report(&root.join("comparison"), None);
    // Entries that are not reports.
    fs::create_dir_all(root.join("pool/run")).unwrap();
    fs::write(root.join("notes.txt"), "mine").unwrap();
    fs::create_dir_all(root.join("folder").join(REPORT)).unwrap();
    write_index(root).unwrap();
    write_index(root).unwrap();

    let html = fs::read_to_string(root.join(INDEX)).unwrap();
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}: {html}"));
    let new = place(r#"<a href="new%231/report.html">New</a> <small>new#1</small>"#);
    let old = place(r#"<a href="old%20one/report.html">Old &lt;b&gt;</a>"#);
    assert!(new < old);
    place("<small>not complete</small>");
    place("2026-01-01 10:00 UTC</td>");
    place(r#"class="num good" data-label="✓ holds">2</td>"#);
    place(r#"class="num bad" data-label="✗ does not hold">1</td>"#);
    place(r#"class="num" data-label="? undecided">0</td>"#);
    place(r#"<a href="broken/report.html">broken</a> <small>its results cannot be read</small>"#);
    place(r#"<a href="comparison/report.html">comparison</a>"#);
    assert!(!html.contains("notes") && !html.contains("pool") && !html.contains("folder"));
    let files = fs::read_dir(root).unwrap().count();
    assert_eq!(files, 8, "no part of a page is left");
}

#[test]
fn the_index_reads_what_results_write() {
    let directory = tempfile::tempdir().unwrap();
    super::results::results(&[])
        .write(&directory.path().join("question-cpu"))
        .unwrap();
    write_index(directory.path()).unwrap();
    let html = fs::read_to_string(directory.path().join(INDEX)).unwrap();
    assert!(
        html.contains(">A question</a> <small>question-cpu</small>"),
        "{html}"
    );
    assert!(
        html.contains(r#"class="num good" data-label="✓ holds">1</td>"#),
        "{html}"
    );
}
