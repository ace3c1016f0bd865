//! The depth map: how much each branch reads of each earlier output.

use std::collections::BTreeMap;

use burn::backend::Flex;
use burn::tensor::{Distribution, Int, Tensor, TensorData};
use residual_zoo::ModelConfig as Zoo;
use residual_zoo::core::contract::redrawn;
use residual_zoo::core::{DepthError, DepthFit, DepthMap, LanguageModel, ModelConfig, params};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::streams::{AttentionResidualConfig, DenseConfig, HyperConfig};
use residual_zoo_testing::zoo::{architectures, connections, gpt2};

/// Returns the depth maps of a model with 37 token ids, and the model's parameters, which are drawn from `from` if
/// given.
fn maps(of: &Zoo, from: Option<Distribution>) -> (Vec<DepthMap>, BTreeMap<String, TensorData>) {
    let device = Default::default();
    let model = of.build::<Flex>(37, &device).unwrap();
    let model = match from {
        Some(from) => redrawn(model, from, 3),
        None => model,
    };
    let mut fit = DepthFit::default();
    for first in [0, 24] {
        let ids = (first..first + 24).map(|i| i * i % 37);
        let ids = TensorData::new(ids.collect::<Vec<i32>>(), [1, 24]);
        let pass = || {
            model.forward(Tensor::<Flex, 2, Int>::from_data(ids, &device));
        };
        fit.add(pass).unwrap();
    }
    (fit.maps(), params::export(&model))
}

/// Returns the values of a connection's parameter: at connection `i` in depth order, with a name that ends in `end`.
fn values(weights: &BTreeMap<String, TensorData>, end: &str, i: usize) -> Vec<f64> {
    let part = ["attention", "feed_forward"][i % 2];
    let name = format!("layers.{}.{part}.connection.{end}", i / 2);
    let found = weights.iter().filter(|(full, _)| full.ends_with(&name));
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1, "{name} in {:?}", weights.keys());
    found[0].1.iter().collect()
}

#[track_caller]
fn are_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() < 1e-3 * largest,
            "{found} {expected}"
        );
    }
}

#[test]
fn a_plain_model_reads_each_output_once() {
    let (maps, _) = maps(&gpt2(), None);
    let [map] = &maps[..] else { panic!("{maps:?}") };
    assert_eq!(map.branches, ["Attention", "Mlp", "Attention", "Mlp"]);
    for (i, weights) in map.weights.iter().enumerate() {
        are_close(weights, &vec![1.0; i + 1]);
    }
    for (explained, shares) in map.explained().iter().zip(&map.shares) {
        assert!((explained - 1.0).abs() < 1e-6 && shares.len() <= 5);
    }
    assert_eq!(map.unique, [true; 5]);
}

#[test]
fn weights_that_the_data_do_not_determine_are_marked() {
    let narrow = Gpt2Config {
        n_layer: 3,
        n_head: 1,
        width: 4,
        context: 8,
        ..Gpt2Config::default()
    };
    let model = Zoo::of(narrow).build::<Flex>(37, &Default::default());
    let model = model.unwrap();
    let mut fit = DepthFit::default();
    let pass = || {
        model.forward(Tensor::<Flex, 2, Int>::from_data(
            [[3]],
            &Default::default(),
        ));
    };
    fit.add(pass).unwrap();
    // One position of width 4 determines at most four weights.
    let unique = &fit.maps()[0].unique;
    assert_eq!(unique[..], [true, true, true, true, false, false, false]);
}

#[test]
fn static_hyper_connections_read_the_products_of_their_matrices() {
    let n = 3;
    let config = HyperConfig {
        n,
        dynamic: false,
        ..HyperConfig::default()
    };
    let from = Distribution::Normal(0.3, 0.5);
    let (maps, weights) = maps(&gpt2().per_sublayer(config), Some(from));
    // Stream s is the sum of streams[s][j] f_j.
    let mut streams = vec![vec![1.0]; n];
    let sum = |streams: &[Vec<f64>], by: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let of = |j: usize| (0..n).map(|s| by(s) * streams[s][j]).sum();
        (0..streams[0].len()).map(of).collect()
    };
    for i in 0..4 {
        let (a, b) = (values(&weights, "mixing", i), values(&weights, "beta", i));
        are_close(&maps[0].weights[i], &sum(&streams, &|s| a[s * (n + 1)]));
        let next = (0..n).map(|t| {
            let mut next = sum(&streams, &|s| a[s * (n + 1) + 1 + t]);
            next.push(b[t]);
            next
        });
        streams = next.collect();
    }
    are_close(&maps[0].weights[4], &sum(&streams, &|_| 1.0));
}

#[test]
fn a_dense_former_reads_the_products_of_its_weights() {
    let from = Distribution::Normal(0.3, 0.5);
    let (maps, weights) = maps(&gpt2().per_sublayer(DenseConfig::default()), Some(from));
    // x_i is the sum of xs[i][j] f_j.
    let mut xs = vec![vec![1.0]];
    for i in 0..4 {
        let x = xs[i].clone();
        are_close(&maps[0].weights[i], &x);
        let mut sum = x;
        sum.push(1.0);
        let alpha = values(&weights, "alpha", i);
        let mixed = (0..i + 2).map(|j| {
            let before = (0..=i).map(|b| alpha[b] * xs[b].get(j).copied().unwrap_or(0.0));
            before.sum::<f64>() + alpha[i + 1] * sum[j]
        });
        xs.push(mixed.collect());
    }
    are_close(&maps[0].weights[4], &xs[4]);
}

#[test]
fn new_attention_residuals_read_the_mean_of_all_outputs() {
    let (maps, _) = maps(
        &gpt2().per_sublayer(AttentionResidualConfig::default()),
        None,
    );
    for (i, weights) in maps[0].weights.iter().enumerate() {
        are_close(weights, &vec![1.0 / (i + 1) as f64; i + 1]);
    }
}

#[test]
fn every_model_has_a_map_that_explains_its_inputs() {
    for (name, config) in architectures().into_iter().chain(connections()) {
        let (maps, _) = maps(&config, Some(Distribution::Normal(0.0, 0.2)));
        for map in &maps {
            assert_eq!(map.weights.len(), map.branches.len() + 1, "{name}");
            for (i, (explained, weights)) in map.explained().iter().zip(&map.weights).enumerate() {
                assert_eq!(weights.len(), i + 1, "{name}");
                assert!(weights.iter().all(|w| w.is_finite()), "{name} {weights:?}");
                assert!((0.0..1.0 + 1e-6).contains(explained), "{name} {explained}");
            }
        }
        // Each of two recurrent layers opens a stream for each of the four windows over three blocks.
        let streams = if name == "recurrent" { 2 * 4 } else { 1 };
        assert_eq!(maps.len(), streams, "{name}");
    }
}

#[test]
fn without_a_stream_there_is_no_map() {
    let mut fit = DepthFit::default();
    assert_eq!(fit.add(|| ()), Err(DepthError::Nothing));
    assert!(fit.maps().is_empty());
}

#[test]
fn passes_of_different_streams_are_refused() {
    let device = Default::default();
    let mut fit = DepthFit::default();
    let mut add = |of: &Zoo| {
        let model = of.build::<Flex>(37, &device).unwrap();
        fit.add(|| {
            model.forward(Tensor::<Flex, 2, Int>::from_data([[3, 1, 4]], &device));
        })
    };
    assert_eq!(add(&gpt2()), Ok(()));
    let layers = gpt2().per_layer(DenseConfig::default());
    assert_eq!(add(&layers), Err(DepthError::Other));
}
