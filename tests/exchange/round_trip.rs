//! An exported model is read back bit for bit.

use std::collections::BTreeSet;

use residual_zoo::Run;
use residual_zoo::core::{Activation, Design as _, ModelConfig as _};
use residual_zoo::data::{Source, Tokenizer, TokenizerConfig};
use residual_zoo::exchange::{ExportOptions, ImportOptions, export, import};
use residual_zoo::gpt2::{Gpt2Base, Gpt2Config};
use residual_zoo::llama::{LlamaConfig, presets};
use residual_zoo::loops::LoopsConfig;
use residual_zoo::recurrent::Form;
use residual_zoo::streams::HyperConfig;
use residual_zoo::{ModelConfig, PlacedConnection, core::Mup};
use residual_zoo_testing::zoo;

use crate::{tokenizer, weights, write_run};

/// Returns forms of GPT-2 that `GPT2LMHeadModel` supports.
pub fn gpt2s() -> Vec<(&'static str, ModelConfig)> {
    let small = Gpt2Config {
        n_layer: 2,
        n_head: 3,
        width: 48,
        context: 64,
        ..Gpt2Config::default()
    };
    let other = Gpt2Config {
        tied: false,
        d_ff: Some(100),
        activation: Activation::GeluErf,
        norm_eps: 1e-3,
        ..small.clone()
    };
    let plain = Gpt2Config {
        bias: false,
        inverse_layer_scale: true,
        activation: Activation::Relu,
        ..small.clone()
    };
    vec![
        ("GPT-2 as published", ModelConfig::of(small)),
        ("GPT-2 with an unembedding", ModelConfig::of(other)),
        ("GPT-2 without biases", ModelConfig::of(plain)),
    ]
}

/// Returns small forms of the modern decoder, each with the name of its `transformers` class.
pub fn llamas() -> Vec<(&'static str, &'static str, ModelConfig)> {
    let classes = [
        ("llama-3.2-1b", "LlamaForCausalLM"),
        ("qwen-2.5-0.5b", "Qwen2ForCausalLM"),
        ("qwen-3-8b", "Qwen3ForCausalLM"),
        ("olmo-2-7b", "Olmo2ForCausalLM"),
        ("gemma-2-2b", "Gemma2ForCausalLM"),
        ("nanochat-d20-2025", "NanoChatForCausalLM"),
    ];
    classes
        .map(|(name, class)| (name, class, small(presets::named(name).unwrap().config)))
        .into()
}

/// Returns a small model with the same form of the modern decoder.
fn small(preset: LlamaConfig) -> ModelConfig {
    let windows = preset.windows.iter().map(|window| window.map(|_| 5));
    ModelConfig::of(LlamaConfig {
        n_layer: 2,
        n_head: 4,
        n_kv_head: Some(2),
        head_dim: Some(10),
        width: 48,
        d_ff: Some(60),
        context: 64,
        windows: windows.collect(),
        // A `config.json` does not state the initial weights.
        init: None,
        ..preset
    })
}

/// Returns a GPT-2 with the multipliers of μP, which `GPT2LMHeadModel` does not support.
pub fn mup() -> ModelConfig {
    ModelConfig::of(Gpt2Config {
        n_layer: 2,
        n_head: 4,
        width: 64,
        context: 64,
        tied: false,
        mup: Some(Mup {
            base: Gpt2Base {
                width: 32,
                n_head: 4,
                d_ff: None,
            },
            init_std: 0.3,
            input: 2.0,
            attention: 1.5,
            output: 3.0,
        }),
        ..Gpt2Config::default()
    })
}

/// Returns the tested models: architectures, compositions, loops, and each connection in each of its forms.
pub fn all() -> Vec<(String, ModelConfig)> {
    let own = [
        zoo::architectures(),
        zoo::compositions(),
        zoo::connections(),
        zoo::streams(),
        zoo::loops(),
        vec![("μP", mup())],
        gpt2s(),
    ];
    let llamas = llamas().into_iter().map(|(name, _, model)| (name, model));
    let all = own.into_iter().flatten().chain(llamas);
    all.map(|(name, model)| (name.to_owned(), model)).collect()
}

/// Splits the models of [`all`] into three groups. The first group has models with plain connections or LAuReL and
/// without a depth loop. The second has one form of each other connection and one depth loop. The third has the rest.
pub fn split() -> [Vec<(String, ModelConfig)>; 3] {
    let mut seen = BTreeSet::new();
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    for (name, model) in all() {
        let placed = model.connection.as_ref();
        let of = placed.map_or("", |placed| match placed {
            PlacedConnection::PerSublayer(of) | PlacedConnection::PerLayer(of) => of.name(),
        });
        let is_basic = (of.is_empty() || of.starts_with("LAuReL")) && model.loops.is_none();
        let part = match is_basic {
            true => 0,
            false if seen.insert((of, model.loops.is_some())) => 1,
            false => 2,
        };
        parts[part].push((name, model));
    }
    parts
}

/// Returns one form of each connection in every other place that allows the connection. These places are layers,
/// sublayers of other architectures, a depth loop, and a recurrence. One of the architectures alternates RMT and GPT-2
/// layers. [`all`] has every form around the sublayers of a GPT-2.
pub fn elsewhere() -> Vec<(String, ModelConfig)> {
    let (mut found, mut kinds) = (Vec::new(), BTreeSet::new());
    for (name, model) in zoo::connections() {
        let Some(
            PlacedConnection::PerSublayer(connection) | PlacedConnection::PerLayer(connection),
        ) = &model.connection
        else {
            continue;
        };
        if !kinds.insert(connection.name()) {
            continue;
        }
        let (gpt2, mixed) = (zoo::gpt2(), zoo::in_turn([zoo::rmt(), zoo::gpt2()]));
        let sublayers = |of: ModelConfig| of.per_sublayer(connection.clone());
        let placed = [
            (
                "layers of GPT-2",
                gpt2.clone().per_layer(connection.clone()),
            ),
            ("Llama", sublayers(zoo::llama())),
            ("nGPT", sublayers(zoo::ngpt())),
            ("RMT and GPT-2 in turn", sublayers(mixed)),
            (
                "a loop",
                sublayers(gpt2.clone().looped(LoopsConfig::looped(2))),
            ),
            (
                "a recurrence",
                sublayers(gpt2.recurrent(zoo::recurrence(9, Form::Paper))),
            ),
        ];
        for (place, placed) in placed {
            if placed != model && placed.validate_fields().is_ok() {
                found.push((format!("{name}, {place}"), placed));
            }
        }
    }
    found
}

#[test]
fn the_number_of_loops_of_an_export_can_be_set() {
    let folder = tempfile::tempdir().unwrap();
    let (name, model) = zoo::loops().remove(0);
    write_run(&model, &tokenizer(), &folder.path().join("run"));
    let mut run = Run::open(folder.path().join("run")).unwrap();
    run.config.model.set_loops(7).unwrap();
    let exported = folder.path().join("exported");
    export(&run, &exported, &ExportOptions::default()).unwrap();
    let imported = import(&exported, &ImportOptions::default()).unwrap();
    let found = imported.config.model.loops.map(|loops| loops.evaluated());
    assert_eq!(found, Some(7), "{name}");
}

#[test]
fn every_model_is_read_back_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str, i: usize| folder.path().join(format!("{name}-{i}"));
    let models = all().into_iter().chain(elsewhere());
    for (i, (name, model)) in models.enumerate() {
        let (run, exported, back) = (place("run", i), place("exported", i), place("back", i));
        write_run(&model, &tokenizer(), &run);
        let written = Run::open(&run).unwrap();
        export(&written, &exported, &ExportOptions::default()).unwrap();
        let imported = import(&exported, &ImportOptions::default()).unwrap();
        assert_eq!(imported.config.model, model, "{name}");
        imported.write(&back).unwrap();
        assert_eq!(weights(&back), weights(&run), "{name}");
        let read = Run::open(&back).unwrap();
        assert_eq!(
            read.tokenizer.fingerprint(),
            written.tokenizer.fingerprint()
        );
    }
}

#[test]
fn an_export_has_only_the_code_of_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let (run, exported) = (folder.path().join("run"), folder.path().join("out"));
    let model = zoo::gpt2().per_sublayer(HyperConfig::default());
    write_run(&model, &tokenizer(), &run);
    let run = Run::open(&run).unwrap();
    export(&run, &exported, &ExportOptions::default()).unwrap();
    let code = std::fs::read_to_string(exported.join("modeling_residual_zoo.py")).unwrap();
    for (class, is_part) in [
        ("Gpt2Attention", true),
        ("Copies", true),
        ("Hyper", true),
        ("Mhc", false),
        ("Laurel", false),
        ("LlamaAttention", false),
        ("Recurrent", false),
        ("Loops", false),
    ] {
        assert_eq!(
            code.contains(&format!("class {class}(")),
            is_part,
            "{class}"
        );
    }
}

#[test]
fn every_tokenizer_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["the", "cat", "sat"].map(str::to_owned).to_vec();
    let train = |config| Tokenizer::train(&config, &["the cat\né"]).unwrap();
    let all = [
        train(TokenizerConfig::Bytes),
        train(TokenizerConfig::Chars),
        Tokenizer::words(words).unwrap(),
        tokenizer().padded(300).unwrap(),
    ];
    for (i, tokenizer) in all.into_iter().enumerate() {
        let place = |name: &str| folder.path().join(format!("{name}-{i}"));
        write_run(&zoo::gpt2(), &tokenizer, &place("run"));
        let run = Run::open(place("run")).unwrap();
        export(&run, &place("exported"), &ExportOptions::default()).unwrap();
        let imported = import(&place("exported"), &ImportOptions::default()).unwrap();
        assert_eq!(imported.tokenizer.fingerprint(), tokenizer.fingerprint());
    }
}

#[test]
fn the_model_card_says_what_the_model_is() {
    let folder = tempfile::tempdir().unwrap();
    let (run, exported) = (folder.path().join("run"), folder.path().join("exported"));
    write_run(&zoo::rmt(), &tokenizer(), &run);
    let options = ExportOptions {
        license: Some("mit".into()),
    };
    let written = export(&Run::open(&run).unwrap(), &exported, &options).unwrap();
    assert_eq!(written.class, "ResidualZooForCausalLM");
    let card = std::fs::read_to_string(exported.join("README.md")).unwrap();
    for part in [
        "license: \"mit\"",
        "# RMT",
        "| parameters | ",
        "trust_remote_code=True",
        "Rmt(",
    ] {
        assert!(card.contains(part), "{part} is missing in\n{card}");
    }
}

#[test]
fn the_model_card_of_a_recurrence_says_how_to_evaluate_it() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model) in zoo::compositions() {
        let (run, exported) = (folder.path().join(name), folder.path().join("out"));
        write_run(&model, &tokenizer(), &run);
        export(
            &Run::open(&run).unwrap(),
            &exported,
            &ExportOptions::default(),
        )
        .unwrap();
        let card = std::fs::read_to_string(exported.join("README.md")).unwrap();
        let is_said = card.contains("needs `batch_size=1`");
        assert_eq!(is_said, model.recurrence.is_some(), "{name}");
        std::fs::remove_dir_all(&exported).unwrap();
    }
}

#[test]
fn texts_of_others_are_one_escaped_line_of_the_model_card() {
    let folder = tempfile::tempdir().unwrap();
    let (run, exported) = (folder.path().join("run"), folder.path().join("exported"));
    write_run(&zoo::rmt(), &tokenizer(), &run);
    let hostile = "x\n\n# Setup\n\n```python\nimport os\n```\n\n| <img src=x onerror=alert(1)> \u{1b}]0;PWN\u{7}\u{202e}";
    let history = run.join("history.jsonl");
    let first = std::fs::read_to_string(&history).unwrap_or_default();
    let mut start: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    start["init_from"] = hostile.into();
    std::fs::write(&history, format!("{start}\n")).unwrap();
    let mut run = Run::open(&run).unwrap();
    run.config.data.source = Source::Path(hostile.into());
    let options = ExportOptions {
        license: Some(hostile.into()),
    };
    export(&run, &exported, &options).unwrap();
    let card = std::fs::read_to_string(exported.join("README.md")).unwrap();
    let escaped = r"x \# Setup \`\`\`python import os \`\`\` \| &lt;img src=x onerror=alert\(1\)&gt; \\u\{1b\}\]0;PWN\\u\{7\}\\u\{202e\}";
    for line in [
        format!("| data | {escaped} |"),
        format!("| licence | {escaped} |"),
    ] {
        assert!(card.lines().any(|found| found == line), "{line}\n{card}");
    }
    assert!(card.contains(&format!(
        "Trained, from the weights of another run, {escaped} and exported by "
    )));
    assert!(!card.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{card}");
    // Text from others does not end the settings block, the table or the front matter early.
    let fences = card
        .lines()
        .filter(|line| line.trim_start().starts_with("```"));
    assert_eq!(
        fences.collect::<Vec<_>>(),
        ["```python", "```", "```ron", "```"]
    );
    assert_eq!(card.lines().filter(|line| line.starts_with('#')).count(), 1);
    let rules = card.lines().filter(|line| *line == "---");
    assert_eq!(rules.count(), 2);
}
