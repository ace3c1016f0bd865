//! Compares logits and greedy text with `transformers`, and with nanoGPT and TokenFormer in PyTorch.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use residual_zoo::ModelConfig;
use residual_zoo::Run;
use residual_zoo::core::Tensors;
use residual_zoo::data::{Tokenizer, TokenizerConfig};
use residual_zoo::exchange::{ExportOptions, ImportOptions, export, import};
use residual_zoo::runs::checkpoint::read_tensors;
use residual_zoo_testing::{program, root, zoo};

use crate::round_trip::{elsewhere, split};
use crate::{logits, tokenizer, write_run};

/// Number of tokens that greedy decoding appends.
const NEW: usize = 12;

/// Runs a Python program of this folder.
fn python(program: &str, arguments: &[&Path]) {
    let python = std::env::var("RESIDUAL_ZOO_PYTHON").unwrap_or("python3".into());
    let mut command = Command::new(python);
    command
        .arg(root().join("tests/exchange").join(program))
        .args(arguments);
    // transformers copies exported code to a module cache. Other runs do not share this cache.
    let modules = tempfile::tempdir().unwrap();
    command
        .env("HF_MODULES_CACHE", modules.path())
        .env("HF_HUB_OFFLINE", "1");
    program::ok(&mut command);
}

fn read<T: serde::de::DeserializeOwned>(path: PathBuf) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Compares the model of `run` with the results of `reference.py` in `folder`. Logits may differ by 1e-5, or by twice
/// the rounding error of PyTorch's own logits in f32, if that is more.
fn compare(name: &str, run: &Path, folder: &Path) {
    let ids: Vec<i32> = read(folder.join("ids.json"));
    let expected: Vec<Vec<f64>> = read(folder.join("logits.json"));
    let greedy = folder.join("greedy.json");
    let (found, text) = logits(run, &ids, if greedy.exists() { NEW } else { 0 });
    assert_eq!(
        (found.len(), found[0].len()),
        (expected.len(), expected[0].len()),
        "{name}"
    );
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let (mut largest, mut size) = (0.0_f64, 0.0_f64);
    for (a, b) in pairs {
        largest = largest.max((a - b).abs());
        size = size.max(b.abs());
    }
    let rounding = folder.join("rounding.json");
    let rounding = if rounding.exists() {
        read(rounding)
    } else {
        0.0
    };
    println!("{name}: logits up to {size:.2}, difference {largest:.1e}, rounding {rounding:.1e}");
    let most = f64::max(1e-5, 2.0 * rounding);
    assert!(largest <= most, "{name}: {largest} is above {most}");
    if greedy.exists() {
        assert_eq!(text, read::<Vec<i32>>(greedy), "{name}");
    }
}

#[test]
#[ignore = "needs Python with torch and transformers"]
fn exported_models_give_the_same_logits_and_text_in_transformers() {
    let [basic, ..] = split();
    logits_and_text(basic);
}

#[test]
#[ignore = "needs Python with torch and transformers"]
fn exported_connections_give_the_same_logits_and_text_in_transformers() {
    let [_, each, _] = split();
    logits_and_text(each);
}

#[test]
#[ignore = "needs Python with torch and transformers, and many minutes"]
fn all_exported_forms_give_the_same_logits_and_text_in_transformers() {
    let [_, _, rest] = split();
    logits_and_text(rest.into_iter().chain(elsewhere()));
}

fn logits_and_text(models: impl IntoIterator<Item = (String, ModelConfig)>) {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str, i: usize| folder.path().join(format!("{name}{i}"));
    let text = "the cat sat on the mat: é\n";
    let train = |config| Tokenizer::train(&config, &[text]).unwrap();
    let words = text.split_whitespace().map(str::to_owned);
    let words = words.collect::<BTreeSet<_>>().into_iter().collect();
    let mut models: Vec<_> = models
        .into_iter()
        .map(|(name, model)| (name, model, tokenizer()))
        .collect();
    models.extend([
        ("bytes".into(), zoo::gpt2(), train(TokenizerConfig::Bytes)),
        (
            "characters".into(),
            zoo::rmt(),
            train(TokenizerConfig::Chars),
        ),
        (
            "words".into(),
            zoo::gpt2(),
            Tokenizer::words(words).unwrap(),
        ),
    ]);
    for (i, (_, model, tokenizer)) in models.iter().enumerate() {
        write_run(model, tokenizer, &place("run", i));
        let run = Run::open(place("run", i)).unwrap();
        export(&run, &place("exported", i), &ExportOptions::default()).unwrap();
        let size = tokenizer.vocab_size();
        let ids: Vec<usize> = (0..30).map(|i| i * 37 % size).collect();
        let ids = serde_json::to_vec(&ids).unwrap();
        std::fs::write(place("exported", i).join("ids.json"), ids).unwrap();
        std::fs::write(place("exported", i).join("text.txt"), text).unwrap();
    }
    let exported: Vec<PathBuf> = (0..models.len()).map(|i| place("exported", i)).collect();
    let arguments = [Path::new("logits")]
        .into_iter()
        .chain(exported.iter().map(PathBuf::as_path));
    python("reference.py", &arguments.collect::<Vec<_>>());
    for (i, (name, _, tokenizer)) in models.iter().enumerate() {
        compare(name, &place("run", i), &exported[i]);
        let ids: Vec<u32> = read(exported[i].join("encoded.json"));
        assert_eq!(ids, tokenizer.encode(text).unwrap(), "{name}");
        let text = tokenizer.decode(&ids).unwrap();
        let decoded = std::fs::read_to_string(exported[i].join("decoded.txt")).unwrap();
        assert_eq!(decoded, text, "{name}");
    }
}

#[test]
#[ignore = "needs Python with torch and transformers"]
fn imported_models_give_the_same_logits_and_text() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    python("reference.py", &[Path::new("make"), &made]);
    let mut names: Vec<_> = std::fs::read_dir(&made)
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    names.sort_by_key(|entry| entry.file_name());
    assert_eq!(names.len(), 12);
    for entry in names {
        let (name, run) = (
            entry.file_name().into_string().unwrap(),
            folder.path().join("run"),
        );
        let options = ImportOptions {
            n_head: name.starts_with("tokenformer").then_some(4),
            ..ImportOptions::default()
        };
        let imported = import(&entry.path(), &options).unwrap();
        imported.write(&run).unwrap();
        compare(&name, &run, &entry.path());
        // A second export has the same weights as the imported files.
        if entry.path().join("model.safetensors").exists() {
            let out = folder.path().join("out");
            export(&Run::open(&run).unwrap(), &out, &ExportOptions::default()).unwrap();
            let weights = |path: &Path| read_tensors(&path.join("model.safetensors")).unwrap().0;
            let (there, here): (Tensors, Tensors) = (weights(&entry.path()), weights(&out));
            assert_eq!(there, here, "{name}");
            std::fs::remove_dir_all(&out).unwrap();
        }
        std::fs::remove_dir_all(&run).unwrap();
    }
}

#[test]
#[ignore = "needs Python with torch and transformers"]
fn padding_changes_nothing_where_the_page_of_exchange_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str, i: usize| folder.path().join(format!("{name}{i}"));
    let [models, ..] = split();
    for (i, (name, model)) in models.iter().enumerate() {
        println!("exported{i}: {name}");
        write_run(model, &tokenizer(), &place("run", i));
        let run = Run::open(place("run", i)).unwrap();
        export(&run, &place("exported", i), &ExportOptions::default()).unwrap();
    }
    let exported: Vec<PathBuf> = (0..models.len()).map(|i| place("exported", i)).collect();
    python(
        "padding.py",
        &exported.iter().map(PathBuf::as_path).collect::<Vec<_>>(),
    );
}

#[test]
#[ignore = "needs Python with torch and transformers"]
fn directories_as_on_the_hub_give_what_transformers_gives() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    python("hub.py", &[&made]);
    let mut entries: Vec<_> = std::fs::read_dir(&made)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    assert_eq!(entries.len(), 31);
    let mut exported = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let name = entry.file_name().unwrap().to_string_lossy();
        let imported = import(entry, &ImportOptions::default());
        let imported = imported.unwrap_or_else(|error| panic!("{name}: {error}"));
        let run = folder.path().join(format!("run{i}"));
        imported.write(&run).unwrap();
        compare(&name, &run, entry);
        if entry.join("text.txt").exists() {
            let text = std::fs::read_to_string(entry.join("text.txt")).unwrap();
            let expected: Vec<u32> = read(entry.join("encoded.json"));
            let tokenizer = Run::open(&run).unwrap().tokenizer;
            assert_eq!(tokenizer.encode(&text).unwrap(), expected, "{name}");
            let ends = [tokenizer.begin_of_text(), tokenizer.end_of_text()];
            let expected: [Option<u32>; 2] = read(entry.join("ends.json"));
            assert_eq!(ends, expected, "{name}");
            let again = folder.path().join(format!("exported{i}"));
            let run = Run::open(&run).unwrap();
            export(&run, &again, &ExportOptions::default()).unwrap();
            exported.push((entry, again));
        }
    }
    let folders = exported.iter().map(|(_, again)| again.as_path());
    let arguments: Vec<&Path> = [Path::new("names")].into_iter().chain(folders).collect();
    python("reference.py", &arguments);
    for (entry, again) in exported {
        let [expected, found] =
            [entry, &again].map(|folder| read::<[Option<String>; 2]>(folder.join("names.json")));
        assert_eq!(found, expected, "{}", entry.display());
    }
}
