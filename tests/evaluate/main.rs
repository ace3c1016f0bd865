//! Compares the evaluation of runs with a plain computation and with `lm_eval`.

#![allow(clippy::unwrap_used)]

mod lm_eval;
mod refused;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::backend::Flex;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo::Run;
use residual_zoo::core::{LanguageModel, ModelConfig as _};
use residual_zoo::data::{Tokenizer, TokenizerConfig};
use residual_zoo::evaluate::{Document, Error, Options, Results, Sample, Task, evaluate};
use residual_zoo_testing::program::{fails, ok, zoo as command};
use residual_zoo_testing::{root, runs, zoo};
use serde_json::Value;
use tempfile::TempDir;

/// Reads the tasks in `tests/evaluate/tasks`, whose documents are made up in the formats of the public tasks.
fn tasks() -> Vec<Task> {
    let folder = root().join("tests/evaluate/tasks");
    let names = [
        "lambada=lambada.jsonl",
        "hellaswag.jsonl",
        "piqa.jsonl",
        "arc.jsonl",
        "winogrande.jsonl",
        "wikitext.jsonl",
        "story.txt",
    ];
    let read = |name: &str| {
        let (kind, file) = name
            .split_once('=')
            .map_or((None, name), |(kind, file)| (Some(kind), file));
        let path = folder.join(file).display().to_string();
        Task::read(
            &kind.map_or(path.clone(), |kind| format!("{kind}={path}")),
            None,
        )
        .unwrap()
    };
    names.map(read).into()
}

/// Makes a byte-level BPE with an end-of-text token, whose id is not 0.
fn tokenizer() -> Tokenizer {
    let story = fs::read_to_string(root().join("tests/evaluate/tasks/story.txt")).unwrap();
    let bpe = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 300 }, &[&story]).unwrap();
    let end = r#""added_tokens":[{"id":300,"content":"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]"#;
    let json = bpe.to_hf_json().replace("\"added_tokens\":[]", end);
    Tokenizer::from_hf_json(json, "test").unwrap()
}

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a run of `model` with random weights.
    fn run(&self, name: &str, model: &residual_zoo::ModelConfig) -> Run {
        runs::untrained(model, &tokenizer(), &self.path(name));
        Run::open(self.path(name)).unwrap()
    }
}

fn options(directory: PathBuf) -> Options {
    Options {
        directory,
        batch: 3,
        stride: None,
    }
}

fn evaluated(run: &Run, tasks: &[Task], options: &Options) -> Vec<Results> {
    evaluate::<Flex, _>(run, tasks, options, &Default::default(), &mut |_, _, _| {
        true
    })
    .unwrap()
}

/// Reads the samples in a directory of results, in document order.
fn samples(directory: &Path, task: &str) -> Vec<Sample> {
    let text = fs::read_to_string(directory.join(format!("samples_{task}.jsonl"))).unwrap();
    let mut all: Vec<Sample> = text
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    all.sort_by_key(|sample| sample.doc_id);
    all
}

/// Computes the log-likelihood of the last `count` tokens of `ids`, from the logits of the whole sequence.
fn plain(run: &Run, model: &impl LanguageModel<Flex>, ids: &[u32], count: usize) -> f64 {
    let most = run.config.model.shape().context + 1;
    let ids: Vec<i32> = ids[ids.len().saturating_sub(most)..]
        .iter()
        .map(|&id| id as i32)
        .collect();
    let (inputs, targets) = (&ids[..ids.len() - 1], &ids[1..]);
    let inputs = TensorData::new(inputs.to_vec(), [1, inputs.len()]);
    let logits = model.forward(Tensor::<Flex, 2, Int>::from_data(
        inputs,
        &Default::default(),
    ));
    let vocabulary = logits.dims()[2];
    let all: Vec<f64> = log_softmax(logits, 2).into_data().iter::<f64>().collect();
    let place = |i: usize| all[i * vocabulary + targets[i] as usize];
    (targets.len() - count..targets.len()).map(place).sum()
}

#[test]
fn scores_are_those_of_the_whole_sequence_for_every_model() {
    let place = Place::new();
    let (tasks, tokenizer) = (tasks(), tokenizer());
    let models = [zoo::architectures(), zoo::compositions(), zoo::loops()].concat();
    for (i, (name, model)) in models.into_iter().enumerate() {
        let run = place.run(&format!("run{i}"), &model);
        let built = run.model::<Flex>(&Default::default()).unwrap();
        let out = place.path(&format!("out{i}"));
        evaluated(&run, &tasks, &options(out.clone()));
        let mut count = 0;
        for task in &tasks {
            let samples = samples(&out, &task.name);
            assert_eq!(samples.len(), task.len());
            for (number, sample) in samples.iter().enumerate() {
                let pairs = match task.document(number).unwrap() {
                    Document::Continue {
                        context,
                        continuation,
                    } => vec![(context.into(), continuation.into())],
                    Document::Choose { pairs, .. } => pairs,
                    // The tests against lm_eval cover windows instead.
                    Document::Roll { .. } => continue,
                };
                for ((context, continuation), found) in pairs.iter().zip(&sample.log_likelihoods) {
                    let both = tokenizer
                        .encode(&format!("{context}{continuation}"))
                        .unwrap();
                    let new = both.len() - tokenizer.encode(context).unwrap().len();
                    let expected = plain(&run, &built, &both, new);
                    let difference = (found - expected).abs();
                    assert!(
                        difference < 1e-4,
                        "{name}, {}: {found}, not {expected}",
                        task.name
                    );
                    count += 1;
                }
            }
        }
        assert_eq!(count, 8 + 16 + 8 + 15 + 8);
    }
}

#[test]
fn the_size_of_batches_does_not_matter() {
    let (place, tasks) = (Place::new(), tasks());
    let run = place.run("run", &zoo::rmt());
    for batch in [1, 64] {
        let out = place.path(&format!("out{batch}"));
        let options = Options {
            batch,
            ..options(out)
        };
        evaluated(&run, &tasks, &options);
    }
    for task in &tasks {
        let [one, many] = ["out1", "out64"].map(|out| samples(&place.path(out), &task.name));
        for (a, b) in one.iter().zip(&many) {
            assert_eq!((a.doc_id, &a.is_greedy), (b.doc_id, &b.is_greedy));
            let pairs = a.log_likelihoods.iter().zip(&b.log_likelihoods);
            pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{a} {b}"));
        }
    }
}

#[test]
fn a_smaller_stride_gives_tokens_more_context_and_predicts_each_once() {
    let (place, tasks) = (Place::new(), tasks());
    let story = &tasks[6..];
    let run = place.run("run", &zoo::gpt2());
    let tokens = |stride| {
        let out = place.path(&format!("out{stride:?}"));
        let options = Options {
            stride,
            ..options(out.clone())
        };
        evaluated(&run, story, &options);
        samples(&out, "story")[0].tokens
    };
    let text = fs::read_to_string(&story[0].path).unwrap();
    let all = tokenizer().encode(&text).unwrap().len();
    assert_eq!([tokens(None), tokens(Some(16)), tokens(Some(1))], [all; 3]);
}

#[test]
fn a_stopped_evaluation_goes_on_where_it_was() {
    let (place, tasks) = (Place::new(), tasks());
    let run = place.run("run", &zoo::gpt2());
    let whole = evaluated(&run, &tasks, &options(place.path("whole")));
    let out = options(place.path("out"));
    let mut calls = 0;
    loop {
        // Each try scores a few batches before it is stopped.
        let mut left = 12;
        let mut progress = |_: &str, _: usize, all: usize| {
            // While the documents are read, `all` is 0. Reading is quick, so these calls do not count.
            if all > 0 {
                calls += 1;
                left -= 1;
            }
            left >= 0
        };
        match evaluate::<Flex, _>(&run, &tasks, &out, &Default::default(), &mut progress) {
            Err(Error::Stopped) => {
                // The next try must ignore an incomplete line.
                let file = out.directory.join("samples_lambada.jsonl");
                let text = fs::read_to_string(&file).unwrap();
                fs::write(&file, text + "{\"doc_id\": 7, \"log").unwrap();
            }
            found => {
                let found = found.unwrap();
                for (a, b) in found.iter().zip(&whole) {
                    assert_eq!(
                        (&a.task, a.documents, &a.metrics),
                        (&b.task, b.documents, &b.metrics)
                    );
                }
                break;
            }
        }
        assert!(calls < 1000);
    }
    let json = |name: &str| fs::read(place.path(name).join("results.json")).unwrap();
    assert_eq!(json("out"), json("whole"));
    // With fewer documents, the scores of these documents are reused, and all other scores are kept.
    let mut few = tasks.clone();
    few.iter_mut().for_each(|task| task.truncate(1));
    let mut calls = 0;
    let mut count = |_: &str, _: usize, all: usize| {
        calls += usize::from(all > 0);
        true
    };
    let first = evaluate::<Flex, _>(&run, &few, &out, &Default::default(), &mut count).unwrap();
    assert_eq!((first[0].documents, calls), (1, 0));
    assert_eq!(samples(&out.directory, "lambada").len(), 8);
    // The results of other tasks stay.
    evaluated(&run, &tasks, &out);
    evaluated(&run, &tasks[..1], &out);
    assert_eq!(json("out"), json("whole"));
    // Another evaluation holds the lock of the directory.
    let lock = residual_zoo::runs::Lock::take(&out.directory).unwrap();
    let refused = evaluate::<Flex, _>(&run, &tasks, &out, &Default::default(), &mut |_, _, _| true);
    assert!(refused.unwrap_err().to_string().contains("in use"));
    drop(lock);
    // Other weights give other samples, so the earlier samples are set aside.
    let other = place.run("other", &zoo::rmt());
    let others = evaluated(&other, &tasks, &out);
    assert_ne!(others[0].metrics, whole[0].metrics);
    for (note, name) in others[0]
        .notes
        .iter()
        .zip(["samples_lambada.before-", "results.before-"])
    {
        assert!(note.contains(name), "{note}");
        let aside = fs::read_dir(&out.directory).unwrap().flatten();
        let mut names = aside.map(|entry| entry.file_name().to_string_lossy().into_owned());
        assert!(names.any(|found| found.starts_with(name)), "{name}");
    }
}

#[test]
fn an_evaluation_whose_directory_vanishes_ends_at_the_next_sample() {
    let (place, tasks) = (Place::new(), tasks());
    let run = place.run("run", &zoo::gpt2());
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 3] = [
        ("deleted", |out| fs::remove_dir_all(out).unwrap()),
        ("moved", |out| {
            fs::rename(out, out.with_file_name("elsewhere")).unwrap();
        }),
        ("replaced", |out| {
            let file = out.join("samples_lambada.jsonl");
            let text = fs::read(&file).unwrap();
            fs::rename(out, out.with_file_name("first")).unwrap();
            fs::create_dir(out).unwrap();
            fs::write(file, text).unwrap();
        }),
    ];
    for (what, harm) in harms {
        let out = options(place.path("out"));
        let mut calls = 0;
        let mut progress = |_: &str, _: usize, all: usize| {
            calls += usize::from(all > 0);
            // At the first batch, no sample is written yet.
            if all > 0 && calls == 1 {
                harm(&out.directory);
            }
            true
        };
        let found = evaluate::<Flex, _>(&run, &tasks, &out, &Default::default(), &mut progress);
        let error = found.unwrap_err();
        assert!(matches!(error, Error::Vanished(_)), "{what}: {error}");
        assert!(error.to_string().contains("has vanished"), "{error}");
        assert_eq!(calls, 1, "{what}");
    }
    // The evaluation continues in the new directory.
    let moved = options(place.path("elsewhere"));
    assert_eq!(evaluated(&run, &tasks, &moved).len(), tasks.len());
}

#[test]
fn the_making_of_requests_is_stopped_too() {
    let place = Place::new();
    let run = place.run("run", &zoo::gpt2());
    let file = place.path("long.txt");
    fs::write(&file, "word ".repeat(60_000)).unwrap();
    let task = Task::read(&file.display().to_string(), None).unwrap();
    let options = Options {
        stride: Some(1),
        ..options(place.path("out"))
    };
    let asked = |most: usize| {
        let (mut calls, mut is_stopped) = (0, false);
        let mut progress = |_: &str, _: usize, all: usize| {
            assert!(!is_stopped, "it goes on after {calls} calls");
            calls += 1;
            is_stopped = calls >= most || all > 0;
            !is_stopped
        };
        let tasks = std::slice::from_ref(&task);
        let found = evaluate::<Flex, _>(&run, tasks, &options, &Default::default(), &mut progress);
        assert!(matches!(found, Err(Error::Stopped)));
        calls
    };
    // The check can be stopped at each call of `progress`.
    let all = asked(usize::MAX);
    assert!(all > 20, "{all}");
    for most in 1..all {
        // The check also calls `progress` while it waits for a tokenizer, so the number of calls depends on the
        // machine.
        let calls = asked(most);
        assert!(calls == most || most > 20 && calls < most, "{calls} {most}");
    }
}

#[test]
fn empty_texts_and_single_words_are_scored_as_by_lm_eval() {
    let place = Place::new();
    let run = place.run("run", &zoo::gpt2());
    let built = run.model::<Flex>(&Default::default()).unwrap();
    let file = |name: &str, text: &str| {
        let path = place.path(name);
        fs::write(&path, text).unwrap();
        Task::read(&path.display().to_string(), None).unwrap()
    };
    let tokenizer = tokenizer();
    let likelihood = |text: &str| {
        let ids = [vec![300], tokenizer.encode(text).unwrap()].concat();
        plain(&run, &built, &ids, ids.len() - 1)
    };
    let texts = file("texts.jsonl", "{\"text\": \"hello\"}\n{\"text\": \"\"}\n");
    let words = place.path("words.jsonl");
    fs::write(&words, "{\"text\": \"hello\"}\n").unwrap();
    let words = Task::read(&format!("lambada={}", words.display()), None).unwrap();
    let out = options(place.path("out"));
    let found = evaluated(&run, &[texts, words], &out);
    let metric = |task: usize, name: &str| {
        let found = found[task]
            .metrics
            .iter()
            .find(|metric| metric.name == name);
        found.unwrap().value
    };
    let hello = likelihood("hello");
    let close = |found: f64, expected: f64| (found - expected).abs() <= 1e-4 * expected;
    // An empty text has one word and no bytes.
    assert!(close(metric(0, "word_perplexity"), (-hello / 2.0).exp()));
    assert!(close(metric(0, "byte_perplexity"), (-hello / 5.0).exp()));
    assert_eq!(samples(&out.directory, "texts")[1].log_likelihoods, [0.0]);
    // A second evaluation reuses the samples of the documents.
    assert_eq!(
        evaluated(
            &run,
            &[file(
                "texts.jsonl",
                "{\"text\": \"hello\"}\n{\"text\": \"\"}\n"
            )],
            &out
        )[0]
        .notes,
        ["2 of 2 documents were scored before"]
    );
    // A single word is predicted after the token between documents.
    assert!(close(
        metric(1, "perplexity"),
        (-likelihood(" hello")).exp()
    ));
    let empty = place.path("empty.jsonl");
    fs::write(&empty, "{\"text\": \"\"}\n{\"text\": \"\"}\n").unwrap();
    let error = Task::read(&empty.display().to_string(), None).unwrap_err();
    assert!(error.to_string().contains("only empty texts"), "{error}");
}

#[test]
fn the_program_prints_metrics_and_writes_results() {
    let place = Place::new();
    place.run("run", &zoo::gpt2());
    let folder = root().join("tests/evaluate/tasks");
    let mut evaluate = command("evaluate");
    evaluate
        .arg(place.path("run"))
        .arg("--out")
        .arg(place.path("out"));
    evaluate
        .arg("--task")
        .arg(folder.join("hellaswag.jsonl"))
        .args(["--limit", "3"]);
    let shown = ok(evaluate.arg("--task").arg(folder.join("story.txt")));
    for part in [
        "hellaswag (hellaswag, 3 of 4 documents)",
        "acc_norm",
        "bits_per_byte",
        "results.json",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let mut wide = command("evaluate");
    wide.arg(place.path("run"))
        .arg("--task")
        .arg(folder.join("story.txt"));
    fails(
        wide.args(["--stride", "100000"]),
        2,
        &["`--stride` is 100000, but the model reads "],
    );
    let json = fs::read(place.path("out/results.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["n-samples"]["hellaswag"]["effective"], 3);
    assert_eq!(json["n-samples"]["hellaswag"]["original"], 4);
    assert_eq!(json["configs"]["story"]["kind"], "text");
    assert!(json["configs"]["story"]["stride"].is_number());
    assert!(json["results"]["hellaswag"]["acc_stderr,none"].is_number());
}
