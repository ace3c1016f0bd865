//! Reused parameter tokens against the reference: merging, tuning with new pairs, and widening of a transformer.

use std::collections::BTreeMap;

use burn::tensor::{TensorData, backend::AutodiffBackend};
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_models::core::{ModelConfig, Tensors, params};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::tokenformer::{TokenFormerConfig, merge};
use residual_zoo_models::{ModelConfig as Model, Zoo};
use residual_zoo_testing::my_turn;
use residual_zoo_testing::pass::{Outcome, Values};
use residual_zoo_testing::reference::reuse::split_rows;
use residual_zoo_testing::reference::{Case, cases};

use crate::in_f32;

/// Returns the cases whose config has the field `about`, and the value of this field in each case.
fn about(about: &str) -> Vec<(Case, serde_json::Value)> {
    let all = cases().into_iter();
    let found = all.filter_map(|case| {
        let says = case.about.get(about)?.clone();
        Some((case, says))
    });
    found.collect()
}

fn sizes(value: &serde_json::Value) -> [usize; 2] {
    [0, 1].map(|i| value[i].as_u64().unwrap() as usize)
}

/// Runs a pass over the batch of a case.
struct Pass<'a>(&'a Case, &'a Model, Tensors);

impl OnBackend for Pass<'_> {
    type Output = Outcome;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Outcome {
        let Self(case, config, weights) = self;
        case.pass::<B>(config, &weights, &device)
    }
}

fn assert_logits(
    kind: BackendKind,
    case: &Case,
    config: &Model,
    weights: &Tensors,
    expected: &TensorData,
    what: &str,
) {
    let outcome = kind
        .run(kind.default_gpu(), Pass(case, config, weights.clone()))
        .unwrap();
    let expected = Values::from(expected.clone());
    let error = outcome.logits.error(&expected, 3e-5, |b| 1e-5 * b.abs());
    assert!(error <= 1.0, "{} on {kind}, {what}: {error}", case.name);
}

fn tokenformer(config: &Model) -> &TokenFormerConfig {
    match config.plain() {
        Some(Zoo::TokenFormer(config)) => config,
        _ => panic!("no TokenFormer"),
    }
}

#[test]
fn merged_models_equal_the_reference_and_so_do_their_parts() {
    let _turn = my_turn();
    let mut kept = 0;
    for (case, merged) in about("merged") {
        let config = tokenformer(&case.config);
        let (attn, ffn) = (sizes(&merged["n_attn"]), sizes(&merged["n_ffn"]));
        let scale = merged["value_scale"].as_f64().unwrap();
        let parts = [0, 1].map(|i| {
            let part = TokenFormerConfig {
                n_attn: Some(attn[i]),
                n_ffn: Some(ffn[i]),
                tau: None,
                ..config.clone()
            };
            let weights = case.weights.iter().map(|(name, data)| {
                let first = if name.contains(".ffn.") {
                    ffn[0]
                } else {
                    attn[0]
                };
                let [keys, values] = ["keys", "values"].map(|end| name.ends_with(end));
                let mut data = match keys || values {
                    true => split_rows(data, first)[i].clone(),
                    false => data.clone(),
                };
                if values {
                    let unscaled: Vec<f32> = data.iter::<f32>().map(|x| x / scale as f32).collect();
                    data = TensorData::new(unscaled, data.shape.to_vec());
                }
                (name.clone(), data)
            });
            let weights: Tensors = weights.collect();
            (part, weights)
        });
        let [(a, a_weights), (b, b_weights)] = &parts;
        let (merged, weights) = merge((a, a_weights), (b, b_weights), scale).unwrap();
        let tau_is_kept = config.tau.is_some();
        for kind in in_f32() {
            for (i, name) in ["base_logits", "base_logits_b"].into_iter().enumerate() {
                let (part, weights) = &parts[i];
                let expected = &case.results[name];
                assert_logits(
                    kind,
                    &case,
                    &Model::of(part.clone()),
                    weights,
                    expected,
                    name,
                );
            }
            let model = match tau_is_kept {
                true => case.config.clone(),
                false => Model::of(merged.clone()),
            };
            assert_logits(kind, &case, &model, &weights, &case.logits, "merged");
        }
        kept += usize::from(tau_is_kept);
        if !tau_is_kept {
            assert_eq!(merged.tau(), config.tau());
        }
    }
    assert_eq!(kept, 1);
}

#[test]
fn tuning_equals_the_reference() {
    let _turn = my_turn();
    let cases = about("tuned");
    assert_eq!(cases.len(), 2);
    for (case, tuned) in cases {
        let config = tokenformer(&case.config);
        let trainable = tuned["trainable"].as_u64().unwrap() as usize;
        assert_eq!(case.config.cost(case.vocabulary).params.total(), trainable);
        let without = TokenFormerConfig {
            added: None,
            tau: Some(config.tau()),
            ..config.clone()
        };
        let own = case
            .weights
            .iter()
            .filter(|(name, _)| !name.contains(".added."));
        let own: Tensors = own
            .map(|(name, data)| (name.clone(), data.clone()))
            .collect();
        let rate = tuned["rate"].as_f64().unwrap();
        for kind in in_f32() {
            let base = &case.results["base_logits"];
            assert_logits(
                kind,
                &case,
                &Model::of(without.clone()),
                &own,
                base,
                "before",
            );
            let pass = Pass(&case, &case.config, case.weights.clone());
            let outcome = kind.run(kind.default_gpu(), pass).unwrap();
            // One step of plain gradient descent.
            let mut stepped = case.weights.clone();
            for (name, gradient) in &outcome.gradients {
                let is_new = name.contains(".added.");
                assert!(is_new || gradient.largest() == 0.0, "{name} is frozen");
                if is_new {
                    let data = stepped.get_mut(name).unwrap();
                    let after = data.iter::<f64>().zip(&gradient.data);
                    let after: Vec<f32> = after.map(|(x, g)| (x - rate * g) as f32).collect();
                    *data = TensorData::new(after, data.shape.to_vec());
                }
            }
            let after = &case.results["step_logits"];
            assert_logits(kind, &case, &case.config, &stepped, after, "after a step");
            // With ordinary pairs in place of the new ones, the model is the same function.
            let (absorbed, weights) = config.absorb(case.weights.clone());
            let model = Model::of(absorbed);
            assert_logits(kind, &case, &model, &weights, &case.logits, "absorbed");
        }
    }
}

#[test]
fn new_pairs_with_zero_keys_keep_the_function_and_their_values_get_no_gradient() {
    let _turn = my_turn();
    let (case, _) = about("tuned")
        .into_iter()
        .find(|(case, _)| case.name == "reuse_tune_init")
        .unwrap();
    assert_logits(
        BackendKind::Flex,
        &case,
        &case.config,
        &case.weights,
        &case.results["base_logits"],
        "at the start",
    );
    let pass = Pass(&case, &case.config, case.weights.clone());
    let outcome = BackendKind::Flex.run(None, pass).unwrap();
    let largest = |end: &str| {
        let new = outcome
            .gradients
            .iter()
            .filter(|(name, _)| name.ends_with(end));
        new.map(|(_, gradient)| gradient.largest())
            .fold(0.0, f64::max)
    };
    assert_eq!(largest(".added.values"), 0.0);
    assert!(largest(".added.keys") > 1e-3);
}

#[test]
fn the_corner_of_a_widened_transformer_is_the_smaller_one() {
    let _turn = my_turn();
    let cases = about("net2net");
    assert_eq!(cases.len(), 1);
    for (case, small) in cases {
        let size = |key: &str| small[key].as_u64().unwrap() as usize;
        let Some(Zoo::Gpt2(large)) = case.config.plain() else {
            panic!("no transformer");
        };
        let config = Model::of(Gpt2Config {
            width: size("d_model"),
            n_head: size("n_head"),
            d_ff: Some(size("d_ff")),
            ..large.clone()
        });
        let model = config
            .build::<burn::backend::Flex>(case.vocabulary, &Default::default())
            .unwrap();
        let shapes = params::list::<burn::backend::Flex, _>(&model).into_iter();
        let corner = shapes.map(|info| {
            let parts = if info.name.contains(".qkv.") { 3 } else { 1 };
            let data = corner(&case.weights[&info.name], &info.shape, parts);
            (info.name, data)
        });
        let corner: BTreeMap<_, _> = corner.collect();
        for kind in in_f32() {
            assert_logits(
                kind,
                &case,
                &config,
                &corner,
                &case.results["base_logits"],
                "the corner",
            );
        }
    }
}

/// Returns a corner of `large` in this `shape`: the first rows, and some of their columns. The columns consist of
/// `parts` equal blocks, and the first columns of each block are taken.
fn corner(large: &TensorData, shape: &[usize], parts: usize) -> TensorData {
    let values: Vec<f32> = large.iter().collect();
    let columns = large.shape[large.shape.len() - 1];
    let (width, wanted) = (columns / parts, shape[shape.len() - 1] / parts);
    let rows = if shape.len() == 2 { shape[0] } else { 1 };
    let mut found = Vec::new();
    for row in 0..rows {
        for part in 0..parts {
            let at = row * columns + part * width;
            found.extend_from_slice(&values[at..at + wanted]);
        }
    }
    TensorData::new(found, shape.to_vec())
}
