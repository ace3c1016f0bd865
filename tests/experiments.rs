//! Every RON file under `experiments/` can be built.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo::data::Source;
use residual_zoo::{ModelConfig, RunConfig, Zoo};

fn ron_files(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let nested = paths.flat_map(|path| {
        if path.is_dir() {
            ron_files(&path)
        } else {
            vec![path]
        }
    });
    nested
        .filter(|path| path.extension().is_some_and(|e| e == "ron"))
        .collect()
}

#[test]
fn every_file_is_valid_and_survives_writing_out() {
    let files = ron_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments"));
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        let config = RunConfig::read(&path).unwrap();
        config
            .validate(50_257)
            .unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let again = RunConfig::parse(&config.to_ron(), &path).unwrap();
        assert_eq!(config, again, "{path:?}");
    }
}

#[test]
fn any_field_can_be_set() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/gpt2/smoke.ron");
    let config = RunConfig::read(&path).unwrap();
    let set = |assignment: &str| config.clone().set(&[assignment.to_string()]).unwrap();
    assert_eq!(set("train.steps=7").train.steps, 7);
    assert_eq!(set("train.learning_rate=2e-4").train.learning_rate, 2e-4);
    assert_eq!(set("train.grad_clip=None").train.grad_clip, None);
    assert_eq!(
        set("train.checkpoint_every=5").train.checkpoint_every,
        Some(5)
    );
    let gpt2 = |assignment: &str| match set(assignment).model {
        ModelConfig::Plain(Zoo::Gpt2(gpt2)) => gpt2,
        other => panic!("{other:?}"),
    };
    let activation = gpt2("model.activation=GeluErf").activation;
    assert_eq!(activation, residual_zoo::core::Activation::GeluErf);
    assert_eq!(gpt2("model.Gpt2.width=48").width, 48);
    assert_eq!(
        set("data.source=TinyShakespeare").data.source,
        Source::TinyShakespeare
    );
    let source = set(r#"data.source={"Path":"x.txt"}"#).data.source;
    assert_eq!(source, Source::Path("x.txt".into()));
}
