//! Damaged samples, and tasks that are refused.

use super::*;

#[test]
fn samples_of_another_kind_are_not_taken_for_those_of_this_one() {
    let place = Place::new();
    let run = place.run("run", &zoo::gpt2());
    let file = root().join("tests/evaluate/tasks/lambada.jsonl");
    let task = |kind: &str| Task::read(&format!("{kind}{}", file.display()), None).unwrap();
    let alone = options(place.path("alone"));
    let expected = evaluated(&run, &[task("lambada=")], &alone)[0]
        .metrics
        .clone();
    // Without a kind, the file is text.
    let both = options(place.path("both"));
    evaluated(&run, &[task("")], &both);
    let found = &evaluated(&run, &[task("lambada=")], &both)[0];
    assert_eq!(found.metrics, expected);
    assert!(
        found.notes[0].contains("samples_lambada.before-"),
        "{:?}",
        found.notes
    );
}

#[test]
fn samples_and_results_of_another_config_or_tokenizer_are_not_kept() {
    let place = Place::new();
    let mut run = place.run("run", &zoo::gpt2());
    let file = root().join("tests/evaluate/tasks/lambada.jsonl");
    let task = [Task::read(&format!("lambada={}", file.display()), None).unwrap()];
    let here = options(place.path("here"));
    evaluated(&run, &task, &here);
    assert!(evaluated(&run, &task, &here)[0].notes[0].contains("scored before"));
    let config = run.config.clone();
    run.config = config.clone().set(&["model.norm_eps=0.5".into()]).unwrap();
    let edited = &evaluated(&run, &task, &here)[0];
    assert!(
        edited.notes[0].contains("samples_lambada.before-")
            && edited.notes[1].contains("results.before-"),
        "{:?}",
        edited.notes
    );
    run.config = config;
    evaluated(&run, &task, &here);
    let other = run.tokenizer.to_hf_json();
    let other = other.replace("\"lstrip\":false", "\"lstrip\":true");
    run.tokenizer = Tokenizer::from_hf_json(other, "test").unwrap();
    let other = &evaluated(&run, &task, &here)[0];
    assert!(
        other.notes[0].contains("samples_lambada.before-")
            && other.notes[1].contains("results.before-"),
        "{:?}",
        other.notes
    );
}

#[test]
fn damaged_samples_are_scored_again() {
    let (place, tasks) = (Place::new(), tasks());
    let run = place.run("run", &zoo::gpt2());
    let out = options(place.path("out"));
    let whole = evaluated(&run, &tasks[..2], &out);
    for (file, from, to) in [
        (
            "samples_lambada.jsonl",
            "\"log_likelihoods\":[",
            "\"log_likelihoods\":[],\"x\":[",
        ),
        (
            "samples_lambada.jsonl",
            "\"is_greedy\":[false]",
            "\"is_greedy\":[]",
        ),
        (
            "samples_hellaswag.jsonl",
            "\"log_likelihoods\":[-",
            "\"log_likelihoods\":[",
        ),
    ] {
        let path = out.directory.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let again = evaluated(&run, &tasks[..2], &out);
        for (a, b) in again.iter().zip(&whole) {
            assert_eq!(a.metrics, b.metrics, "{file}, {to}");
        }
    }
}

/// A resumed evaluation trusts only the samples that it has written, and scores the others again.
#[test]
fn edited_samples_are_scored_again() {
    let (place, tasks) = (Place::new(), tasks());
    let run = place.run("run", &zoo::gpt2());
    let out = options(place.path("out"));
    let whole = evaluated(&run, &tasks[..1], &out);
    let path = out.directory.join("samples_lambada.jsonl");
    let good = fs::read_to_string(&path).unwrap();
    let second = good.lines().nth(2).unwrap();
    let other = place.path("other");
    evaluated(&run, &tasks[1..2], &options(other.clone()));
    let of_other = fs::read_to_string(other.join("samples_hellaswag.jsonl")).unwrap();
    let of_other = of_other.lines().nth(1).unwrap();
    for (edited, damaged) in [
        // A better score, another document, a sample of an earlier version, a sample of another task, and a missing
        // sample.
        (
            good.replacen("\"log_likelihoods\":[-", "\"log_likelihoods\":[-0", 1),
            1,
        ),
        (
            good.replacen("\"is_greedy\":[false]", "\"is_greedy\":[true]", 1),
            1,
        ),
        (good.replacen("\"doc_id\":1", "\"doc_id\":2", 1), 1),
        (
            good.replacen(&second[second.find(",\"blake3\"").unwrap()..], "}", 1),
            1,
        ),
        (good.replacen(second, of_other, 1), 1),
        (good.replacen(&format!("{second}\n"), "", 1), 0),
    ] {
        assert_ne!(edited, good);
        fs::write(&path, &edited).unwrap();
        let again = &evaluated(&run, &tasks[..1], &out)[0];
        assert_eq!(again.metrics, whole[0].metrics, "{edited}");
        let noted = "1 sample in ";
        let notes = again.notes.iter().filter(|note| note.starts_with(noted));
        assert_eq!(notes.count(), damaged, "{:?}", again.notes);
        // Each document has one line again.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(String::from).collect();
            lines.sort();
            lines
        };
        let left = fs::read_to_string(&path).unwrap();
        assert_eq!(sorted(&left).len(), sorted(&good).len());
        assert_eq!(samples(&out.directory, "lambada").len(), whole[0].documents);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_batch_that_does_not_fit_into_memory_is_refused() {
    use residual_zoo_testing::program::in_shell;
    let place = Place::new();
    let mut model = zoo::gpt2();
    for layer in &mut model.layers {
        let residual_zoo::Zoo::Gpt2(config) = layer else {
            panic!("{layer:?}");
        };
        (config.width, config.context) = (64, 256);
    }
    place.run("run", &model);
    // The shell's memory limit is lower than the memory of most machines.
    let evaluate = |batch: &str, more: &[&str]| {
        let mut evaluate = command("evaluate");
        evaluate
            .arg(place.path("run"))
            .arg("--out")
            .arg(place.path("out"));
        evaluate
            .arg("--task")
            .arg(root().join("tests/evaluate/tasks/story.txt"));
        evaluate.args(["--batch", batch]).args(more);
        in_shell("ulimit -v 6000000", &evaluate)
    };
    let says = [
        "`--batch` is 100000",
        "about",
        "(`ulimit -v`)",
        "smaller number",
        "--force",
    ];
    fails(&mut evaluate("100000", &[]), 2, &says);
    ok(&mut evaluate("8", &[]));
    // The text has few windows, so even this batch fits.
    ok(&mut evaluate("100000", &["--force"]));
}

/// The memory check of an evaluation counts the longest request, not the context.
#[test]
fn the_longest_request_is_known_before_the_model_is_loaded() {
    use residual_zoo::evaluate::{longest, most_tokens};
    let place = Place::new();
    let file = place.path("text.txt");
    fs::write(&file, "é".repeat(20)).unwrap();
    let tasks = [Task::read(&file.display().to_string(), None).unwrap()];
    let chars = Tokenizer::train(&TokenizerConfig::Chars, &["é"]).unwrap();
    // The request has one token before the text and 20 of the text. The last token is only predicted.
    let exact = |context| longest(&tasks, &chars, (context, context), || true).unwrap();
    assert_eq!(exact(1000), 20);
    assert_eq!(exact(8), 8);
    // Without a tokenizer, every byte counts as a token.
    assert_eq!(most_tokens(&tasks, 1000).unwrap(), 41);
    assert_eq!(most_tokens(&tasks, 8).unwrap(), 8);
    let stopped = longest(&tasks, &chars, (8, 8), || false);
    assert!(matches!(stopped, Err(Error::Stopped)));
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_samples_is_refused() {
    let place = Place::new();
    place.run("run", &zoo::gpt2());
    fs::create_dir(place.path("out")).unwrap();
    let pipe = place.path("out/samples_piqa.jsonl");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut evaluate = command("evaluate");
    evaluate
        .arg(place.path("run"))
        .arg("--out")
        .arg(place.path("out"));
    evaluate
        .arg("--task")
        .arg(root().join("tests/evaluate/tasks/piqa.jsonl"));
    fails(
        &mut evaluate,
        2,
        &["samples_piqa.jsonl", "not a regular file"],
    );
}

#[test]
fn bad_tasks_are_named_with_their_line() {
    let place = Place::new();
    place.run("run", &zoo::gpt2());
    let file = place.path("task.jsonl");
    let good = r#"{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}"#;
    for (text, says) in [
        ("", ["task.jsonl", "no documents"]),
        ("{\"goal\": \"a\"", ["line 1", "JSON"]),
        ("{\"colour\": 1}", ["colour", "KIND=FILE"]),
        (
            "GOOD\n\n{\"goal\": \"a\", \"sol1\": \"b\"}",
            ["line 3", "`sol2`"],
        ),
        ("GOOD\n{\"goal\": 1}", ["line 2", "`goal` is not a text"]),
        (
            r#"{"goal": "a", "sol1": "b", "sol2": "c", "label": 2}"#,
            ["line 1", "the number of choices is 2"],
        ),
        (
            r#"{"goal": "a", "sol1": "b", "sol2": "c", "label": -1}"#,
            ["line 1", "`label`"],
        ),
        (
            r#"{"question": "a", "choices": {"text": ["b"], "label": ["A"]}, "answerKey": "B"}"#,
            ["line 1", "answerKey"],
        ),
        (
            r#"{"sentence": "a", "option1": "b", "option2": "c", "answer": "1"}"#,
            ["line 1", "`_`"],
        ),
        (
            r#"{"goal": "a", "sol1": "b", "sol2": "LONG", "label": 0}"#,
            ["document 0", "tokens"],
        ),
    ] {
        let text = text
            .replace("GOOD", good)
            .replace("LONG", &"word ".repeat(300));
        fs::write(&file, text).unwrap();
        let mut evaluate = command("evaluate");
        evaluate
            .arg(place.path("run"))
            .arg("--task")
            .arg(&file)
            .arg("--out")
            .arg(place.path("out"));
        fails(&mut evaluate, 2, &says);
    }
    let mut evaluate = command("evaluate");
    evaluate
        .arg(place.path("run"))
        .args(["--task", "lambada=missing.jsonl"]);
    fails(&mut evaluate, 2, &["missing.jsonl", "does not exist"]);
}

#[test]
fn lines_that_python_writes_are_read_or_refused_with_a_remedy() {
    let place = Place::new();
    let read = |line: &str| {
        let path = place.0.path().join("odd.jsonl");
        fs::write(&path, format!("{{\"text\": \"NaN\"}}\n{line}\n")).unwrap();
        let task = Task::read(&path.display().to_string(), None);
        task.map(|task| task.document(1).unwrap())
            .map_err(|error| error.to_string())
    };
    let document = |bytes: usize| move |found: &Document| matches!(found, Document::Roll { bytes: b, .. } if *b == bytes);
    let odd = r#"{"score": NaN, "other": [-Infinity, "\ud800"], "text": "Infinity"}"#;
    assert!(read(odd).as_ref().is_ok_and(document(8)));
    for (line, says) in [
        (r#"{"text": NaN}"#, "line 2: `text` is not a text"),
        (r#"{"text": "a \ud800"}"#, "line 2: `text` cannot be read"),
        (r#"{"text": "a \ud800"}"#, "write \\ufffd in its place"),
        (r#"{"text": "a", NaN}"#, "line 2: is not a JSON object"),
    ] {
        let error = read(line).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let path = place.0.path().join("wide.jsonl");
    let wide: Vec<u8> = odd.encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(&path, wide).unwrap();
    let error = Task::read(&path.display().to_string(), None).unwrap_err();
    assert!(error.to_string().contains("iconv -f UTF-16LE"), "{error}");
}

#[test]
fn a_kind_that_is_not_known_is_named() {
    let file = root().join("tests/evaluate/tasks/lambada.jsonl");
    let refused = |task: &str| Task::read(task, None).unwrap_err().to_string();
    let error = refused(&format!("lambda={}", file.display()));
    assert!(
        error.contains("no known kind `lambda`") && error.contains("lambada"),
        "{error}"
    );
    let error = refused("hellaswag");
    assert!(error.contains("hellaswag=FILE"), "{error}");
}

#[test]
fn a_question_with_too_many_choices_is_refused() {
    let place = Place::new();
    let file = place.path("many.jsonl");
    let endings = vec!["x"; 1000];
    let line = serde_json::json!({
        "activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": endings, "label": 0,
    });
    fs::write(&file, line.to_string()).unwrap();
    let error = Task::read(&file.display().to_string(), None).unwrap_err();
    assert!(error.to_string().contains("1000 choices"), "{error}");
}
