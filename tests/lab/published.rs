//! The experiments have the papers' hyper-parameters.

use std::collections::BTreeMap;
use std::fs;

use residual_zoo::core::{Architecture as _, ModelConfig as _, Mup, Vocabulary};
use residual_zoo::data::Source;
use residual_zoo::experiment::PlannedRun;
use residual_zoo::gpt2::Gpt2Base;
use residual_zoo::recurrent::{Alpha, Form};
use residual_zoo::rmt::RmtConfig;
use residual_zoo::runs::{MinLearningRate, Schedule};
use residual_zoo::tokenformer::{PairInit, Position, TokenFormerConfig};
use residual_zoo::{ModelConfig, Zoo};
use serde_json::Value;

use super::suite_files::{experiment, experiments, root};

fn planned(paper: &str, name: &str) -> Vec<PlannedRun> {
    experiment(paper, name, "paper").plan(&[]).unwrap()
}

fn run<'a>(planned: &'a [PlannedRun], name: &str) -> &'a residual_zoo::RunConfig {
    let found = planned.iter().find(|run| run.name == name);
    found
        .unwrap_or_else(|| panic!("no {name}"))
        .config
        .as_ref()
        .unwrap()
}

/// Returns the fields of a model by name, without the names of architectures.
fn fields(model: &ModelConfig) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut tree = serde_json::to_value(model).unwrap();
    while let Value::Object(entries) = tree {
        let mut inner = Value::Null;
        for (key, value) in entries {
            match key == "of" || key.starts_with(char::is_uppercase) {
                true => inner = value,
                false => {
                    found.insert(key, value);
                }
            }
        }
        tree = inner;
    }
    found
}

fn number(model: &ModelConfig, field: &str) -> f64 {
    let fields = fields(model);
    let value = fields.get(field).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{field} in {fields:?}"))
}

/// Returns a figure that follows from the papers' tables. The figures are computed without the zoo's code.
fn paper(path: &str) -> Value {
    let file: Value = serde_json::from_str(include_str!("../fixtures/paper-tables.json")).unwrap();
    file.pointer(path).unwrap().clone()
}

fn table(path: &str) -> Vec<Value> {
    paper(path).as_array().unwrap().clone()
}

/// GPT-2's number of token ids.
const GPT2: usize = 50_257;
const NEOX: usize = 50_304;

/// Parses numbers such as `142M` and `1.7B`.
fn printed(text: &Value) -> f64 {
    let text = text.as_str().unwrap();
    let (digits, unit) = text.split_at(text.len() - 1);
    let unit = match unit {
        "M" => 1e6,
        "B" => 1e9,
        _ => panic!("{text}"),
    };
    digits.parse::<f64>().unwrap() * unit
}

fn tokens(config: &residual_zoo::RunConfig) -> f64 {
    (config.train.steps * config.tokens_per_step()) as f64
}

#[test]
fn the_scaling_runs_are_those_of_tables_8_and_9() {
    let planned = planned("rmt", "rmt_scaling");
    for (i, row) in table("/rmt/table8_transformer").iter().enumerate() {
        let config = run(&planned, &format!("transformer {}", i + 1));
        for (field, column) in [("n_layer", "L"), ("width", "D"), ("n_head", "H")] {
            assert_eq!(number(&config.model, field), row[column].as_f64().unwrap());
        }
        let expected =
            row["exact_no_norms"].as_u64().unwrap() + row["norm_scales"].as_u64().unwrap();
        assert_eq!(config.model.cost(GPT2).params.total() as u64, expected);
        let share = tokens(config) / printed(&row["printed_train_tokens"]);
        assert!((share - 1.0).abs() < 0.03, "{i}: {share}");
        assert_eq!(config.train.batch, if i == 3 { 256 } else { 64 });
        assert_eq!(config.train.learning_rate, 6.5e-3);
    }
    let presets = [
        RmtConfig::m46(),
        RmtConfig::m134(),
        RmtConfig::m206(),
        RmtConfig::m305(),
    ];
    for (i, row) in table("/rmt/table9_rmt").iter().enumerate() {
        let config = run(&planned, &format!("RMT {}", i + 1));
        for (field, column) in [
            ("n_layer", "L"),
            ("d_k", "D_k"),
            ("d_v", "D_v"),
            ("rank", "R"),
        ] {
            assert_eq!(number(&config.model, field), row[column].as_f64().unwrap());
        }
        let expected =
            row["exact_no_norms"].as_u64().unwrap() + row["norm_scales"].as_u64().unwrap();
        assert_eq!(config.model.cost(GPT2).params.total() as u64, expected);
        // In Figure 2, the last model has 20 tokens per feed-forward weight, not the 6B tokens of Table 9. Each of its
        // 24 layers has 8 D_v² R² such weights (section 4.2).
        let expected = match i {
            3 => 20.0 * 24.0 * 2.0 * (64.0 * 16.0) * (4.0 * 64.0 * 16.0),
            _ => printed(&row["printed_train_tokens"]),
        };
        let share = tokens(config) / expected;
        assert!((share - 1.0).abs() < 0.03, "{i}: {share}");
        assert_eq!(config.train.batch, if i == 3 { 256 } else { 64 });
        assert_eq!(config.model.cost(GPT2), presets[i].cost(GPT2));
    }
    for run in &planned {
        let config = run.config.as_ref().unwrap();
        let (train, warmup) = (&config.train, config.train.warmup as f64);
        // Appendix C.1: warm-up for 5 %, decay to 10 %, 512 tokens.
        assert!((warmup / train.steps as f64 - 0.05).abs() < 1e-3);
        assert_eq!(train.min_learning_rate, MinLearningRate::Ratio(0.1));
        assert_eq!(config.time(), 512);
    }
}

#[test]
fn the_largest_runs_are_the_last_rows_on_the_tokens_of_table_3() {
    let scaling = planned("rmt", "rmt_scaling");
    let largest = planned("rmt", "rmt_vs_transformer");
    for (name, row) in [("transformer", "transformer 4"), ("RMT", "RMT 4")] {
        assert_eq!(run(&largest, name).model, run(&scaling, row).model);
        assert!((tokens(run(&largest, name)) / 6.04e9 - 1.0).abs() < 0.001);
    }
}

#[test]
fn only_the_rmt_has_a_z_loss() {
    for (paper, name) in experiments() {
        for run in planned(&paper, &name) {
            let Some(config) = &run.config else { continue };
            if experiment(&paper, &name, "paper").count.is_some() {
                continue;
            }
            let expected = if paper == "rmt" { 1e-4 } else { 0.0 };
            assert_eq!(config.train.z_loss, expected, "{name}: {}", run.name);
            if ["tokenformer_growth", "tokenformer_net2net"].contains(&name.as_str()) {
                assert_eq!(config.data.valid_fraction, 0.05);
            }
        }
    }
}

/// Checks that the paper's files name the fields that are not in the paper.
fn says_that_fields_are_from_code(paper: &str, name: &str) {
    let path = root().join(format!("experiments/{paper}/{name}.ron"));
    let text = fs::read_to_string(path).unwrap();
    assert!(
        text.contains("// Not in the paper; from its code"),
        "{name}"
    );
}

#[test]
fn the_recipes_of_the_recurrent_transformer_are_those_of_its_code() {
    for (name, rate, steps, batch, block) in [
        ("recurrent_copy", 5e-4, 400_000, 64, 32),
        ("recurrent_selective_copy", 5e-4, 400_000, 64, 32),
        ("recurrent_image", 5e-4, 5_000, 120, 32),
        ("recurrent_shakespeare", 1e-3, 15_000, 64, 16),
    ] {
        says_that_fields_are_from_code("recurrent", name);
        let of_recurrence = planned("recurrent", name);
        let of_recurrence = of_recurrence
            .iter()
            .filter(|run| run.name.starts_with("recurrent"));
        let mut forms = Vec::new();
        for run in of_recurrence {
            let config = run.config.as_ref().unwrap();
            let train = &config.train;
            assert_eq!(
                (train.steps, train.batch),
                (steps, batch),
                "{name}: {}",
                run.name
            );
            assert_eq!(
                (train.learning_rate, train.warmup),
                (rate, 0),
                "{name}: {}",
                run.name
            );
            assert_eq!(
                train.min_learning_rate,
                MinLearningRate::Ratio(1.0),
                "{name}"
            );
            let recurrence = config.model.recurrence.as_ref().unwrap();
            assert_eq!(recurrence.block, block, "{name}");
            forms.push(recurrence.form);
            if name != "recurrent_shakespeare" {
                let is_adam = train.weight_decay == 0.0 && train.grad_clip.is_none();
                assert!(is_adam && train.beta_2 == 0.999, "{name}: {}", run.name);
                assert_eq!(config.model.shape().dropout, 0.05, "{name}");
            }
            let is_copy = name.ends_with("copy");
            assert_eq!(train.schedule == Schedule::Kausik, is_copy, "{name}");
            if name == "recurrent_selective_copy" {
                assert_eq!(recurrence.alpha, Alpha::Fixed(0.5));
            }
            if let Source::Copying(copy) = &config.data.source {
                let lengths = (copy.tokens, copy.noise, copy.most_noise);
                assert_eq!(lengths, (16, 128, Some(4096)), "{name}");
                assert_eq!(train.curriculum_below, 0.3);
            }
        }
        // Both forms of the recurrence occur.
        assert!(
            forms.contains(&Form::Paper) && forms.contains(&Form::Code),
            "{name}"
        );
    }
    let shakespeare = planned("recurrent", "recurrent_shakespeare");
    let fixed = run(&shakespeare, "recurrent, 1 layer, α = 0");
    assert_eq!(
        fixed.model.recurrence.as_ref().unwrap().alpha,
        Alpha::Fixed(0.0)
    );
    assert_eq!(fixed.model.shape().dropout, 0.2);
}

#[test]
fn the_optimizer_of_the_rmt_is_that_of_its_code_and_the_transformer_has_its_multipliers() {
    for name in ["rmt_scaling", "rmt_vs_transformer", "rmt_stream_size"] {
        for planned in planned("rmt", name) {
            let config = planned.config.as_ref().unwrap();
            let train = &config.train;
            // The authors' code does not multiply the decay of 1e-4 by the learning rate.
            let decay = train.weight_decay * train.learning_rate;
            assert!(
                (decay / 1e-4 - 1.0).abs() < 0.01,
                "{name}: {}",
                planned.name
            );
            assert_eq!((train.beta_1, train.beta_2), (0.9, 0.95));
            assert_eq!((train.grad_clip, train.z_loss), (Some(1.0), 1e-4));
            match config.model.plain() {
                Some(Zoo::Gpt2(gpt2)) => {
                    assert!(gpt2.inverse_layer_scale && !gpt2.tied);
                    if name != "rmt_stream_size" {
                        // These values are in Appendix C.2.1.
                        let base = Gpt2Base {
                            width: 256,
                            n_head: 8,
                            d_ff: Some(1024),
                        };
                        let expected = Mup {
                            base,
                            init_std: 0.15,
                            input: 9.76,
                            attention: 0.25,
                            output: 5.52,
                        };
                        assert_eq!(gpt2.mup, Some(expected));
                    }
                }
                Some(Zoo::Rmt(rmt)) => assert!(rmt.inverse_layer_scale && rmt.scaled_outputs),
                _ => panic!("{name}: {}", planned.name),
            }
        }
    }
}

#[test]
fn tokenformers_start_and_end_as_in_their_code() {
    for name in [
        "tokenformer_growth",
        "tokenformer_net2net",
        "tokenformer_ablation",
    ] {
        says_that_fields_are_from_code("tokenformer", name);
        for planned in planned("tokenformer", name) {
            let config = planned.config.as_ref().unwrap();
            if let Some(Zoo::TokenFormer(tokenformer)) = config.model.plain() {
                assert_eq!(tokenformer.init, PairInit::Code, "{name}: {}", planned.name);
                assert_eq!(tokenformer.position, Position::Rotary { fraction: 0.25 });
                assert!(tokenformer.affine_final_norm, "{name}: {}", planned.name);
            }
        }
    }
}

#[test]
fn the_streams_are_those_of_section_4_4() {
    let planned = planned("rmt", "rmt_stream_size");
    for row in table("/rmt/section4_4_residual_sizes/rows") {
        let config = run(
            &planned,
            &format!("RMT, stream size {}", row["residual_size"]),
        );
        assert_eq!(number(&config.model, "d_k"), row["D_k"].as_f64().unwrap());
        assert_eq!((config.train.steps, config.train.batch), (50_000, 64));
        assert_eq!(config.train.learning_rate, 1e-2);
        // The two norms of each layer have scales, and so has the final norm.
        let norms = 25 * row["residual_size"].as_u64().unwrap();
        let params = config.model.cost(GPT2).params.total() as u64 - norms;
        assert_eq!(params, row["params"].as_u64().unwrap());
    }
}

#[test]
fn laurels_variants_add_what_table_5_counts() {
    let planned = planned("laurel", "laurel_ablation");
    let cost = |name: &str| run(&planned, name).model.cost(32_000).params.total();
    let baseline = cost("baseline-24");
    let expected = [
        (0, "RW"),
        (1, "LR"),
        (2, "PA"),
        (4, "RW+LR"),
        (5, "RW+LR+PA"),
    ];
    let rows = table("/laurel/table5/rows");
    for (row, name) in expected {
        let added = (cost(name) - baseline) as u64;
        // Each correction has a norm with a scale.
        let norms = if name == "RW" { 0 } else { 24 * 768 };
        let formula = rows[row]["formula_delta"].as_u64().unwrap();
        assert_eq!(added, formula + norms, "{name}");
    }
    // The baseline of 157.20M has about 31,600 token ids.
    let total = run(&planned, "baseline-24")
        .model
        .cost(31_600)
        .params
        .total() as f64;
    assert!((total / 157.20e6 - 1.0).abs() < 1e-3, "{total}");
    assert_eq!(number(&run(&planned, "baseline-28").model, "n_layer"), 28.0);
    // The run has about 10B tokens.
    assert!((tokens(run(&planned, "RW")) / 1e10 - 1.0).abs() < 0.01);
}

/// Checks that `large` is `small` with more pairs and the same τ.
fn check_growth(small: &ModelConfig, large: &ModelConfig) {
    match (small.plain(), large.plain()) {
        (Some(Zoo::TokenFormer(small)), Some(Zoo::TokenFormer(large))) if small != large => {
            let grown = small.grown(large.n_attn(), large.n_ffn()).unwrap();
            assert_eq!(grown, *large);
        }
        _ => assert_eq!(small, large),
    }
}

#[test]
fn tokenformers_are_those_of_table_8() {
    let growth = planned("tokenformer", "tokenformer_growth");
    let rows = table("/tokenformer/table8");
    let of = |printed: &str, group: &str| {
        let is = |row: &&Value| row["printed"] == printed && row["group"] == group;
        rows.iter().find(is).unwrap().clone()
    };
    let check = |model: &ModelConfig, row: &Value| {
        for (field, column) in [
            ("n_layer", "layers"),
            ("width", "hidden"),
            ("n_attn", "attention_pairs"),
            ("n_ffn", "ffn_pairs"),
            ("n_head", "heads"),
        ] {
            assert_eq!(
                number(model, field),
                row[column].as_f64().unwrap(),
                "{field}"
            );
        }
    };
    for (size, preset) in [
        ("124M", TokenFormerConfig::m124()),
        ("354M", TokenFormerConfig::m354()),
        ("757M", TokenFormerConfig::m757()),
        ("1.4B", TokenFormerConfig::b1_4()),
    ] {
        let config = run(&growth, &format!("TokenFormer {size}"));
        check(&config.model, &of(size, "reuse"));
        // The positions and the final norm follow the published code.
        let preset = TokenFormerConfig {
            position: Position::Rotary { fraction: 0.25 },
            affine_final_norm: true,
            ..preset
        };
        assert_eq!(config.model.cost(NEOX), preset.cost(NEOX));
        check_growth(&run(&growth, "TokenFormer 124M").model, &config.model);
        let (train, first) = (&config.train, size == "124M");
        // Appendix D: 300B tokens for the first model, 30B for each later one.
        assert_eq!(train.steps, if first { 600_000 } else { 60_000 });
        assert_eq!(
            (train.batch, config.time(), train.warmup),
            (512, 1024, 2000)
        );
        assert_eq!(train.learning_rate, 6e-4);
        assert_eq!(train.min_learning_rate, MinLearningRate::Ratio(0.0));
        assert_eq!((train.beta_1, train.beta_2), (0.9, 0.95));
    }
    let net2net = planned("tokenformer", "tokenformer_net2net");
    check(&run(&net2net, "TokenFormer").model, &of("354M", "reuse"));
    let grown = run(&net2net, "TokenFormer, grown");
    check(&grown.model, &of("757M", "reuse"));
    check_growth(&run(&net2net, "TokenFormer").model, &grown.model);
    // These values are in Appendix E.
    let train = &grown.train;
    assert_eq!((train.steps, train.batch, train.warmup), (2204, 512, 0));
    assert_eq!(train.learning_rate, 6e-4);
    assert_eq!(train.min_learning_rate, MinLearningRate::Ratio(1.0));
    let ablation = planned("tokenformer", "tokenformer_ablation");
    let base = run(&ablation, "L2 norm, GELU");
    check(&base.model, &of("150M", "language"));
    assert_eq!(
        (base.train.steps, base.train.batch, base.time()),
        (143_000, 1024, 2048)
    );
}

#[test]
fn recurrent_models_have_the_parameters_of_their_tables() {
    let figure = |path: &str| paper(&format!("/recurrent/{path}")).as_u64().unwrap() as usize;
    let image = planned("recurrent", "recurrent_image");
    let classes = Vocabulary::new(256, 10);
    let cost = |name: &str| run(&image, name).model.cost(classes).params.total();
    assert_eq!(cost("4 layers"), figure("table2/regular_4"));
    assert_eq!(cost("1 layer"), figure("table2/regular_1"));
    assert_eq!(
        cost("recurrent, 1 layer"),
        figure("table2/recurrent_1_with_alpha")
    );
    for run in &image {
        // The runs have 600,000 samples, in batches of 40 or 120.
        let train = &run.config.as_ref().unwrap().train;
        assert_eq!(train.steps * train.batch, 600_000, "{}", run.name);
    }
    let copy = planned("recurrent", "recurrent_copy");
    let config = run(&copy, "recurrent");
    assert_eq!(
        config.model.cost(16).params.total(),
        figure("table3/with_alpha")
    );
    assert_eq!(
        (config.train.batch, config.train.curriculum_below),
        (64, 0.3)
    );
    let shakespeare = planned("recurrent", "recurrent_shakespeare");
    let cost = |name: &str| run(&shakespeare, name).model.cost(65).params.total();
    assert_eq!(cost("6 layers"), figure("table6/regular_6"));
    assert_eq!(cost("1 layer"), figure("table6/regular_1"));
    assert_eq!(
        cost("recurrent, 1 layer"),
        figure("table6/recurrent_1_with_alpha")
    );
}
