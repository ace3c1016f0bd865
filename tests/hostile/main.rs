//! Damaged and malicious files. Each is refused with a clear one-line error, or is accepted and valid. Nothing panics,
//! waits forever or writes.
//!
//! For each kind of file, a function of `residual-zoo-fuzz` defines what "valid" means, and panics if an accepted file
//! is not valid.

#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod runs;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use burn::backend::Flex;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use residual_zoo::RunConfig;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::data::{Cifar, Shard, Tokenizer, TokenizerConfig, read_documents, write_shard};
use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_fuzz::TARGETS;
use residual_zoo_system::Blame as _;
use residual_zoo_testing::hostile::{
    self, Numbers, corrupted, cuts, flips, inputs, made_to_harm, mutant, target,
};

/// Gives corruptions and random mutants of the good files to the fuzz target called `name`.
fn survives(name: &str) {
    let (target, seeds) = target(name);
    let (mut count, mut taken) = (0, 0);
    for (_, good) in &seeds {
        assert_eq!(target(good), Ok(()));
    }
    let inputs = inputs();
    let all: Vec<_> = seeds.iter().flat_map(|(_, good)| corrupted(good)).collect();
    // Corruptions are at most half of the inputs.
    for bad in all.iter().step_by(all.len().div_ceil(inputs / 2)) {
        count += 1;
        taken += usize::from(target(bad).is_ok());
    }
    let good: Vec<&[u8]> = seeds.iter().map(|(_, good)| good.as_slice()).collect();
    let mut numbers = Numbers(7);
    // Shards have a checksum, so a mutant that is still valid equals a good file.
    let mut again = 0;
    while count < inputs + again {
        let bad = mutant(&good, &mut numbers);
        count += 1;
        match good.contains(&bad.as_slice()) {
            true => again += 1,
            false => taken += usize::from(target(&bad).is_ok()),
        }
    }
    println!("{name}: {count} corrupted inputs, {taken} of them still valid");
    assert!(count >= inputs && taken < count);
    // No corrupted shard passes its checksum.
    assert!(name != "shard" || taken == 0);
}

macro_rules! corrupted_files {
    ($($test:ident: $name:literal,)+) => {$(
        #[test]
        fn $test() {
            survives($name);
        }
    )+};
}

corrupted_files! {
    corrupted_images_are_survived: "cifar",
    corrupted_tensors_are_survived: "checkpoint",
    corrupted_configs_are_survived: "config",
    corrupted_documents_are_survived: "documents",
    corrupted_manifests_are_survived: "manifest",
    corrupted_metrics_are_survived: "metrics",
    corrupted_assignments_are_survived: "set",
    corrupted_shards_are_survived: "shard",
    corrupted_tokenizers_are_survived: "tokenizer",
}

#[test]
fn corrupted_compressed_files_are_survived() {
    let lines: String = (0..300)
        .map(|i| format!("{{\"text\": \"é {i}\"}}\n"))
        .collect();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(lines.as_bytes()).unwrap();
    let mut zst = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    zst.include_checksum(true).unwrap();
    zst.write_all(lines.as_bytes()).unwrap();
    let (dir, mut numbers) = (tempfile::tempdir().unwrap(), Numbers(7));
    for (name, good) in [
        ("a.jsonl.gz", gz.finish().unwrap()),
        ("a.txt.zst", zst.finish().unwrap()),
    ] {
        let path = dir.path().join(name);
        let (mut refused, inputs) = (0, inputs());
        for _ in 0..inputs {
            fs::write(&path, mutant(&[&good], &mut numbers)).unwrap();
            if let Err(error) = read_documents(&path, "text") {
                assert!(error.is_bad_input(), "{error}");
                assert_eq!(error.to_string().lines().count(), 1);
                refused += 1;
            }
        }
        println!("{name}: {inputs} corrupted inputs, {refused} of them refused");
        assert!(refused > inputs / 2);
    }
}

#[test]
fn files_made_to_harm_are_refused() {
    for (name, target) in TARGETS {
        for (i, bad) in made_to_harm(name).iter().enumerate() {
            let start = String::from_utf8_lossy(&bad[..bad.len().min(200)]);
            assert!(target(bad).is_err(), "{name} {i}: {start}");
        }
    }
}

#[test]
fn every_flip_and_every_cut_of_a_shard_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bin");
    for (tokens, vocab_size) in [(3000, 1000), (1500, 70_000)] {
        let tokens: Vec<u32> = (0..tokens).map(|i| i * 7 % vocab_size).collect();
        write_shard(&path, &tokens, vocab_size as usize, "f").unwrap();
        let good = fs::read(&path).unwrap();
        assert_eq!(Shard::open(&path).unwrap().get(0..tokens.len()), tokens);

        // Flips every bit of the header, then bits over the whole file.
        let header = (0..96 * 8).map(|bit| {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            (bit / 8, bad)
        });
        let mut count = 0;
        for (at, bad) in header.chain(flips(&good)) {
            fs::write(&path, bad).unwrap();
            assert!(Shard::open(&path).is_err(), "a flip in byte {at}");
            count += 1;
        }
        for bad in cuts(&good).chain([[&good[..], b"x"].concat()]) {
            fs::write(&path, &bad).unwrap();
            assert!(Shard::open(&path).is_err(), "{} bytes", bad.len());
            count += 1;
        }
        assert!(count >= 500);
    }
}

/// An edit of a file. Its position is a fraction of the file's length.
#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Cut(Index),
    Delete(Index, usize),
    Copy(Index, Index, usize),
}

/// Pieces of text that could break the parsers of these kinds of files.
const WORDS: [&str; 16] = [
    "\"",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    "\\u0000",
    "\\ud800",
    "-1",
    "1e999",
    "null",
    "18446744073709551616",
    "\u{301}",
];

fn edit() -> impl Strategy<Value = Edit> {
    let bytes = prop_oneof![
        vec(any::<u8>(), 1..9),
        proptest::sample::select(&WORDS[..]).prop_map(|word| word.as_bytes().to_vec()),
    ];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, bits)| Edit::Flip(at, bits)),
        (any::<Index>(), bytes).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        any::<Index>().prop_map(Edit::Cut),
        (any::<Index>(), 1..40usize).prop_map(|(at, length)| Edit::Delete(at, length)),
        (any::<Index>(), any::<Index>(), 1..200usize)
            .prop_map(|(from, to, length)| Edit::Copy(from, to, length)),
    ]
}

impl Edit {
    fn apply(&self, file: &mut Vec<u8>) {
        let size = file.len();
        let end = |at: usize, length: usize| size.min(at + length);
        match self {
            _ if size == 0 => {}
            Self::Flip(at, bits) => file[at.index(size)] ^= bits,
            Self::Insert(at, bytes) => {
                let at = at.index(size);
                file.splice(at..at, bytes.iter().copied());
            }
            Self::Cut(at) => file.truncate(at.index(size)),
            Self::Delete(at, length) => {
                let at = at.index(size);
                file.drain(at..end(at, *length));
            }
            Self::Copy(from, to, length) => {
                let (from, to) = (from.index(size), to.index(size));
                let piece = file[from..end(from, *length)].to_vec();
                file.splice(to..to, piece);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_bytes_are_survived(bytes in vec(any::<u8>(), 0..4000)) {
        for (_, target) in TARGETS {
            target(&bytes).ok();
        }
    }

    #[test]
    fn arbitrary_text_is_survived(text in "(?s).{0,200}") {
        for (_, target) in TARGETS {
            target(text.as_bytes()).ok();
        }
    }

    #[test]
    fn edited_files_are_survived(edits in vec(edit(), 1..6), which in any::<Index>()) {
        for (name, _) in TARGETS {
            let (target, seeds) = target(name);
            let (_, mut file) = which.get(&seeds).clone();
            for edit in &edits {
                edit.apply(&mut file);
            }
            target(&file).ok();
        }
    }
}

/// Runs `open` on `path` and expects a quick one-line error.
fn refuses<T: Send + 'static, E: std::fmt::Display>(
    what: &str,
    path: &Path,
    open: impl FnOnce(&Path) -> Result<T, E> + Send + 'static,
) {
    let (sender, receiver) = mpsc::channel();
    let owned = path.to_path_buf();
    std::thread::spawn(move || {
        let error = open(&owned).err().map(|error| error.to_string());
        sender.send(error).ok();
    });
    let error = receiver.recv_timeout(Duration::from_secs(20));
    let error = error.unwrap_or_else(|_| panic!("{what} waits for {}", path.display()));
    let error = error.unwrap_or_else(|| panic!("{what} takes {}", path.display()));
    assert_eq!(error.lines().count(), 1, "{what}: {error}");
}

/// Replaces a good file with something that is not a regular file.
type Make = fn(&Path);

#[cfg(unix)]
const NO_FILES: [(&str, Make); 5] = [
    ("a directory", |path| fs::create_dir(path).unwrap()),
    ("a pipe", |path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }),
    ("an endless device", |path| {
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    }),
    ("a link to itself", |path| {
        std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap();
    }),
    ("a link to nothing", |path| {
        std::os::unix::fs::symlink("nothing", path).unwrap();
    }),
];

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_at_once() {
    for (what, make) in NO_FILES {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            make(&path);
            path
        };
        refuses(what, &file("a.bin"), Shard::open);
        refuses(what, &file("t.json"), |path| {
            Tokenizer::train(&TokenizerConfig::File(path.into()), &[])
        });
        refuses(what, &file("c.ron"), RunConfig::read);
        if what != "a directory" {
            refuses(what, &file("d.jsonl"), |path| read_documents(path, "text"));
        }
        file("data_batch_1.bin");
        refuses(what, dir.path(), Cifar::open);
        // These are files of a run.
        file("metrics.jsonl");
        refuses(what, dir.path(), run_dir::read_metrics);
        file("tokenizer.json");
        refuses(what, dir.path(), run_dir::read_tokenizer);
        file("config.ron");
        refuses(what, dir.path(), |path| {
            run_dir::read_config::<residual_zoo::ModelConfig>(path)
        });
        file("model.safetensors");
        refuses(what, dir.path(), |path| {
            let text = "(model: Gpt2(n_layer: 1, n_head: 1, width: 4, context: 8))";
            let config: RunConfig = RunConfig::parse(text, Path::new("c.ron")).unwrap();
            let model = config.model.build::<Flex>(11, &Default::default()).unwrap();
            checkpoint::load_model::<Flex, _>(model, path)
        });
    }
}

#[test]
fn a_very_deep_model_may_have_a_long_header() {
    let dir = tempfile::tempdir().unwrap();
    let config: RunConfig = RunConfig::parse("(model: Gpt2())", Path::new("c.ron")).unwrap();
    let problem = |bytes: usize| {
        let file = hostile::many_tensors(40_000, bytes);
        fs::write(dir.path().join("model.safetensors"), file).unwrap();
        let model = config.model.build::<Flex>(11, &Default::default()).unwrap();
        let loaded = checkpoint::load_model::<Flex, _>(model, dir.path());
        loaded.map(drop).unwrap_err().to_string()
    };
    assert!(problem(4).contains("its header"), "as long as its data");
    // The file is read, but it belongs to another model.
    let other = problem(3_000);
    assert!(
        !other.contains("header") && other.contains("missing"),
        "{other}"
    );
}

#[cfg(unix)]
#[test]
fn a_checkpoint_of_things_that_are_no_files_is_passed_over() {
    for (what, make) in NO_FILES {
        for name in residual_zoo_fuzz::good_checkpoint().keys() {
            let run = tempfile::tempdir().unwrap();
            let directory = checkpoint::directory(run.path(), 3);
            fs::create_dir_all(&directory).unwrap();
            for (good, content) in residual_zoo_fuzz::good_checkpoint() {
                fs::write(directory.join(good), content).unwrap();
            }
            assert!(checkpoint::newest(run.path()).is_ok());
            fs::remove_file(directory.join(name)).unwrap();
            make(&directory.join(name));
            refuses(what, run.path(), checkpoint::newest);
        }
    }
}

#[test]
fn the_last_of_two_equal_keys_counts_in_a_document() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.jsonl");
    fs::write(&path, r#"{"text": "a", "text": "b"}"#).unwrap();
    assert_eq!(read_documents(&path, "text").unwrap(), ["b"]);
}
