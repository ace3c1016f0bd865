//! The zoo's configs and formulas reproduce every figure in `tests/fixtures/paper-tables.json`, the sizes and costs
//! that follow from the papers' tables. The cost of a recurrence is the cost of its windows. A built model has the
//! number of parameters that its config counts.

use burn::backend::{Autodiff, Flex};
use residual_zoo::ModelConfig as Zoo;
use residual_zoo::core::{Architecture, Cost, Frame, ModelConfig, Vocabulary, check, params};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::LaurelConfig;
use residual_zoo::recurrent::{Alpha, RecurrentConfig};
use residual_zoo::rmt::RmtConfig;
use residual_zoo::tokenformer::TokenFormerConfig;
use residual_zoo_testing::zoo;
use serde_json::Value;

use crate::paper_tables::{
    GPT2, NEOX, figures, file, is_under, laurel, recurrent, rmt, tokenformer,
};

/// Tests that code reproduces parts of the file, and lists these parts.
macro_rules! claims {
    ($($claim:ident: $part:literal = $found:path;)+) => {
        $(
            #[test]
            fn $claim() {
                let file = figures("", &file());
                for (path, found) in figures($part, &$found()) {
                    let expected = file.get(&path).unwrap_or_else(|| panic!("no {path}"));
                    let error = (found - expected).abs();
                    assert!(error <= 1e-12 * expected.abs(), "{path}: {found}, not {expected}");
                }
            }
        )+

        const REPRODUCED: &[(&str, fn() -> Value)] = &[$(($part, $found)),+];
    };
}

claims! {
    rmt_is_measured_at_gpt2s_vocabulary_and_512_tokens: "/rmt/constants" = rmt::constants;
    transformers_have_the_sizes_of_table_8: "/rmt/table8_transformer" = rmt::table_8;
    rmt_presets_have_the_sizes_of_table_9: "/rmt/table9_rmt" = rmt::table_9;
    a_wider_residual_matrix_costs_no_parameters:
        "/rmt/section4_4_residual_sizes" = rmt::section_4_4;
    flops_follow_from_table_7_as_printed_and_counted: "/rmt/table7_flops/totals" = rmt::table_7;
    doubling_the_residual_matrix_costs_at_most_2_5_percent: "/rmt/figure1_claim" = rmt::figure_1;
    variances_follow_from_table_1: "/rmt/table2_variance" = rmt::table_2;
    tokenformer_presets_have_the_sizes_of_table_8: "/tokenformer" = tokenformer::table_8;
    laurel_adds_the_parameters_of_its_formulas: "/laurel/table5" = laurel::table_5;
    rw_and_lr_add_the_parameters_of_section_3_2_1: "/laurel/section3_2_1" = laurel::section_3_2_1;
    image_classifiers_have_the_sizes_of_table_2: "/recurrent/table2" = recurrent::table_2;
    the_copier_has_the_size_of_table_3: "/recurrent/table3" = recurrent::table_3;
    models_of_shakespeare_have_the_sizes_of_table_6: "/recurrent/table6" = recurrent::table_6;
    operations_follow_from_section_5_1: "/recurrent/operations/rows" = recurrent::operations;
}

/// The figures that no code reproduces, with reasons. `*` stands for any row or key.
const NOT_REPRODUCED: [(&str, &[&str]); 4] = [
    (
        "printed in a paper, for tests to compare with",
        &[
            "/rmt/table7_flops/totals/printed",
            "/rmt/table7_flops/totals/*/printed",
            "/rmt/table2_variance/*/printed_rmt",
            "/rmt/table2_variance/*/printed_transformer",
            "/laurel/table5/rows/*/printed_delta_millions",
            "/recurrent/operations/rows/*/printed",
        ],
    ),
    (
        "the size of a baseline whose width and vocabulary are not printed",
        &[
            "/laurel/table5/baseline_millions",
            "/laurel/table5/baseline28_millions",
            "/laurel/table5/per_layer_millions",
        ],
    ),
    (
        "a cell of a damaged scan",
        &["/rmt/table9_rmt/*/cells_as_scanned"],
    ),
    ("from measured seconds", &["/rmt/time"]),
];

#[test]
fn every_figure_is_reproduced_or_cannot_be() {
    let mut left = figures("", &file());
    for (part, found) in REPRODUCED {
        for path in figures(part, &found()).keys() {
            assert!(left.remove(path).is_some(), "{path} is reproduced twice");
        }
    }
    for (reason, patterns) in NOT_REPRODUCED {
        for pattern in patterns {
            let before = left.len();
            left.retain(|path, _| !is_under(path, pattern));
            assert!(
                left.len() < before,
                "{pattern} ({reason}) is reproduced or gone"
            );
        }
    }
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn the_flops_of_a_recurrent_model_are_those_of_its_windows() {
    let frame = Frame::default();
    for (time, k) in [
        (1, 1),
        (5, 8),
        (8, 8),
        (9, 8),
        (16, 8),
        (29, 8),
        (32, 8),
        (256, 16),
    ] {
        let of = recurrent::base(2, time, 24, 4);
        let recurrence = RecurrentConfig {
            block: k,
            alpha: Alpha::Fixed(0.5),
            ..Default::default()
        };
        let blocks: Vec<_> = (0..time)
            .step_by(k)
            .map(|start| k.min(time - start))
            .collect();
        let pairs = blocks.windows(2).map(|pair| pair[0] + pair[1]);
        let ends = [blocks[0], blocks[blocks.len() - 1]];
        let flops =
            |window: usize| of.block_cost(0, window, &frame).forward_flops * of.n_layer * window;
        let windows: usize = pairs.chain(ends).map(flops).sum();

        let layers = |time| of.block_cost(0, time, &frame) * of.n_layer;
        let cost = recurrence.cost(layers, time);
        let expected = Cost {
            params: layers(time).params,
            ..Cost::flops(windows / time)
        };
        assert_eq!(cost, expected, "{time} tokens in blocks of {k}");
        let model = Zoo::of(of.clone()).recurrent(recurrence);
        assert_eq!(
            model.cost(7),
            expected + of.embeddings_cost(7.into(), &frame)
        );
    }
}

/// Returns the tested models, each with a vocabulary.
fn models() -> Vec<(Zoo, Vocabulary)> {
    let text = [
        zoo::architectures(),
        zoo::connections(),
        zoo::streams(),
        zoo::compositions(),
    ];
    let text = text
        .concat()
        .into_iter()
        .map(|(_, model)| (model, 37.into()));
    let images = Vocabulary::of_images([3, 64, 64].into(), 5);
    let vision = zoo::vision().into_iter().map(|(_, model)| (model, images));
    text.chain(vision).collect()
}

/// Returns the pointers to all whole numbers of a config.
fn sizes(config: &Value) -> Vec<String> {
    let inside = |name: String, part: &Value| {
        sizes(part)
            .into_iter()
            .map(move |rest| format!("/{name}{rest}"))
    };
    match config {
        Value::Number(number) if number.is_u64() => vec![String::new()],
        Value::Array(parts) => {
            let parts = parts.iter().enumerate();
            parts
                .flat_map(|(i, part)| inside(i.to_string(), part))
                .collect()
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .flat_map(|(name, part)| inside(name.clone(), part))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the config with `size` at each pointer.
fn with(config: &Value, pointers: &[String], size: usize) -> Zoo {
    let mut config = config.clone();
    for pointer in pointers {
        *config.pointer_mut(pointer).unwrap() = size.into();
    }
    serde_json::from_value(config).unwrap()
}

#[test]
fn every_size_of_every_model_has_a_bound() {
    for (model, _) in models() {
        let config = serde_json::to_value(&model).unwrap();
        for pointer in sizes(&config) {
            let names = pointer
                .split('/')
                .filter(|name| !name.starts_with(char::is_uppercase));
            let path = names.collect::<Vec<_>>().join(".");
            let error = with(&config, &[pointer], check::MOST + 1)
                .validate()
                .unwrap_err();
            assert_eq!(error.field, path.trim_start_matches('.'));
            assert_eq!(error.problem, "is 16777217; it must be at most 16777216");
        }
    }
}

#[test]
fn costs_of_the_largest_sizes_do_not_overflow() {
    let mut checked = 0;
    for (model, vocabulary) in models() {
        let largest = match vocabulary.image() {
            Some(_) => vocabulary,
            None => check::MOST.into(),
        };
        let config = serde_json::to_value(&model).unwrap();
        let mut possible = sizes(&config);
        // A larger value of these sizes lowers the cost, so these sizes are left out.
        possible.retain(|pointer| {
            let name = pointer.rsplit('/').next().unwrap();
            !["block", "dilation", "period"].contains(&name)
        });
        let mut grow = |pointers: &[String]| {
            let powers = (6..=24).step_by(3);
            let powers = powers.map(|power| with(&config, pointers, 1 << power));
            let valid = powers.filter(|large| {
                let valid = large.validate();
                valid.and_then(|()| large.reads(largest)).is_ok()
            });
            let costs = valid.map(|large| large.cost(largest));
            let costs: Vec<_> = costs
                .map(|cost| (cost.params.total(), cost.forward_flops))
                .collect();
            // If a count overflowed, it would become smaller.
            for pair in costs.windows(2) {
                let ((params, flops), (more_params, more_flops)) = (pair[0], pair[1]);
                // A model of so many parameters is refused, whatever its FLOPs are.
                let refused = more_params > 1_000_000_000_000;
                let grows = params <= more_params && (refused || flops <= more_flops);
                assert!(grows, "{model:?}, {pointers:?}: {pair:?}");
            }
            checked += costs.len();
            !costs.is_empty()
        };
        possible.retain(|pointer| grow(std::slice::from_ref(pointer)));
        grow(&possible);
    }
    assert!(checked > 1500, "only {checked} valid models");
}

#[test]
fn presets_count_the_parameters_of_the_models_they_build() {
    for (config, ids, outputs) in [
        (Zoo::of(Gpt2Config::small()), GPT2, GPT2),
        (Zoo::of(RmtConfig::m46()), GPT2, GPT2),
        (Zoo::of(TokenFormerConfig::m124()), NEOX, NEOX),
        (
            Zoo::of(recurrent::image(4)).per_sublayer(LaurelConfig::rw_lr_pa(3, 4)),
            256,
            10,
        ),
        (
            Zoo::of(recurrent::image(1)).recurrent(RecurrentConfig::image()),
            256,
            10,
        ),
    ] {
        let device = Default::default();
        let vocabulary = Vocabulary::new(ids, outputs);
        let model = config.build::<Autodiff<Flex>>(vocabulary, &device).unwrap();
        let params = params::list::<Autodiff<Flex>, _>(&model).into_iter();
        let sizes = params
            .filter(|p| p.trainable)
            .map(|p| p.shape.iter().product::<usize>());
        let cost = config.cost(vocabulary);
        assert_eq!(
            sizes.sum::<usize>(),
            cost.params.total(),
            "{}",
            config.name()
        );
    }
}
