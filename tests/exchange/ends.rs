//! The tokens that begin and end a text.

use std::fs;
use std::path::Path;

use residual_zoo::Run;
use residual_zoo::data::Tokenizer;
use residual_zoo::exchange::{ExportOptions, ImportOptions, export, import};
use residual_zoo_testing::zoo;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{tokenizer, write_run};

/// Number of ids in the table. The tokenizer has 271, or 273 with `<s>` and `</s>`.
const TABLE: usize = 300;

/// Exports a GPT-2, then applies `changes` to its files. Other fields stay.
fn directory(changes: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (folder.path().join("run"), folder.path().join("out"));
    write_run(&zoo::gpt2(), &tokenizer().padded(TABLE).unwrap(), &run);
    export(&Run::open(&run).unwrap(), &out, &ExportOptions::default()).unwrap();
    for (name, fields) in changes {
        let mut file = fs::read(out.join(name))
            .map_or(json!({}), |text| serde_json::from_slice(&text).unwrap());
        let new = fields.as_object().unwrap().clone();
        file.as_object_mut().unwrap().extend(new);
        fs::write(out.join(name), file.to_string()).unwrap();
    }
    folder
}

/// Imports `out`. Returns the tokenizer of the written run, and the notes.
fn imported(out: &Path) -> (Tokenizer, Vec<String>) {
    let imported = import(out, &ImportOptions::default()).unwrap();
    let run = out.join("run");
    imported.write(&run).unwrap();
    let tokenizer = Run::open(&run).unwrap().tokenizer;
    assert_eq!(tokenizer.fingerprint(), imported.tokenizer.fingerprint());
    (tokenizer, imported.notes)
}

/// Returns the ids that begin and end a text.
fn ends(tokenizer: &Tokenizer) -> [Option<u32>; 2] {
    [tokenizer.begin_of_text(), tokenizer.end_of_text()]
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

const NAMES: &str = "tokenizer_config.json";

#[test]
fn ends_of_texts_are_those_of_the_files_and_are_written_again() {
    let named = json!({ "bos_token": "<s>", "eos_token": "</s>" });
    let ids = |begin: Value, end: Value| json!({ "bos_token_id": begin, "eos_token_id": end });
    let none = ids(Value::Null, Value::Null);
    let both = ("config.json", ids(271.into(), 272.into()));
    let generation = |fields: &Value| ("generation_config.json", fields.clone());
    for (name, changes, expected) in [
        (
            "all",
            vec![both.clone(), generation(&both.1), (NAMES, named.clone())],
            [271, 272],
        ),
        (
            "names",
            vec![
                ("config.json", none.clone()),
                generation(&none),
                (NAMES, named.clone()),
            ],
            [271, 272],
        ),
        (
            "generation",
            vec![
                generation(&ids(272.into(), json!([271, 5]))),
                (NAMES, named.clone()),
            ],
            [271, 271],
        ),
        (
            "config",
            vec![both.clone(), generation(&none), (NAMES, named.clone())],
            [271, 272],
        ),
        (
            "an ordinary token",
            vec![
                both.clone(),
                generation(&ids(7.into(), 8.into())),
                (
                    NAMES,
                    json!({ "bos_token": null, "eos_token": null, "pad_token": "<s>" }),
                ),
            ],
            [7, 8],
        ),
        (
            "no begin",
            vec![
                ("config.json", none.clone()),
                generation(&none),
                (
                    NAMES,
                    json!({ "bos_token": null, "eos_token": "</s>", "pad_token": "<s>" }),
                ),
            ],
            [271, 271],
        ),
    ] {
        let folder = directory(&changes);
        let out = folder.path().join("out");
        let (found, _) = imported(&out);
        assert_eq!(ends(&found), expected.map(Some), "{name}");
        assert_eq!(found.first_id(), expected[0], "{name}");
        let again = folder.path().join("again");
        export(
            &Run::open(out.join("run")).unwrap(),
            &again,
            &ExportOptions::default(),
        )
        .unwrap();
        for file in ["config.json", "generation_config.json"] {
            let written = read(&again.join(file));
            let [begin, end] = expected;
            let end = match (name, file) {
                ("generation", "generation_config.json") => json!([end, 5]),
                _ => json!(end),
            };
            assert_eq!(
                [&written["bos_token_id"], &written["eos_token_id"]],
                [&json!(begin), &end],
                "{name}: {file}"
            );
        }
        let text = |id: u32| found.special_token(id).map_or(Value::Null, Value::from);
        let written = read(&again.join(NAMES));
        let tokens = [&written["bos_token"], &written["eos_token"]];
        assert_eq!(tokens, expected.map(text).each_ref(), "{name}");
        let (back, _) = imported(&again);
        assert_eq!(back.to_json(), found.to_json(), "{name}");
    }
}

#[test]
fn tokens_for_padding_and_unknown_text_are_written_again() {
    let names = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
    });
    let folder = directory(&[(NAMES, names)]);
    let (first, again) = (folder.path().join("out"), folder.path().join("again"));
    let (tokenizer, _) = imported(&first);
    assert_eq!(
        [tokenizer.pad(), tokenizer.unknown()],
        [Some(272), Some(271)]
    );
    let run = Run::open(first.join("run")).unwrap();
    export(&run, &again, &ExportOptions::default()).unwrap();
    let written = read(&again.join(NAMES));
    assert_eq!(
        [&written["pad_token"], &written["unk_token"]],
        ["<pad>", "<unk>"]
    );
    // The fingerprint does not depend on these names.
    let plain = tokenizer.clone().with_names(None, None);
    assert_eq!(plain.fingerprint(), tokenizer.fingerprint());
    let (once_more, _) = imported(&again);
    assert_eq!(
        [once_more.pad(), once_more.unknown()],
        [Some(272), Some(271)]
    );

    // A tokenizer.json may name these tokens itself. An ordinary token is not written as a special token.
    let file = read(&first.join("run/tokenizer.json"));
    let mut json: Value = serde_json::from_str(file["json"].as_str().unwrap()).unwrap();
    json["padding"] = json!({ "pad_token": "<mask>" });
    json["model"]["unk_token"] = "t".into();
    let own = Tokenizer::from_hf_json(json.to_string(), "test").unwrap();
    let (run, out) = (folder.path().join("own"), folder.path().join("exported"));
    write_run(&zoo::gpt2(), &own.padded(TABLE).unwrap(), &run);
    export(&Run::open(&run).unwrap(), &out, &ExportOptions::default()).unwrap();
    let written = read(&out.join(NAMES));
    assert_eq!(
        [&written["pad_token"], &written["unk_token"]],
        [&json!("<mask>"), &Value::Null]
    );
}

#[test]
fn an_id_without_a_token_is_left_out_with_a_note() {
    for (id, said) in [
        (json!(299), "299"),
        (json!(50256), "50256"),
        (json!(-1), "-1"),
        (json!([300]), "300"),
        (json!("x"), "\"x\""),
    ] {
        let ids = json!({ "bos_token_id": 270, "eos_token_id": id });
        let folder = directory(&[
            ("config.json", ids.clone()),
            ("generation_config.json", ids),
        ]);
        let (found, notes) = imported(&folder.path().join("out"));
        assert_eq!(ends(&found), [Some(270), Some(270)]);
        let note =
            format!("`eos_token_id` of generation_config.json is {said}, which is not a token");
        let about: Vec<_> = notes
            .iter()
            .filter(|found| found.contains("_token_id"))
            .collect();
        assert!(about.len() == 1 && about[0].starts_with(&note), "{notes:?}");
    }
    // If a list has an id that is not a token, the other ids are kept.
    let several = json!({ "bos_token_id": [5, 6], "eos_token_id": [7, 299, 8] });
    let (found, notes) = imported(
        &directory(&[
            ("generation_config.json", several),
            (NAMES, json!({ "bos_token": null, "eos_token": null })),
        ])
        .path()
        .join("out"),
    );
    assert_eq!(ends(&found), [Some(5), Some(7)]);
    assert_eq!(found.more_ends(), [8]);
    for said in [
        "only the first, 5",
        "`eos_token_id` of generation_config.json is 299",
    ] {
        assert!(notes.iter().any(|note| note.contains(said)), "{notes:?}");
    }
}

#[test]
fn bytes_may_have_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let bytes = Tokenizer::train(&residual_zoo::data::TokenizerConfig::Bytes, &[]).unwrap();
    write_run(&zoo::gpt2(), &bytes, &place("run"));
    export(
        &Run::open(place("run")).unwrap(),
        &place("out"),
        &ExportOptions::default(),
    )
    .unwrap();
    let (plain, _) = imported(&place("out"));
    assert_eq!(plain.fingerprint(), bytes.fingerprint());
    fs::remove_dir_all(place("out").join("run")).unwrap();
    fs::write(
        place("out").join("generation_config.json"),
        r#"{ "eos_token_id": 0 }"#,
    )
    .unwrap();
    let (found, _) = imported(&place("out"));
    assert_eq!((found.is_bytes(), found.end_of_text()), (true, Some(0)));
}

/// Returns the added tokens of a GPT-2 with `vocab.json`, `merges.txt` and these settings.
fn added(settings: &Value, map: Option<&Value>) -> Vec<String> {
    let folder = directory(&[]);
    let out = folder.path().join("out");
    let file = read(&out.join("tokenizer.json"));
    fs::remove_file(out.join("tokenizer.json")).unwrap();
    fs::write(out.join("vocab.json"), file["model"]["vocab"].to_string()).unwrap();
    let merges = file["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| match pair {
            Value::String(pair) => format!("{pair}\n"),
            pair => format!(
                "{} {}\n",
                pair[0].as_str().unwrap(),
                pair[1].as_str().unwrap()
            ),
        });
    fs::write(out.join("merges.txt"), merges.collect::<String>()).unwrap();
    fs::write(out.join(NAMES), settings.to_string()).unwrap();
    if let Some(map) = map {
        fs::write(out.join("special_tokens_map.json"), map.to_string()).unwrap();
    }
    let imported = import(&out, &ImportOptions::default()).unwrap();
    let json: Value = serde_json::from_str(&imported.tokenizer.to_hf_json()).unwrap();
    let added = json["added_tokens"].as_array().unwrap().iter();
    added
        .map(|token| format!("{} {}", token["id"], token["content"].as_str().unwrap()))
        .collect()
}

/// The expected values come from `transformers` 5.23.
#[test]
fn gpt2_has_its_end_of_text_only_where_the_files_say_nothing_else() {
    let class = |fields: Value| {
        let mut all = json!({ "tokenizer_class": "GPT2Tokenizer" });
        all.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        all
    };
    let others = json!({ "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>" });
    let nulls = json!({ "bos_token": null, "eos_token": null, "unk_token": null });
    for (settings, map, expected) in [
        (class(json!({})), None, &["270 <|endoftext|>"][..]),
        (json!({}), None, &["270 <|endoftext|>"]),
        (
            class(others.clone()),
            None,
            &["270 <s>", "271 </s>", "272 <unk>"],
        ),
        (class(nulls.clone()), None, &[]),
        (nulls.clone(), None, &[]),
        (
            class(json!({})),
            Some(&others),
            &["270 <s>", "271 </s>", "272 <unk>"],
        ),
        (class(json!({})), Some(&nulls), &[]),
        (class(others.clone()), Some(&nulls), &[]),
        (
            class(json!({ "bos_token": "<s>", "eos_token": null })),
            None,
            &["270 <s>", "271 <|endoftext|>"],
        ),
        (
            class(json!({ "eos_token": "</s>", "pad_token": "<pad>" })),
            None,
            &["270 <|endoftext|>", "271 </s>", "272 <pad>"],
        ),
    ] {
        assert_eq!(added(&settings, map), expected, "{settings} {map:?}");
    }
}

#[test]
fn a_tokenizer_file_with_other_steps_than_gpt2_has_a_note() {
    let lower = json!({ "type": "Lowercase" });
    let said = |class: &str, fields: Value| {
        let folder = directory(&[
            (NAMES, json!({ "tokenizer_class": class })),
            ("tokenizer.json", fields),
        ]);
        let (_, notes) = imported(&folder.path().join("out"));
        notes
            .iter()
            .any(|note| note.contains("tokenizer.json is followed as it is"))
    };
    assert!(said("GPT2TokenizerFast", json!({ "normalizer": lower })));
    assert!(said(
        "GPT2Tokenizer",
        json!({ "pre_tokenizer": { "type": "Whitespace" } })
    ));
    assert!(!said("GPT2Tokenizer", json!({})));
    assert!(!said(
        "PreTrainedTokenizerFast",
        json!({ "normalizer": lower })
    ));
}
