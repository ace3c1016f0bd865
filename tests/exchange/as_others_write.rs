//! Directories as other programs write them: `null` for fields that are not set, and added tokens in files of their
//! own.

use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo::Run;
use residual_zoo::exchange::{ExportOptions, ImportOptions, export, import};
use residual_zoo_testing::zoo;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{tokenizer, write_run};

/// Number of ids in the table; the tokenizer has 271.
const TABLE: usize = 300;

/// Exports a model to a folder.
fn exported(model: &residual_zoo::ModelConfig) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (folder.path().join("run"), folder.path().join("out"));
    write_run(model, &tokenizer().padded(TABLE).unwrap(), &run);
    export(&Run::open(&run).unwrap(), &out, &ExportOptions::default()).unwrap();
    (folder, out)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn write(path: &Path, value: &Value) {
    fs::write(path, value.to_string()).unwrap();
}

/// Imports `out`. Returns the config and the ids of a text, or the error.
fn imported(out: &Path) -> Result<(String, Vec<u32>), String> {
    let imported = import(out, &ImportOptions::default()).map_err(|error| error.to_string())?;
    let ids = imported.tokenizer.encode("the cat<|endoftext|>").unwrap();
    Ok((imported.config.to_ron(), ids))
}

#[test]
fn a_field_that_is_null_is_as_if_it_were_missing() {
    for model in [zoo::gpt2(), zoo::rmt()] {
        let (_folder, out) = exported(&model);
        for name in [
            "config.json",
            "generation_config.json",
            "tokenizer_config.json",
        ] {
            let file = out.join(name);
            let whole = read(&file);
            for field in whole.as_object().unwrap().keys() {
                let mut changed = whole.clone();
                changed[field] = Value::Null;
                write(&file, &changed);
                let null = imported(&out);
                changed.as_object_mut().unwrap().remove(field);
                write(&file, &changed);
                assert_eq!(null, imported(&out), "{name}: {field}");
            }
            write(&file, &whole);
        }
    }
}

#[test]
fn everything_that_may_be_left_out_can_be_null_at_once() {
    let (_folder, out) = exported(&zoo::gpt2());
    let expected = imported(&out).unwrap();
    let file = out.join("config.json");
    let mut config = read(&file);
    // The model needs these fields. All others have defaults or are unused.
    let needed = [
        "model_type",
        "vocab_size",
        "n_positions",
        "n_embd",
        "n_layer",
        "n_head",
    ];
    for (name, value) in config.as_object_mut().unwrap() {
        if !needed.contains(&name.as_str()) && !name.ends_with("_pdrop") {
            *value = Value::Null;
        }
    }
    config["task_specific_params"] = json!({ "text-generation": { "max_length": 50 } });
    write(&file, &config);
    assert_eq!(imported(&out).unwrap(), expected);
}

#[test]
fn whole_numbers_may_be_floats() {
    for model in [zoo::gpt2(), zoo::rmt()] {
        let (_folder, out) = exported(&model);
        let expected = imported(&out).unwrap();
        let file = out.join("config.json");
        let mut config = read(&file);
        as_floats(&mut config);
        assert!(config.to_string().contains("300.0"));
        write(&file, &config);
        assert_eq!(imported(&out).unwrap(), expected);
    }
}

fn as_floats(value: &mut Value) {
    match value {
        Value::Number(number) => *value = json!(number.as_f64().unwrap()),
        Value::Array(values) => values.iter_mut().for_each(as_floats),
        Value::Object(fields) => fields.values_mut().for_each(as_floats),
        _ => {}
    }
}

#[test]
fn a_model_without_a_type_is_known_by_its_class() {
    let (_folder, out) = exported(&zoo::gpt2());
    let expected = imported(&out).unwrap();
    let file = out.join("config.json");
    let mut config = read(&file);
    config["model_type"] = Value::Null;
    write(&file, &config);
    assert_eq!(imported(&out).unwrap(), expected);
    config["architectures"] = json!(["LlamaForCausalLM"]);
    write(&file, &config);
    let error = imported(&out).unwrap_err();
    assert!(error.contains("is without model_type"), "{error}");
}

/// Imports a GPT-2 with `file` beside its tokenizer. Returns the ids of `text` and the notes.
fn with(file: &str, content: &Value, text: &str) -> Result<(Vec<u32>, Vec<String>), String> {
    let (_folder, out) = exported(&zoo::gpt2());
    write(&out.join(file), content);
    let imported = import(&out, &ImportOptions::default()).map_err(|error| error.to_string())?;
    assert_eq!(imported.tokenizer.vocab_size(), TABLE);
    // The tokenizer of the written run has these tokens too.
    let run = out.join("run");
    imported.write(&run).unwrap();
    let run = Run::open(&run).unwrap();
    Ok((run.tokenizer.encode(text).unwrap(), imported.notes))
}

#[test]
fn tokens_in_files_beside_the_tokenizer_are_added() {
    let text = "<|user|><|pad|>";
    let added = json!({ "<|user|>": 272, "<|pad|>": 271 });
    let (ids, _) = with("added_tokens.json", &added, text).unwrap();
    assert_eq!(ids, [272, 271]);
    let token = |content: &str| json!({ "content": content, "lstrip": true, "special": true });
    let decoder = json!({
        "added_tokens_decoder": { "272": token("<|user|>"), "271": token("<|pad|>"), "270": token("<|endoftext|>") },
        "pad_token": null,
    });
    let (ids, _) = with("tokenizer_config.json", &decoder, "  <|user|> <|pad|>").unwrap();
    assert_eq!(ids, [272, 271]);
    let special = json!({ "pad_token": "<|pad|>", "additional_special_tokens": ["<|user|>"] });
    let (ids, _) = with("special_tokens_map.json", &special, text).unwrap();
    assert_eq!(ids, [272, 271]);
}

/// The expected values come from `transformers` 5.23.
#[test]
fn of_two_lists_of_special_tokens_one_is_read() {
    let (e, a) = ("extra_special_tokens", "additional_special_tokens");
    let read = |settings: &Value, map: &Value| {
        let (_folder, out) = exported(&zoo::gpt2());
        let mut all = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
        all.as_object_mut()
            .unwrap()
            .extend(settings.as_object().unwrap().clone());
        write(&out.join("tokenizer_config.json"), &all);
        write(&out.join("special_tokens_map.json"), map);
        let tokenizer = import(&out, &ImportOptions::default()).unwrap().tokenizer;
        ["<e>", "<a>", "<n>"].map(|token| tokenizer.token_id(token))
    };
    let none = json!({});
    for (settings, map, expected) in [
        (
            json!({ e: ["<e>"], a: ["<a>"] }),
            &none,
            [Some(271), None, None],
        ),
        (json!({ a: ["<a>"] }), &none, [None, Some(271), None]),
        (json!({ e: [], a: ["<a>"] }), &none, [None, Some(271), None]),
        (json!({ e: {}, a: ["<a>"] }), &none, [None, Some(271), None]),
        (
            json!({ e: null, a: ["<a>"] }),
            &none,
            [None, Some(271), None],
        ),
        (
            json!({ e: ["<e>"], a: null }),
            &none,
            [Some(271), None, None],
        ),
        (
            json!({ e: { "n_token": "<n>" }, a: ["<a>"] }),
            &none,
            [None, Some(272), Some(271)],
        ),
        (
            none.clone(),
            &json!({ e: ["<e>"], a: ["<a>"] }),
            [Some(271), None, None],
        ),
        (
            json!({ e: ["<e>"] }),
            &json!({ a: ["<a>"] }),
            [Some(271), None, None],
        ),
        (
            json!({ a: ["<a>"] }),
            &json!({ e: ["<e>"] }),
            [Some(272), Some(271), None],
        ),
        (json!({ e: [] }), &json!({ a: ["<a>"] }), [None, None, None]),
    ] {
        assert_eq!(read(&settings, map), expected, "{settings} {map}");
    }
}

#[test]
fn what_python_writes_is_read_where_it_is_not_used() {
    for model in [zoo::gpt2(), zoo::rmt()] {
        let (_folder, out) = exported(&model);
        let expected = imported(&out).unwrap();
        for name in [
            "config.json",
            "generation_config.json",
            "tokenizer_config.json",
        ] {
            let file = out.join(name);
            let text = fs::read_to_string(&file).unwrap();
            let odd =
                r#"{"x": [NaN, -Infinity], "NaN": "Infinity", "y": "\ud800 \ud83d\ude00 \udc00","#;
            fs::write(&file, text.replacen('{', odd, 1)).unwrap();
            assert_eq!(imported(&out).as_ref(), Ok(&expected), "{name}");
            fs::write(&file, text).unwrap();
        }
    }
}

#[test]
fn a_field_that_cannot_be_used_is_named() {
    let (_folder, out) = exported(&zoo::gpt2());
    let file = out.join("config.json");
    let text = fs::read_to_string(&file).unwrap();
    for (field, wrong, says) in [
        ("layer_norm_epsilon", "NaN", "write one finite number"),
        ("resid_pdrop", "-Infinity", "write one finite number"),
        ("n_layer", "NaN", "write one finite number"),
        ("n_head", "\"two\"", "expected usize"),
        ("n_inner", "\"\\ud800\"", "expected usize"),
    ] {
        let (before, rest) = text.split_once(&format!("\"{field}\": ")).unwrap();
        let after = rest.split_once([',', '\n']).unwrap().1;
        fs::write(&file, format!("{before}\"{field}\": {wrong},\n{after}")).unwrap();
        let error = imported(&out).unwrap_err();
        assert!(
            error.contains(&format!("`{field}`")) && error.contains(says),
            "{error}"
        );
        assert!(error.contains("config.json"), "{error}");
    }
}

#[test]
fn a_token_with_another_id_than_it_gets_is_refused() {
    let added = json!({ "<|user|>": 271, "<|pad|>": 280 });
    let error = with("added_tokens.json", &added, "").unwrap_err();
    let expected = "gives the added token \"<|pad|>\" the id 280, but its id is 272";
    assert!(error.contains(expected), "{error}");
    for wrong in [
        json!({ "<|pad|>": "x" }),
        json!({ "<|pad|>": -1 }),
        json!([1]),
    ] {
        let error = with("added_tokens.json", &wrong, "").unwrap_err();
        assert!(
            error.contains("added_tokens.json") && error.contains("damaged"),
            "{error}"
        );
    }
    let unordered = json!({ "extra_special_tokens": { "user": "<|user|>", "image": "<|image|>" } });
    let error = with("tokenizer_config.json", &unordered, "").unwrap_err();
    assert!(error.contains("without their ids"), "{error}");
    let wrong = json!({ "added_tokens_decoder": { "271": "<|pad|>", "x": {} } });
    let error = with("tokenizer_config.json", &wrong, "").unwrap_err();
    assert!(error.contains("`x` is not a token"), "{error}");
    // The error names the file that has the wrong token.
    for file in ["special_tokens_map.json", "tokenizer_config.json"] {
        let error = with(file, &json!({ "eos_token": 5 }), "").unwrap_err();
        assert!(
            error.contains(file) && error.contains("`eos_token` is not a token"),
            "{error}"
        );
    }
}

#[test]
fn a_token_without_a_row_in_the_table_is_left_out_with_a_note() {
    let tokens: serde_json::Map<String, Value> = (271..=300)
        .map(|id| (format!("<{id}>"), json!(id)))
        .collect();
    let (ids, notes) = with("added_tokens.json", &tokens.into(), "<299>").unwrap();
    assert_eq!(ids, [299]);
    assert!(
        notes.iter().any(|note| note.ends_with("left out: <300>")),
        "{notes:?}"
    );
}

#[test]
fn an_index_has_nulls_where_nothing_is_set() {
    let (_folder, out) = exported(&zoo::gpt2());
    let expected = imported(&out).unwrap();
    fs::rename(
        out.join("model.safetensors"),
        out.join("model-00001-of-00001.safetensors"),
    )
    .unwrap();
    let index = out.join("model.safetensors.index.json");
    let file = "model-00001-of-00001.safetensors";
    write(
        &index,
        &json!({ "metadata": null, "weight_map": { "transformer.wte.weight": file, "lm_head.weight": null } }),
    );
    assert_eq!(imported(&out).unwrap(), expected);
    for (map, problem) in [
        (Value::Null, "names no file"),
        (json!({ "a": 3 }), "the file of a is not a name"),
        (json!({ "a": "../b" }), "not beside it"),
    ] {
        write(&index, &json!({ "weight_map": map }));
        let error = imported(&out).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}
