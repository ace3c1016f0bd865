//! Imports, runs and exports models of the `transformers` classes that match the modern decoder.

use std::fs;
use std::path::{Path, PathBuf};

use burn::backend::Flex;
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo::core::LanguageModel as _;
use residual_zoo::data::{Tokenizer, TokenizerConfig};
use residual_zoo::exchange::{ExportOptions, ImportOptions, Imported, export, import};
use residual_zoo::llama::LlamaConfig;
use residual_zoo::runs::checkpoint::read_tensors;
use residual_zoo::{ModelConfig, Run, Zoo};
use residual_zoo_testing::root;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::round_trip::llamas;
use crate::{tokenizer, write_run};

const FOLDERS: [(&str, &str); 7] = [
    ("llama", "LlamaForCausalLM"),
    ("llama3_tied", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("nanochat", "NanoChatForCausalLM"),
];

fn fixtures() -> PathBuf {
    let given = std::env::var_os("ZOO_FIXTURES");
    given
        .map_or_else(|| root().join("tests/fixtures"), PathBuf::from)
        .join("hf")
}

/// Copies a model to a new folder and adds a tokenizer. The new `config.json` is the file `config` after `change`.
fn copied(name: &str, config: &str, change: impl FnOnce(&mut Value)) -> (TempDir, PathBuf) {
    let (from, folder) = (fixtures().join(name), tempfile::tempdir().unwrap());
    let to = folder.path().join("model");
    fs::create_dir(&to).unwrap();
    for file in ["model.safetensors", "generation_config.json"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let mut json: Value = serde_json::from_slice(&fs::read(from.join(config)).unwrap()).unwrap();
    change(&mut json);
    fs::write(to.join("config.json"), json.to_string()).unwrap();
    let letters: String = ('a'..='z').chain('A'..='Z').collect();
    let letters = Tokenizer::train(&TokenizerConfig::Chars, &[letters.as_str()]).unwrap();
    fs::write(to.join("tokenizer.json"), letters.to_hf_json()).unwrap();
    (folder, to)
}

fn read(path: &Path) -> Result<Imported, String> {
    import(path, &ImportOptions::default()).map_err(|error| error.to_string())
}

#[test]
fn every_class_is_imported_with_its_logits_and_exported_with_its_tensors() {
    let device = Default::default();
    for (name, class) in FOLDERS {
        for config in ["config.json", "config-v4.json"] {
            let (folder, path) = copied(name, config, |_| {});
            let imported = read(&path).unwrap_or_else(|e| panic!("{name}, {config}: {e}"));
            let run = folder.path().join("run");
            imported.write(&run).unwrap();
            let run = Run::open(&run).unwrap();
            let model = run.model::<Flex>(&device).unwrap();
            let expected = fs::read(fixtures().join(name).join("expected.safetensors")).unwrap();
            let expected = SafeTensors::deserialize(&expected).unwrap();
            let ids = expected.tensor("input_ids").unwrap();
            let id = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
            let numbers: Vec<i64> = ids.data().chunks_exact(8).map(id).collect();
            let data = TensorData::new(numbers, ids.shape().to_vec());
            let ids = Tensor::<Flex, 2, Int>::from_data(data, &device);
            let logits = model.forward(ids).into_data();
            let truth = expected.tensor("logits_f64").unwrap();
            let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
            let truth: Vec<f64> = truth
                .data()
                .chunks_exact(4)
                .map(|x| number(x).into())
                .collect();
            assert_eq!(truth.len(), logits.num_elements(), "{name}");
            for (a, b) in logits.iter::<f64>().zip(truth) {
                assert!(
                    (a - b).abs() <= 3e-5 + 1e-5 * b.abs(),
                    "{name}, {config}: {a}, not {b}"
                );
            }

            let out = folder.path().join("out");
            let exported = export(&run, &out, &ExportOptions::default()).unwrap();
            assert_eq!(exported.class, class, "{name}");
            let [before, after] =
                [&path, &out].map(|d| read_tensors(&d.join("model.safetensors")).unwrap().0);
            assert_eq!(after, before, "{name}");
            assert_eq!(
                read(&out).unwrap().config.model,
                imported.config.model,
                "{name}"
            );
        }
    }
}

#[test]
fn each_form_is_exported_as_the_class_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    for (name, class, model) in llamas() {
        let (run, out) = (folder.path().join(name), folder.path().join(class));
        write_run(&model, &tokenizer(), &run);
        let exported = export(&Run::open(&run).unwrap(), &out, &ExportOptions::default());
        assert_eq!(exported.unwrap().class, class, "{name}");
    }
}

#[test]
fn a_switch_that_the_zoo_lacks_is_named() {
    let refuses = |name: &str, change: fn(&mut Value), expected: &str| {
        let (_folder, path) = copied(name, "config.json", change);
        let error = read(&path).err().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    refuses(
        "llama",
        |config| config["rope_parameters"]["rope_type"] = json!("yarn"),
        "`rope_parameters.rope_type` is yarn; default and llama3 are supported",
    );
    refuses(
        "llama",
        |config| config["partial_rotary_factor"] = json!(0.5),
        "`partial_rotary_factor` is not 1",
    );
    refuses(
        "llama",
        |config| config["rope_scaling"] = json!({ "type": "linear", "factor": 4.0 }),
        "`rope_scaling.rope_type` is linear",
    );
    refuses(
        "llama",
        |config| config["rope_parameters"] = json!({ "full_attention": {} }),
        "has settings for each type of layer",
    );
    refuses(
        "llama",
        |config| config["head_dim"] = json!(4_611_686_018_427_387_912_u64),
        "`head_dim` is 4611686018427387912; it must be at most",
    );
    refuses(
        "llama",
        |config| drop(config.as_object_mut().unwrap().remove("vocab_size")),
        "`vocab_size` is missing or 0",
    );
    refuses(
        "llama",
        |config| config["hidden_act"] = json!("quick_gelu"),
        "`hidden_act` is quick_gelu",
    );
    refuses(
        "llama",
        |config| config["attention_dropout"] = json!(0.1),
        "`attention_dropout` is 0.1",
    );
    refuses(
        "llama",
        |config| config["num_key_value_heads"] = json!(3),
        "does not divide",
    );
    refuses(
        "llama",
        |config| config["hidden_size"] = json!(0),
        "`hidden_size` is missing or 0",
    );
    refuses(
        "llama",
        |config| config["model_type"] = json!("mistral"),
        "is of a model of type mistral",
    );
    refuses(
        "llama3_tied",
        |config| config["rope_parameters"]["factor"] = Value::Null,
        "factor` is missing",
    );
    refuses(
        "gemma2",
        |config| config["layer_types"] = json!(["chunked_attention", "full_attention"]),
        "`layer_types` has chunked_attention",
    );
    refuses(
        "gemma2",
        |config| config["layer_types"] = json!(["full_attention"]),
        "each of the 2 layers",
    );
    refuses(
        "gemma2",
        |config| config["use_bidirectional_attention"] = json!(true),
        "`use_bidirectional_attention` is true",
    );
}

#[test]
fn gemma_without_types_of_layers_has_windows_in_even_layers() {
    let without = |config: &mut Value| drop(config.as_object_mut().unwrap().remove("layer_types"));
    let (_one, old) = copied("gemma2", "config-v4.json", without);
    let (_two, new) = copied("gemma2", "config.json", |_| {});
    assert_eq!(
        read(&old).unwrap().config.model,
        read(&new).unwrap().config.model
    );
}

#[test]
fn an_unembedding_beside_a_tied_table_must_equal_it() {
    let untie = |config: &mut Value| config["tie_word_embeddings"] = json!(true);
    let (_folder, path) = copied("llama", "config.json", untie);
    let error = read(&path).err().unwrap();
    assert!(
        error.contains("lm_head.weight, which differs from model.embed_tokens.weight"),
        "{error}"
    );
}

#[test]
fn a_missing_cap_has_the_default_of_its_class_and_null_is_no_cap() {
    let model = |name: &str, change: fn(&mut Value)| {
        let (_folder, path) = copied(name, "config.json", change);
        read(&path).unwrap().config.model
    };
    let caps = |model: &ModelConfig| match model.layers.first() {
        Some(Zoo::Llama(config)) => (config.attention_cap, config.logit_cap),
        _ => panic!("{model:?}"),
    };
    let without = |config: &mut Value| {
        let fields = config.as_object_mut().unwrap();
        fields.remove("attn_logit_softcapping");
        fields.remove("final_logit_softcapping");
    };
    assert_eq!(caps(&model("gemma2", without)), (Some(50.0), Some(30.0)));
    assert_eq!(caps(&model("nanochat", without)), (None, Some(15.0)));
    let null = |config: &mut Value| {
        config["attn_logit_softcapping"] = Value::Null;
        config["final_logit_softcapping"] = Value::Null;
    };
    assert_eq!(caps(&model("gemma2", null)), (None, None));
    assert_eq!(caps(&model("nanochat", null)), (None, None));
}

#[test]
fn a_form_that_no_class_has_is_exported_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let [(_, _, llama), .., (_, _, gemma), _] = &llamas()[..] else {
        panic!("two forms")
    };
    let changed = |model: &ModelConfig, change: fn(&mut LlamaConfig)| {
        let mut model = model.clone();
        for layer in &mut model.layers {
            if let Zoo::Llama(config) = layer {
                change(config);
            }
        }
        model
    };
    let own = "ResidualZooForCausalLM";
    let cases = [
        (changed(llama, |config| config.rotary.share = 0.6), own),
        (
            changed(llama, |config| config.n_head = 6),
            "LlamaForCausalLM",
        ),
        (changed(llama, |config| config.width = 50), own),
        (
            changed(gemma, |config| config.windows.clear()),
            "Gemma2ForCausalLM",
        ),
        (
            changed(gemma, |config| config.logit_cap = None),
            "Gemma2ForCausalLM",
        ),
    ];
    for (i, (model, class)) in cases.into_iter().enumerate() {
        let [run, out] = ["run", "out"].map(|name| folder.path().join(format!("{name}{i}")));
        write_run(&model, &tokenizer(), &run);
        let exported = export(&Run::open(&run).unwrap(), &out, &ExportOptions::default());
        assert_eq!(exported.unwrap().class, class, "{i}");
        assert_eq!(read(&out).unwrap().config.model, model, "{i}");
    }
}

#[test]
fn a_connection_goes_around_an_imported_model_with_its_own_unembedding() {
    let (_folder, path) = copied("llama", "config.json", |_| {});
    let options = ImportOptions {
        set: vec!["model.connection=PerSublayer(Laurel())".into()],
        ..ImportOptions::default()
    };
    let imported = import(&path, &options).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        imported
            .weights
            .contains_key("embeddings.unembedding.weight")
    );
}
