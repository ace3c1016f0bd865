//! Files that cannot be imported: each gets a clear error and leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use residual_zoo::Run;
use residual_zoo::data::Tokenizer;
use residual_zoo::exchange::{ExportOptions, ImportOptions, export, import};
use residual_zoo_testing::program::{fails, ok, zoo as command};
use residual_zoo_testing::{root, zoo};
use tempfile::TempDir;

use crate::{tokenizer, write_run};

/// Exports a GPT-2 to a folder.
fn exported() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (folder.path().join("run"), folder.path().join("out"));
    write_run(&zoo::gpt2(), &tokenizer(), &run);
    export(&Run::open(&run).unwrap(), &out, &ExportOptions::default()).unwrap();
    (folder, out)
}

/// Expects a one-line error with each of `says`.
fn refused(path: &Path, says: &[&str]) {
    let error = import(path, &ImportOptions::default()).err();
    let error = error
        .unwrap_or_else(|| panic!("{says:?} was imported"))
        .to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    for part in says {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// Changes a text file.
fn change(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn tensors_that_do_not_fit_are_listed() {
    let (_folder, out) = exported();
    change(&out.join("config.json"), "\"n_layer\": 2", "\"n_layer\": 1");
    refused(
        &out,
        &[
            "unexpected: h.1.attn.c_attn.bias, ",
            "h.1.attn.c_attn.weight",
        ],
    );
    let (_folder, out) = exported();
    change(
        &out.join("config.json"),
        "\"n_positions\": 64",
        "\"n_positions\": 32",
    );
    refused(
        &out,
        &["of wrong shape: wpe.weight has [64, 48] instead of [32, 48]"],
    );
    let (_folder, out) = exported();
    change(&out.join("config.json"), "\"n_layer\": 2", "\"n_layer\": 3");
    refused(&out, &["missing: h.2.ln_1.weight, "]);
    let (_folder, out) = exported();
    change(
        &out.join("config.json"),
        "\"n_layer\": 2",
        "\"n_layer\": 2000000",
    );
    // A file of this size cannot hold so many parameters.
    refused(&out, &["model.safetensors", "parameters"]);
    let (_folder, out) = exported();
    change(
        &out.join("config.json"),
        "\"tie_word_embeddings\": true",
        "\"tie_word_embeddings\": false",
    );
    refused(&out, &["missing: lm_head.weight"]);
}

/// Rewrites the safetensors file with other tensors.
fn change_tensors(out: &Path, change: impl FnOnce(&mut residual_zoo::core::Tensors)) {
    use residual_zoo::runs::checkpoint::{read_tensors, write_tensors};
    let file = out.join("model.safetensors");
    let (mut tensors, _) = read_tensors(&file).unwrap();
    change(&mut tensors);
    write_tensors(&file, &tensors, None).unwrap();
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let (_folder, out) = exported();
    change_tensors(&out, |tensors| {
        let table = tensors["transformer.wte.weight"].clone();
        tensors.insert("_orig_mod.transformer.wte.weight".into(), table);
    });
    refused(
        &out,
        &["model.safetensors", "has the tensor wte.weight twice"],
    );
}

#[test]
fn token_ids_of_characters_must_be_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (folder.path().join("run"), folder.path().join("out"));
    let characters = Tokenizer::chars("abcdefgh".chars().collect()).unwrap();
    write_run(&zoo::gpt2(), &characters, &run);
    export(&Run::open(&run).unwrap(), &out, &ExportOptions::default()).unwrap();
    change(&out.join("tokenizer.json"), "\"c\":2", "\"c\":9");
    refused(&out, &["tokenizer.json", "not 0, 1, 2"]);
}

#[test]
fn an_export_replaces_neither_links_nor_the_current_directory() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    write_run(&zoo::gpt2(), &tokenizer(), &run);
    let mut export = command("export");
    export.arg(&run).args(["--to", "hf", "."]);
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fails(export.current_dir(&empty), 2, &["current directory"]);
    #[cfg(unix)]
    {
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&empty, &link).unwrap();
        fails(
            command("export").arg(&run).args(["--to", "hf"]).arg(&link),
            2,
            &["is a link"],
        );
    }
}

#[test]
fn weights_of_another_config_are_not_exported() {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (folder.path().join("run"), folder.path().join("out"));
    write_run(&zoo::gpt2(), &tokenizer(), &run);
    let mut run = Run::open(&run).unwrap();
    let trained = run.config.clone();
    for (edited, says) in [
        ("model.context=32", "but the model needs"),
        ("model.n_layer=1", "this model has no parameter"),
        ("model.n_layer=9", "is missing"),
    ] {
        run.config = trained.clone().set(&[edited.into()]).unwrap();
        let error = export(&run, &out, &ExportOptions::default()).err();
        let error = error.unwrap_or_else(|| panic!("{edited}")).to_string();
        assert!(error.contains(says), "{edited}: {error}");
        assert!(!out.exists());
        if edited != "model.n_layer=9" {
            // All commands that read the model give this error. They refuse a larger model before they read it.
            let read = run.model::<burn::backend::Flex>(&Default::default());
            assert_eq!(read.err().unwrap().to_string(), error);
        }
    }
}

#[test]
fn of_several_exports_to_one_place_one_succeeds_and_the_others_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (folder.path().join("run"), folder.path().join("out"));
    write_run(&zoo::gpt2(), &tokenizer(), &run);
    let exports = [(); 4].map(|()| {
        let mut export = command("export");
        export.arg(&run).args(["--to", "hf"]).arg(&out);
        let export = export.stderr(Stdio::piped()).stdout(Stdio::null());
        export.spawn().unwrap()
    });
    let ended = exports.map(|export| export.wait_with_output().unwrap());
    let failed = ended.iter().filter(|ended| !ended.status.success());
    let said = failed.map(|ended| String::from_utf8_lossy(&ended.stderr).into_owned());
    let said: Vec<String> = said.collect();
    assert_eq!(said.len(), 3, "{said:?}");
    for said in said {
        assert!(said.contains("give another"), "{said}");
    }
    import(&out, &ImportOptions::default()).unwrap();
}

#[test]
fn settings_that_the_zoo_does_not_have_are_named() {
    for (from, to, says) in [
        ("\"gelu_new\"", "\"mish\"", ["activation_function", "mish"]),
        (
            "\"scale_attn_weights\": true",
            "\"scale_attn_weights\": false",
            ["scale_attn_weights", "config.json"],
        ),
        (
            "\"attn_pdrop\": 0.0",
            "\"attn_pdrop\": 0.2",
            ["resid_pdrop", "attn_pdrop"],
        ),
        (
            "\"model_type\": \"gpt2\"",
            "\"model_type\": \"mistral\"",
            ["mistral", "gpt2"],
        ),
        ("\"n_head\": 4", "\"n_head\": 5", ["n_head", "48"]),
        (
            "\"n_layer\": 2",
            "\"n_layer\": -2",
            ["config.json", "damaged"],
        ),
        (
            "\"n_layer\": 2",
            "\"n_layer\": 999999999999",
            ["model.n_layer", "at most 16777216"],
        ),
        (
            "\"vocab_size\": 271",
            "\"vocab_size\": 200",
            ["wte.weight", "[271, 48]"],
        ),
        ("{", "<!DOCTYPE html><html>", ["config.json", "damaged"]),
    ] {
        let (_folder, out) = exported();
        change(&out.join("config.json"), from, to);
        refused(&out, &says);
    }
}

#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let (folder, out) = exported();
    fs::write(out.join("tokenizer.json"), "<html>").unwrap();
    refused(&out, &["tokenizer.json", "cannot be read"]);
    let json = tokenizer().to_hf_json();
    let (begin, rest) = json.split_once("\"added_tokens\":[").unwrap();
    let (token, end) = rest.split_once(']').unwrap();
    let second = token.replace("270", "271").replace("endoftext", "other");
    let larger = format!("{begin}\"added_tokens\":[{token},{second}]{end}");
    fs::write(out.join("tokenizer.json"), larger).unwrap();
    refused(&out, &["271 token ids", "272", "--tokenizer"]);
    fs::remove_file(out.join("tokenizer.json")).unwrap();
    refused(&out, &["no tokenizer.json", "--tokenizer"]);
    let missing = folder.path().join("missing.json");
    let options = ImportOptions {
        tokenizer: Some(missing.display().to_string()),
        ..ImportOptions::default()
    };
    let error = import(&out, &options).err().unwrap().to_string();
    assert!(error.contains("missing.json` does not exist"), "{error}");
}

#[test]
fn truncated_and_hostile_weights_are_refused() {
    let (_folder, out) = exported();
    let file = out.join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    for length in [0, 1, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        refused(&out, &["model.safetensors"]);
    }
    let mut header = u64::MAX.to_le_bytes().to_vec();
    header.extend(&whole[8..]);
    fs::write(&file, header).unwrap();
    refused(&out, &["model.safetensors", "header"]);
    fs::remove_file(&file).unwrap();
    refused(&out, &["neither model.safetensors nor pytorch_model.bin"]);
    let index = r#"{"weight_map": {"wte.weight": "../model.safetensors"}}"#;
    fs::write(out.join("model.safetensors.index.json"), index).unwrap();
    refused(&out, &["index.json", "not beside it"]);
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let (_folder, out) = exported();
    let file = out.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    refused(
        &out,
        &["model.safetensors", "numbers in transformer.", "not finite"],
    );
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(&out, &["model.safetensors", "is a directory; give a file"]);
    fs::remove_dir(&file).unwrap();
    let index = r#"{"weight_map": {"wte.weight": "model-1.safetensors"}}"#;
    fs::write(out.join("model.safetensors.index.json"), index).unwrap();
    refused(&out, &["model-1.safetensors", "does not exist"]);
}

#[test]
fn truncated_and_changed_files_of_pytorch_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ckpt.pt");
    let options = |n_head| ImportOptions {
        tokenizer: Some("bytes".into()),
        n_head,
        ..ImportOptions::default()
    };
    for (seed, n_head) in [("nanogpt.pt", None), ("tokenformer-old.pt", Some(1))] {
        let tokenizer = options(n_head);
        let whole = fs::read(root().join("fuzz/corpus/weights").join(seed)).unwrap();
        fs::write(&file, &whole).unwrap();
        import(&file, &tokenizer).unwrap();
        for length in (0..whole.len()).step_by(61) {
            fs::write(&file, &whole[..length]).unwrap();
            let error = import(&file, &tokenizer).err().unwrap().to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.contains("ckpt.pt"), "{error}");
        }
    }
    let tokenizer = options(None);
    // The zip archive has checksums, so every changed number is noticed.
    let whole = fs::read(root().join("fuzz/corpus/weights/nanogpt.pt")).unwrap();
    let place = whole
        .windows(6)
        .position(|bytes| bytes == b"data/0")
        .unwrap()
        + 300;
    let mut changed = whole.clone();
    changed[place] ^= 1;
    fs::write(&file, changed).unwrap();
    let error = import(&file, &tokenizer).err().unwrap().to_string();
    assert!(
        error.contains("damaged") && error.contains("data/"),
        "{error}"
    );
}

#[test]
fn a_pickle_with_code_is_refused_by_the_name_of_what_it_calls() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pytorch_model.bin");
    let number = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".as_slice();
    let machine = |little: &[u8]| {
        [
            b"\x80\x02}X\x0d\x00\x00\x00little_endian".as_slice(),
            little,
            b"s.",
        ]
        .concat()
    };
    let version = b"\x80\x02M\xe9\x03.".as_slice();
    let call = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.".as_slice();
    let end = b"\x80\x02]q\x00.".as_slice();
    fs::write(
        &file,
        [number, version, &machine(b"\x88"), call, end].concat(),
    )
    .unwrap();
    refused(
        &file,
        &["pytorch_model.bin", "calls `os.system`", "safetensors"],
    );
    let empty = b"\x80\x02}.".as_slice();
    fs::write(
        &file,
        [number, version, &machine(b"\x89"), empty, end].concat(),
    )
    .unwrap();
    refused(&file, &["big-endian"]);
    fs::write(
        &file,
        [number, version, &machine(b"\x88"), empty, end].concat(),
    )
    .unwrap();
    refused(&file, &["neither a checkpoint of nanoGPT", "config.json"]);
    for other in [b"not a pickle".as_slice(), b"", b"PK\x03\x04 and no more"] {
        fs::write(&file, other).unwrap();
        refused(&file, &["pytorch_model.bin"]);
    }
}

#[test]
fn the_program_keeps_what_is_there() {
    let (folder, out) = exported();
    let run = folder.path().join("imported");
    ok(command("import").arg(&out).arg("--run").arg(&run));
    let before = fs::read(run.join("config.ron")).unwrap();
    assert!(ok(command("describe").arg(&run)).contains("parameters"));
    let set = folder.path().join("set");
    let mut import = command("import");
    import
        .arg(&out)
        .arg("--run")
        .arg(&set)
        .args(["--set", "train.learning_rate=1e-4"]);
    ok(import.args(["--set", "model.activation=Relu"]));
    let config = fs::read_to_string(set.join("config.ron")).unwrap();
    assert!(
        config.contains("learning_rate: 0.0001") && config.contains("activation: Relu"),
        "{config}"
    );
    let heads = ["--heads", "4", "--run", "x"];
    fails(
        command("import").arg(&out).args(heads),
        2,
        &["--heads", "TokenFormer"],
    );
    fails(
        command("import").args(["openai/gpt2", "--run", "x"]),
        2,
        &["hf://openai/gpt2"],
    );
    fails(
        command("import").arg(&run).args(["--run", "x"]),
        2,
        &["already a run"],
    );
    fails(
        command("import").arg(&out).arg("--run").arg(&run),
        2,
        &["already"],
    );
    assert_eq!(fs::read(run.join("config.ron")).unwrap(), before);
    fails(
        command("export").arg(&run).arg("--to").arg("hf").arg(&out),
        2,
        &["not an empty directory"],
    );
    fails(
        command("train").arg("--resume").arg(&run),
        2,
        &["imported model", "--init-from"],
    );
    // Training continues from the run with the given data, even after the run was moved.
    let moved = folder.path().join("moved");
    fs::rename(&run, &moved).unwrap();
    let run = moved;
    let text = folder.path().join("a.txt");
    fs::write(&text, "the cat sat on the mat. ".repeat(100)).unwrap();
    let trained = folder.path().join("trained");
    let mut train = command("train");
    train
        .arg(run.join("config.ron"))
        .arg("--init-from")
        .arg(&run)
        .arg("--data")
        .arg(&text);
    ok(train.arg("--run").arg(&trained).args([
        "--set",
        "train.steps=3",
        "--set",
        "train.warmup=1",
    ]));
    let again = folder.path().join("again");
    ok(command("export")
        .arg(&trained)
        .arg("--to")
        .arg("hf")
        .arg(&again));
    let card = fs::read_to_string(again.join("README.md")).unwrap();
    assert!(card.contains("validation loss after 3 steps"), "{card}");
    let missing = folder.path().join("missing");
    fails(
        command("import")
            .arg(&missing)
            .arg("--run")
            .arg(folder.path().join("x")),
        2,
        &["missing", "exist"],
    );
    assert!(!folder.path().join("x").exists());
}

#[test]
fn what_was_imported_has_no_training_to_show_or_continue() {
    let (folder, _) = exported();
    let run = folder.path().join("run");
    fails(
        command("plot").arg(&run),
        2,
        &["imported model", "no training curve", "--init-from"],
    );
    fails(command("depth").arg(&run), 2, &["--data", "imported model"]);
    let text = folder.path().join("text.txt");
    fs::write(
        &text,
        "the cat sat on the mat, and the dog sat too. ".repeat(60),
    )
    .unwrap();
    let config = folder.path().join("config.ron");
    let model = fs::read_to_string(run.join("config.ron")).unwrap();
    fs::write(
        &config,
        model.replace("source: Imported", "source: Synthetic(tokens: 3000)"),
    )
    .unwrap();
    let train = || {
        let mut train = command("train");
        train
            .arg(&config)
            .args(["--set", "train.steps=1", "--set", "train.batch=1"])
            .arg("--data")
            .arg(&text);
        train.arg("--tokenizer").arg(run.join("tokenizer.json"));
        train
    };
    fails(
        train().arg("--run").arg(&run),
        2,
        &["imported model", "--init-from"],
    );
    fails(
        command("train")
            .arg("--resume")
            .arg(&run)
            .arg("--data")
            .arg(&text),
        2,
        &["imported model", "--init-from", "config.ron"],
    );
    let other = folder.path().join("other");
    let shown = ok(train()
        .arg("--run")
        .arg(&other)
        .arg("--init-from")
        .arg(&run));
    assert!(
        shown.contains("starts from the weights in") && shown.contains("step-00000000"),
        "{shown}"
    );
}

#[test]
fn names_of_tensors_are_shown_in_one_line() {
    let (_folder, out) = exported();
    let path = out.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let name = b"\"transformer.wte.weight\"";
    let at = bytes
        .windows(name.len())
        .position(|window| window == name)
        .unwrap();
    // A name with escaped line breaks and a terminal escape.
    let other = br#""evil\n\u001b[31mname\nxyz""#;
    let mut changed = bytes.clone();
    changed.splice(at..at + name.len(), other.iter().copied());
    let length =
        u64::from_le_bytes(bytes[..8].try_into().unwrap()) + other.len() as u64 - name.len() as u64;
    changed[..8].copy_from_slice(&length.to_le_bytes());
    fs::write(&path, changed).unwrap();
    refused(&out, &["missing: wte.weight", "unexpected: evil"]);
}
