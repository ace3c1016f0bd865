//! Checks that the experiments do not change. `experiment_hashes.txt` has a line for each scale of an experiment, and a
//! line for each of its runs. As long as the line of a run stays the same, the pool finds the trained run. To write the
//! list again, after an intended change:
//!
//! ```sh
//! WRITE_HASHES=1 cargo test --release --workspace --test lab same
//! ```

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use residual_zoo::backend::BackendKind;
use residual_zoo::data::{Corpus, Examples, Tokenizer, Tokens, hash_of_parts};
use residual_zoo::experiment::{Experiment, PlannedRun};
use residual_zoo::lab::{Options, Pool};
use residual_zoo_testing::root;
use serde::Serialize;

use crate::suite_files::{experiment, experiments, scales};

const LIST: &str = "tests/lab/experiment_hashes.txt";

/// Returns the first digits of a hash of a serialized value.
fn hash(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap();
    hash_of_parts("experiment hashes", &[text.as_bytes()]).to_hex()[..12].to_owned()
}

/// Makes a corpus whose identity is the config of its data, so that no data are needed.
fn stand_in(run: &PlannedRun) -> Corpus {
    let config = run.config.as_ref().unwrap();
    let tokens = || Examples::Text(Tokens::from_vec(vec![0]));
    Corpus {
        train: tokens(),
        valid: tokens(),
        tokenizer: Tokenizer::words(vec!["0".into()]).unwrap(),
        outputs: 1,
        bytes_per_token: None,
        identity: format!("{:?}", config.data),
        entropy: None,
        note: None,
    }
}

/// Returns the directories of `planned` in the pool, for the first seed of the experiment.
fn directories(experiment: &Experiment, planned: &[PlannedRun]) -> Vec<String> {
    let options = Options::new(Path::new("pool"), BackendKind::Flex);
    let corpora: Vec<Corpus> = planned.iter().map(stand_in).collect();
    let corpora: Vec<&Corpus> = corpora.iter().collect();
    let mut same = planned.to_vec();
    let seed = experiment.seeds[0];
    for run in &mut same {
        // The list has every run, including runs that have other seeds.
        run.seeds = None;
    }
    let found = Pool::open(&options).runs(&same, &[seed], &corpora);
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    found.iter().map(name).collect()
}

/// Returns the lines of an experiment at one scale.
fn lines(paper: &str, name: &str, scale: &str) -> String {
    let experiment = experiment(paper, name, scale);
    let planned = experiment.plan(&[]).unwrap();
    let mut whole = serde_json::to_value(&experiment).unwrap();
    let fields = whole.as_object_mut().unwrap();
    // The pool's hashes of the runs replace these two fields, and stay the same when a config gets a new field.
    for field in ["runs", "train"] {
        let _ = fields.remove(field);
    }
    let [about, charts, claims] =
        ["about", "charts", "claims"].map(|field| hash(&fields.remove(field).unwrap()));
    let mut text = format!(
        "{name} {scale}: {} about {about} charts {charts} claims {claims}\n",
        hash(&whole)
    );
    let trained: Vec<PlannedRun> = planned
        .iter()
        .filter(|run| run.config.is_some())
        .cloned()
        .collect();
    let mut directories = directories(&experiment, &trained).into_iter();
    for run in planned {
        let directory = run.config.as_ref().map(|_| directories.next().unwrap());
        let rest = (&run.line, &run.after, &run.seeds, &run.values);
        let hashes = [
            directory.unwrap_or_else(|| "nothing".into()),
            hash(&serde_json::to_value(rest).unwrap()),
            hash(&serde_json::to_value(&run.published).unwrap()),
        ];
        writeln!(text, "{name} {scale}, {}: {}", run.name, hashes.join(" ")).unwrap();
    }
    text
}

#[test]
fn every_run_and_claim_of_the_experiments_is_the_same() {
    let mut text = String::new();
    for (paper, name) in experiments() {
        for scale in scales(&paper, &name) {
            text += &lines(&paper, &name, &scale);
        }
    }
    let path = root().join(LIST);
    if std::env::var_os("WRITE_HASHES").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    let differ: Vec<&str> = text
        .lines()
        .filter(|line| !expected.lines().any(|known| known == *line))
        .collect();
    assert!(
        differ.is_empty(),
        "{} lines differ:\n{}",
        differ.len(),
        differ.join("\n")
    );
    assert_eq!(text, expected);
}
