use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, Tensor};
use residual_zoo_core::params::{self, Role};
use residual_zoo_core::{Architecture, Branch, Frame, PlainModel, contract};

use crate::{Attention, Mlp, NgptConfig, NgptPositions, unit};

fn small() -> NgptConfig {
    NgptConfig {
        n_layer: 2,
        n_head: 6,
        width: 60,
        d_ff: Some(44),
        context: 64,
        ..NgptConfig::default()
    }
}

#[test]
fn keeps_the_contract() {
    for positions in [NgptPositions::Rotary, NgptPositions::Code] {
        let config = NgptConfig {
            positions,
            ..small()
        };
        contract::check::<Autodiff<Flex>, _>(&PlainModel(config), &Default::default());
    }
}

#[test]
fn it_has_as_many_parameters_as_the_published_model() {
    let config = NgptConfig {
        n_layer: 24,
        n_head: 16,
        width: 1024,
        ..NgptConfig::default()
    };
    config.validate().unwrap();
    assert_eq!(config.cost(32_000).params.total(), 468_491_520);
}

#[test]
fn invalid_fields_are_named() {
    let refuses = |config: NgptConfig, expected: &str| {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let heads = |n_head| NgptConfig { n_head, ..small() };
    refuses(heads(0), "`n_head` is 0");
    refuses(heads(7), "`n_head`: 7 does not divide `width` = 60");
    refuses(
        heads(4),
        "`n_head` is 4, so each head has 15 of the 60 coordinates of `width`",
    );
    let d_ff = NgptConfig {
        d_ff: Some(0),
        ..small()
    };
    refuses(d_ff, "`d_ff` is 0");
    for rotary_base in [0.0, f64::NAN] {
        let base = NgptConfig {
            rotary_base,
            ..small()
        };
        refuses(base, "`rotary_base` is");
    }
    let dropout = NgptConfig {
        dropout: 1.0,
        ..small()
    };
    refuses(dropout, "`dropout`");
}

fn numbers<const D: usize>(x: &Tensor<Flex, D>) -> Vec<f64> {
    x.to_data().iter::<f64>().collect()
}

/// Returns x / |x|.
fn normalised(x: &[f64]) -> Vec<f64> {
    let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    x.iter().map(|x| x / length).collect()
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-5, "{what}: {a} instead of {b}");
    }
}

/// Compares three forms of an update of h, `residual`, `forward` and `attend`, with the paper's equation. y is
/// attention(h) or mlp(h).
fn follows_the_paper(
    branch: &impl Branch<Flex>,
    h: &Tensor<Flex, 3>,
    alpha: &Tensor<Flex, 1>,
    y: &Tensor<Flex, 3>,
) {
    let alpha = numbers(alpha);
    let rows = |x: &Tensor<Flex, 3>| -> Vec<Vec<f64>> {
        let rows = numbers(x);
        rows.chunks(alpha.len()).map(normalised).collect()
    };
    let expected = rows(h).into_iter().zip(rows(y)).flat_map(|(h, y)| {
        let moved: Vec<f64> = (0..h.len())
            .map(|i| h[i] + alpha[i].abs() * (y[i] - h[i]))
            .collect();
        normalised(&moved)
    });
    let expected: Vec<f64> = expected.collect();
    let exact = branch.residual(h.clone(), None);
    assert_close(&numbers(&exact), &expected, "the residual form");
    let sum = branch.forward(h.clone(), None) + h.clone();
    assert_close(&numbers(&sum), &expected, "h + f(h)");
    let unchanged = branch.attend(h.clone().into(), &mut |heads| heads, None) + h.clone();
    assert_close(
        &numbers(&unchanged),
        &expected,
        "h + f(h) with unchanged heads",
    );
}

#[test]
fn updates_are_the_steps_of_the_paper() {
    let (device, frame) = (Default::default(), Frame::default());
    let h = Tensor::random([2, 7, 60], Distribution::Normal(0.0, 1.0), &device);
    let mut attention = Attention::<Flex>::new(&small(), &frame, &device);
    let mut mlp = Mlp::<Flex>::new(&small(), &device);
    // Some α are well below 0 and some well above, so that the test shows whether |α| is used.
    for alpha in [&mut attention.alpha, &mut mlp.alpha] {
        alpha.scatter(&device);
        let drawn = numbers(&alpha.value());
        assert!(drawn.iter().any(|x| *x < -0.1) && drawn.iter().any(|x| *x > 0.1));
    }
    let y = attention.attention(h.clone(), &mut |heads| heads, None);
    follows_the_paper(&attention, &h, &attention.alpha.value(), &y);
    let y = mlp.mlp(h.clone());
    follows_the_paper(&mlp, &h, &mlp.alpha.value(), &y);
}

#[test]
fn the_zero_vector_has_no_direction() {
    let zero = Tensor::<Flex, 2>::zeros([1, 8], &Default::default());
    assert_eq!(numbers(&unit(zero)), vec![0.0; 8]);
}

#[test]
fn new_vectors_have_length_1_and_factors_their_initial_values() {
    type B = Flex;
    let device = Default::default();
    let model = small().build::<B>(37, &device).unwrap();
    let weights = params::export::<B, _>(&model);
    let root = 60f64.powf(-0.5);
    let mut matrices = 0;
    for info in params::list::<B, _>(&model) {
        let values: Vec<f64> = weights[&info.name].iter().collect();
        let [rows, columns] = match info.shape[..] {
            [rows, columns] => [rows, columns],
            _ => {
                assert!(matches!(info.role, Role::Mixing | Role::Embedding));
                let stored = if info.name.contains("feed_forward.branch.fc_scale")
                    || info.name.contains("gate_scale")
                {
                    1.0
                } else {
                    root
                };
                assert_close(&values, &vec![stored; values.len()], &info.name);
                continue;
            }
        };
        assert_eq!(info.role, Role::Unit, "{}", info.name);
        matrices += 1;
        // The unit vectors are as wide as the stream. Both axes of a square matrix have this width, so the parameter's
        // name tells the axis.
        let is_row = info.name.contains("proj") || info.name.contains("tokens");
        let squares = |i: usize, j: usize| values[i * columns + j].powi(2);
        let lengths: Vec<f64> = match is_row {
            true => (0..rows)
                .map(|i| (0..columns).map(|j| squares(i, j)).sum())
                .collect(),
            false => (0..columns)
                .map(|j| (0..rows).map(|i| squares(i, j)).sum())
                .collect(),
        };
        assert_close(&lengths, &vec![1.0; lengths.len()], &info.name);
    }
    assert_eq!(matrices, 2 + 2 * 7);
    let alpha = small().alpha::<B>(&device).value();
    assert_close(&numbers(&alpha), &[0.05; 60], "α");
}
