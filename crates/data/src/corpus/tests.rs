mod cache;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use residual_zoo_system::Blame as _;

use super::*;
use crate::cache::Manifest;
use crate::testing::random_text;
use crate::{Batch, Sequences, Stage};

const TEXT: &str = "The quick brown fox jumps over the lazy dog; ça alors!\n";

fn tokens(examples: &Examples) -> &Tokens {
    examples.text().unwrap()
}

/// A directory with a source file and a cache.
struct Setup {
    dir: TempDir,
    config: DataConfig,
}

impl Setup {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input.txt");
        let config = DataConfig {
            source: Source::Path(path),
            cache: Some(dir.path().join("deep/cache")),
            ..DataConfig::default()
        };
        let setup = Self { dir, config };
        setup.write(text);
        setup
    }

    fn write(&self, text: &str) {
        fs::write(self.dir.path().join("input.txt"), text).unwrap();
    }

    fn open(&self) -> Corpus {
        Corpus::open(&self.config).unwrap()
    }

    fn entries(&self) -> Vec<PathBuf> {
        let root = self.config.cache.as_ref().unwrap();
        fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    /// Returns the only entry.
    fn entry(&self) -> PathBuf {
        let entries = self.entries();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries[0].clone()
    }

    fn modified(&self) -> SystemTime {
        fs::metadata(self.entry().join("manifest.json"))
            .unwrap()
            .modified()
            .unwrap()
    }
}

fn ids(tokens: &Tokens) -> Vec<u32> {
    let mut ids = Vec::new();
    tokens.read(0, tokens.len(), &mut ids);
    ids
}

fn is_in_memory(corpus: &Corpus) -> bool {
    format!("{:?}", corpus.train).contains("memory")
}

fn fixed(sequences: &Sequences, batches: usize, batch: usize) -> Vec<Batch> {
    let batches = sequences.fixed_batches(batches, batch);
    batches.map(Result::unwrap).collect()
}

#[test]
fn the_end_of_the_text_is_for_validation() {
    let text = TEXT.repeat(20);
    for tokenizer in [
        TokenizerConfig::Bytes,
        TokenizerConfig::Chars,
        TokenizerConfig::Bpe { vocab_size: 300 },
    ] {
        let mut setup = Setup::new(&text);
        setup.config.tokenizer = tokenizer;
        let corpus = setup.open();
        assert!(!is_in_memory(&corpus));
        let decode = |tokens: &Tokens| corpus.tokenizer.decode(&ids(tokens)).unwrap();
        let (train, valid) = (decode(tokens(&corpus.train)), decode(tokens(&corpus.valid)));
        assert_eq!(train.clone() + &valid, text);
        assert_eq!(train.len(), text.len() * 9 / 10);
        let ratio = valid.len() as f64 / tokens(&corpus.valid).len() as f64;
        assert_eq!(corpus.bytes_per_token, Some(ratio));
        assert_eq!((corpus.note, corpus.entropy), (None, None));
    }
}

#[test]
fn the_split_moves_on_to_a_whole_character() {
    let mut setup = Setup::new("ééééé");
    setup.config.valid_fraction = 0.5;
    let corpus = setup.open();
    assert_eq!(
        (tokens(&corpus.train).len(), tokens(&corpus.valid).len()),
        (3, 2)
    );
    for seed in 0..20 {
        setup.write(&random_text(seed, 50));
        setup.config.valid_fraction = 0.03 + seed as f64 * 0.047;
        let corpus = setup.open();
        assert_eq!(
            tokens(&corpus.train).len() + tokens(&corpus.valid).len(),
            50
        );
    }
}

#[test]
fn a_text_that_changes_while_it_is_read_is_refused() {
    let setup = Setup::new(&TEXT.repeat(500));
    let changed = Corpus::open_with(&setup.config, &mut |stage, _, _| {
        // The whole text was read once.
        if stage == Stage::Reading {
            setup.write(&TEXT.replace("quick", "kciuq").repeat(500));
        }
        true
    });
    assert!(matches!(changed, Err(DataError::Changed { .. })));
    // The old entry is gone, and the next process reads the new text.
    assert!(setup.entries().is_empty());
    assert_eq!(setup.open().note, None);
}

#[test]
fn compressed_and_separated_documents_have_the_tokens_of_the_text() {
    let documents: Vec<String> = (0..30).map(|seed| random_text(seed, 500)).collect();
    let mut plain = Setup::new(&documents.join("<|end|>"));
    let lines: String = documents
        .iter()
        .map(|text| serde_json::json!({ "text": text }).to_string() + "\n")
        .collect();
    let path = plain.dir.path().join("lines.jsonl.zst");
    fs::write(
        &path,
        zstd::stream::encode_all(lines.as_bytes(), 1).unwrap(),
    )
    .unwrap();
    let config = DataConfig {
        source: Source::Path(path),
        separator: "<|end|>".into(),
        ..plain.config.clone()
    };
    let found = Corpus::open(&config).unwrap();
    plain.config.cache = Some(plain.dir.path().join("other"));
    let expected = plain.open();
    assert_eq!(found.identity, expected.identity);
    assert_eq!(
        (ids(tokens(&found.train)), ids(tokens(&found.valid))),
        (ids(tokens(&expected.train)), ids(tokens(&expected.valid)))
    );
}

#[test]
fn a_tokenizer_file_is_identified_by_its_content() {
    let mut setup = Setup::new(&TEXT.repeat(10));
    let file = setup.dir.path().join("tokenizer.json");
    let train = |text: &str| {
        let bpe = TokenizerConfig::Bpe { vocab_size: 260 };
        let json = Tokenizer::train(&bpe, &[text]).unwrap().to_json();
        let envelope: serde_json::Value = serde_json::from_str(&json).unwrap();
        fs::write(&file, envelope["json"].as_str().unwrap()).unwrap();
    };
    setup.config.tokenizer = TokenizerConfig::File(file.clone());
    train("hello hello hello");
    let first = setup.open();
    train(TEXT);
    let second = setup.open();
    assert_ne!(first.identity, second.identity);
    assert_eq!(setup.entries().len(), 2);
}

#[test]
fn invalid_settings_are_refused() {
    let mut setup = Setup::new(TEXT);
    for fraction in [0.0, 1.0, -0.1, 1.5, f64::NAN, f64::INFINITY] {
        setup.config.valid_fraction = fraction;
        let error = Corpus::open(&setup.config).unwrap_err();
        assert!(
            matches!(error, DataError::InvalidConfig { .. }),
            "{fraction}: {error}"
        );
    }
    setup.config.valid_fraction = 0.1;
    setup.config.tokenizer = TokenizerConfig::Bpe { vocab_size: 5 };
    assert!(Corpus::open(&setup.config).unwrap_err().is_bad_input());
    let parse = serde_json::from_str::<DataConfig>;
    assert_eq!(parse("{}").unwrap(), DataConfig::default());
    assert!(parse("{\"valid_fractoin\": 0.2}").is_err());
}

#[test]
fn missing_and_empty_sources_are_named() {
    let mut setup = Setup::new("");
    let error = Corpus::open(&setup.config).unwrap_err();
    assert!(matches!(&error, DataError::Empty { path } if path.ends_with("input.txt")));
    setup.config.source = Source::Path(setup.dir.path().join("none"));
    let error = Corpus::open(&setup.config).unwrap_err();
    assert!(matches!(&error, DataError::NotFound { path } if path.ends_with("none")));
}

#[test]
fn copy_tasks_and_images_are_corpora() {
    let copying = CopyConfig::default();
    let config = DataConfig {
        source: Source::Copying(copying.clone()),
        ..DataConfig::default()
    };
    let corpus = Corpus::open(&config).unwrap();
    assert_eq!((corpus.tokenizer.vocab_size(), corpus.outputs), (16, 16));
    assert_eq!(config.time(), Some(160));
    assert!(corpus.train.check(16, 16).is_ok());
    assert!(corpus.train.check(15, 16).is_err() && corpus.train.check(16, 15).is_err());
    let sequences = corpus.train.sequences(7, "training").unwrap();
    let batch = sequences.random_batch(0, 0, 0, 2).unwrap();
    assert_eq!((batch.time, batch.scored, batch.batch), (160, 16, 2));
    let shown = corpus.tokenizer.decode(&batch.inputs[..160]).unwrap();
    assert!(
        shown.ends_with("? ? ?") && shown.contains(". . ."),
        "{shown}"
    );
    // Validation has its own sequences, which are the same every time.
    let valid = corpus.valid.sequences(7, "validation").unwrap();
    assert_ne!(valid.random_batch(0, 0, 0, 2).unwrap(), batch);
    assert_eq!(fixed(&valid, 2, 3), fixed(&valid, 2, 3));

    let directory = tempfile::tempdir().unwrap();
    let record = |label: u8| [vec![label], vec![200; 3072]].concat();
    let batch = |labels: &[u8]| labels.iter().flat_map(|l| record(*l)).collect::<Vec<u8>>();
    fs::write(directory.path().join("data_batch_1.bin"), batch(&[3, 4, 5])).unwrap();
    fs::write(directory.path().join("test_batch.bin"), batch(&[7, 8])).unwrap();
    let config = DataConfig {
        source: Source::Cifar10(directory.path().into()),
        ..DataConfig::default()
    };
    let corpus = Corpus::open(&config).unwrap();
    assert_eq!((corpus.tokenizer.vocab_size(), corpus.outputs), (256, 10));
    let valid = corpus.valid.sequences(7, "validation").unwrap();
    let batches = fixed(&valid, 9, 1);
    let labels: Vec<u32> = batches.iter().flat_map(|b| b.targets.clone()).collect();
    assert_eq!(labels, [7, 8]);
    assert_eq!(batches[0].inputs, [200; 1024]);
    assert_eq!((batches[0].time, batches[0].scored), (1024, 1));
    assert!(corpus.train.check(256, 10).is_ok());
    assert!(corpus.train.check(255, 10).is_err() && corpus.train.check(256, 9).is_err());
    fs::write(directory.path().join("test_batch.bin"), batch(&[7, 9])).unwrap();
    assert_ne!(Corpus::open(&config).unwrap().identity, corpus.identity);
}

/// Makes two files, and a config that has them as its source.
fn two_texts(source: fn([PathBuf; 2]) -> Source) -> Setup {
    let mut setup = Setup::new(&TEXT.repeat(20));
    let other = setup.dir.path().join("other.txt");
    fs::write(&other, "0123456789".repeat(100)).unwrap();
    setup.config.source = source([setup.dir.path().join("input.txt"), other]);
    setup.config.tokenizer = TokenizerConfig::Bytes;
    setup
}

#[test]
fn a_list_of_texts_is_one_text() {
    let mut setup = two_texts(|paths| Source::Paths(paths.into()));
    let list = setup.open();
    let joined = setup.dir.path().join("joined");
    let read = |name| fs::read_to_string(setup.dir.path().join(name)).unwrap();
    fs::write(&joined, read("input.txt") + "\n" + &read("other.txt")).unwrap();
    setup.config.source = Source::Path(joined);
    assert_eq!(setup.open().identity, list.identity);
    assert_eq!(setup.entries().len(), 1);

    setup.config.source = Source::Paths(Vec::new());
    let error = Corpus::open(&setup.config).unwrap_err().to_string();
    assert!(error.contains("`data.source` has no texts"), "{error}");
}

#[test]
fn a_mixture_has_an_entry_for_each_text() {
    let weighted = |[first, second]: [PathBuf; 2]| {
        let weighted = |path, weight| Weighted { path, weight };
        Source::Mixture(vec![weighted(first, 3.0), weighted(second, 1.0)])
    };
    let mut setup = two_texts(weighted);
    let mixture = setup.open();
    assert_eq!(setup.entries().len(), 2);
    assert_eq!(mixture.bytes_per_token, Some(1.0));
    assert_eq!(
        mixture.train.tokens(),
        Some((TEXT.len() * 20 + 1000) * 9 / 10)
    );
    assert!(mixture.train.check(256, 256).is_ok() && mixture.train.check(190, 256).is_err());

    let valid = mixture.valid.sequences(8, "validation").unwrap();
    let batches = fixed(&valid, 10, 4);
    let are_digits = |window: &&[u32]| window.iter().all(|id| (48..58).contains(id));
    let windows = batches.iter().flat_map(|batch| batch.inputs.chunks(8));
    assert_eq!(windows.filter(are_digits).count(), 10);

    // The identity is known without tokenizing, and depends on the weights.
    let fingerprint = mixture.tokenizer.fingerprint();
    let identity = Corpus::identity_of_text(&setup.config, &fingerprint).unwrap();
    assert_eq!(identity, Some(mixture.identity.clone()));
    let Source::Mixture(parts) = &mut setup.config.source else {
        unreachable!()
    };
    parts[0].weight = 2.0;
    assert_ne!(setup.open().identity, mixture.identity);

    for (weight, tokenizer, problem) in [
        (0.0, TokenizerConfig::Bytes, "the weight 0; it must be"),
        (f64::NAN, TokenizerConfig::Bytes, "the weight NaN"),
        (1.0, TokenizerConfig::Chars, "cannot be trained on all"),
    ] {
        let Source::Mixture(parts) = &mut setup.config.source else {
            unreachable!()
        };
        parts[1].weight = weight;
        setup.config.tokenizer = tokenizer;
        let error = Corpus::open(&setup.config).unwrap_err();
        assert!(
            error.is_bad_input() && error.to_string().contains(problem),
            "{error}"
        );
    }
    setup.config.tokenizer = TokenizerConfig::Bytes;
    let mut refused = |change: &dyn Fn(&mut Vec<Weighted>)| {
        let Source::Mixture(parts) = &mut setup.config.source else {
            unreachable!()
        };
        change(parts);
        Corpus::open(&setup.config).unwrap_err().to_string()
    };
    let error = refused(&|parts| parts.iter_mut().for_each(|part| part.weight = 1.2e308));
    assert!(error.contains("sum is not finite"), "{error}");
    // The validation part of the text would also be used for training.
    let error = refused(&|parts| parts[1].path = parts[0].path.clone());
    assert!(error.contains("twice"), "{error}");
}

#[test]
fn a_tokenizer_is_trained_on_text_without_white_space_but_does_not_take_it_whole() {
    let mut setup = Setup::new(&"abcdefghij".repeat(40_000));
    setup.config.tokenizer = TokenizerConfig::Bpe { vocab_size: 300 };
    let error = Corpus::open(&setup.config).unwrap_err();
    assert!(
        error.is_bad_input() && error.to_string().contains("without white space"),
        "{error}"
    );
    setup.write(&"abcdefghij".repeat(4_000));
    assert!((265..300).contains(&setup.open().tokenizer.vocab_size()));
}

#[test]
fn the_training_of_a_tokenizer_can_be_stopped() {
    let text: String = (0..3000).map(|seed| random_text(seed, 300)).collect();
    let mut setup = Setup::new(&text);
    setup.config.tokenizer = TokenizerConfig::Bpe { vocab_size: 60_000 };
    let mut stages = 0;
    let stopped = Corpus::open_with(&setup.config, &mut |stage, _, _| {
        stages += usize::from(stage == Stage::Training);
        stages < 2
    });
    assert!(matches!(stopped, Err(DataError::Stopped)));
}

#[test]
fn images_are_opened_with_the_names_of_their_classes() {
    use crate::{ImageSet, ImagesConfig, ShapesConfig};
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, header: &[u8]| {
        let record = [header, &[200; 3072]].concat();
        fs::write(directory.path().join(name), record.repeat(3)).unwrap();
    };
    file("data_batch_1.bin", &[3]);
    file("test_batch.bin", &[4]);
    file("train.bin", &[1, 99]);
    file("test.bin", &[1, 5]);
    let path = || directory.path().to_path_buf();
    for (set, classes, class, size) in [
        (ImageSet::Cifar10(path()), 10, 4, [3, 32, 32]),
        (ImageSet::Cifar100(path()), 100, 5, [3, 32, 32]),
        (
            ImageSet::Shapes(ShapesConfig {
                images: 8,
                ..ShapesConfig::default()
            }),
            4,
            0,
            [3, 16, 16],
        ),
    ] {
        let config = DataConfig {
            source: Source::Images(ImagesConfig {
                crop: 4,
                flip: true,
                ..ImagesConfig::of(set)
            }),
            ..DataConfig::default()
        };
        let corpus = Corpus::open(&config).unwrap();
        assert_eq!(
            (corpus.tokenizer.vocab_size(), corpus.outputs),
            (classes, classes)
        );
        assert_eq!((corpus.image(), config.image()), (Some(size), Some(size)));
        assert!(corpus.train.check(0, classes).is_ok());
        let valid = corpus.valid.sequences(1, "validation").unwrap();
        let batch = valid.fixed_batches(1, 1).next().unwrap().unwrap();
        assert_eq!((batch.targets[0], batch.time, batch.scored), (class, 1, 1));
        let train = corpus.train.sequences(1, "training").unwrap();
        assert_eq!(
            train.random_batch(1, 2, 3, 4).unwrap(),
            train.random_batch(1, 2, 3, 4).unwrap()
        );
        assert_ne!(
            train.random_batch(1, 2, 3, 4).unwrap(),
            train.random_batch(1, 2, 4, 4).unwrap()
        );
    }
    let missing = DataConfig {
        source: Source::Images(ImagesConfig::of(ImageSet::Cifar10(
            "/nowhere/at/all".into(),
        ))),
        ..DataConfig::default()
    };
    let error = Corpus::open(&missing).unwrap_err();
    assert!(matches!(error, DataError::NotFound { .. }), "{error}");
}
