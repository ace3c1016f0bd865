use burn::backend::Flex;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Distribution, Tensor};
use residual_zoo_core::{Connection, Plain, Stream, params};

use crate::{Augmentation, Laurel, LaurelConfig, LowRankInit, Weights};

type B = Flex;
const WIDTH: usize = 12;

fn variants() -> Vec<Augmentation> {
    vec![
        Augmentation::Identity,
        Augmentation::LowRank { rank: 4 },
        Augmentation::PreviousActivations { k: 3 },
        Augmentation::PreviousLowRank { k: 3, rank: 4 },
        Augmentation::LowRankPerStream { k: 3, rank: 4 },
    ]
}

fn random() -> Tensor<B, 3> {
    Tensor::random(
        [2, 5, WIDTH],
        Distribution::Normal(0.0, 1.0),
        &Default::default(),
    )
}

/// A stream with x_i and the streams x_{i-1}, … of a few updates.
fn stream(reach: usize, updates: usize) -> Stream<B> {
    (0..updates).fold(Stream::new(random(), reach), |stream, _| {
        stream.advance(random())
    })
}

fn laurel(config: &LaurelConfig) -> Laurel<B> {
    config.init(WIDTH, &Default::default())
}

/// Draws every parameter from N(0, 1).
struct Redraw;

impl ModuleMapper<B> for Redraw {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|x| x.random_like(Distribution::Normal(0.0, 1.0)))
    }
}

fn assert_close(a: Tensor<B, 3>, b: Tensor<B, 3>, tolerance: f64) {
    let error: Vec<f64> = (a - b).abs().max().into_data().iter().collect();
    assert!(error[0] <= tolerance, "differs by {}", error[0]);
}

#[test]
fn at_initialisation_with_alpha_and_beta_one_it_is_plain() {
    for (weights, augmentation) in [Weights::One, Weights::Raw]
        .into_iter()
        .flat_map(|weights| {
            variants()
                .into_iter()
                .map(move |augmentation| (weights, augmentation))
        })
    {
        for init in [LowRankInit::Columns, LowRankInit::Xavier] {
            let config = LaurelConfig {
                weights,
                augmentation,
                init,
                ..LaurelConfig::default()
            };
            let (stream, fx) = (stream(augmentation.k() - 1, 4), random());
            let plain = Plain.join(&stream, fx.clone());
            assert_close(laurel(&config).join(&stream, fx), plain, 0.0);
        }
    }
}

#[test]
fn low_rank_with_b_zero_is_plain_whatever_a_is() {
    for augmentation in [
        Augmentation::LowRank { rank: 4 },
        Augmentation::PreviousLowRank { k: 3, rank: 4 },
        Augmentation::LowRankPerStream { k: 3, rank: 4 },
    ] {
        let config = LaurelConfig {
            augmentation,
            ..LaurelConfig::default()
        };
        let mut connection = laurel(&config).map(&mut Redraw);
        connection.b = connection.b.map(|b| b.map(|b| b.zeros_like()));
        let (stream, fx) = (stream(2, 4), random());
        let plain = Plain.join(&stream, fx.clone());
        assert_close(connection.join(&stream, fx), plain, 0.0);
    }
}

#[test]
fn one_pair_for_all_streams_is_the_sum_of_single_products() {
    let config = LaurelConfig {
        augmentation: Augmentation::PreviousLowRank { k: 3, rank: 4 },
        ..LaurelConfig::default()
    };
    let connection = laurel(&config).map(&mut Redraw);
    let (stream, fx) = (stream(2, 4), random());
    let gamma = connection.gamma.clone().expect("weights").val();
    let streams = [stream.x.clone()]
        .into_iter()
        .chain(stream.earlier(2).iter().cloned());
    let terms = streams
        .enumerate()
        .map(|(j, x)| connection.low_rank(x, 0) * gamma.clone().narrow(0, j, 1).unsqueeze());
    let plain = Plain.join(&stream, fx.clone());
    let expected = terms.fold(plain, |sum, term| sum + term);
    assert_close(connection.join(&stream, fx), expected, 1e-4);
}

#[test]
fn streams_before_the_first_are_left_out() {
    let augmentation = Augmentation::PreviousActivations { k: 3 };
    let config = LaurelConfig {
        augmentation,
        ..LaurelConfig::default()
    };
    let connection = laurel(&config).map(&mut Redraw);
    let (stream, fx) = (stream(2, 0), random());
    let gamma = connection.gamma.clone().expect("weights").val();
    let expected = stream.x.clone() * (gamma.narrow(0, 0, 1).unsqueeze() + 1.0) + fx.clone();
    assert_close(connection.join(&stream, fx), expected, 1e-5);
}

#[test]
fn no_more_than_k_streams_are_kept() {
    for augmentation in variants() {
        let connection = laurel(&LaurelConfig {
            augmentation,
            ..LaurelConfig::default()
        });
        assert_eq!(connection.reach() + 1, augmentation.k());
        let stream = stream(connection.reach(), 20);
        assert_eq!(stream.earlier(usize::MAX).len(), augmentation.k() - 1);
    }
}

#[test]
fn alpha_starts_as_configured_and_beta_is_the_rest() {
    for (weights, per_dimension) in [
        (Weights::Softmax, false),
        (Weights::Softmax, true),
        (Weights::Sigmoid, false),
        (Weights::Sigmoid, true),
    ] {
        let config = LaurelConfig {
            weights,
            per_dimension,
            alpha: 0.3,
            ..LaurelConfig::default()
        };
        let (stream, fx) = (stream(0, 1), random());
        let expected = fx.clone() * 0.3 + stream.x.clone() * 0.7;
        assert_close(laurel(&config).join(&stream, fx), expected, 1e-6);
    }
}

#[test]
fn initial_columns_are_those_of_footnote_2() {
    // If r divides D, the columns are orthogonal and have norm 1/r.
    let connection = laurel(&LaurelConfig::lr(4));
    let a: Tensor<B, 2> = connection.a.expect("A").val().squeeze_dim(0);
    let squares: Vec<f64> = a
        .clone()
        .transpose()
        .matmul(a.clone())
        .into_data()
        .iter()
        .collect();
    for (at, found) in squares.iter().enumerate() {
        let expected = if at / 4 == at % 4 { 1.0 / 16.0 } else { 0.0 };
        assert!((found - expected).abs() < 1e-7, "{found} is not {expected}");
    }
    // If r does not divide D, each entry is checked against the definition.
    let connection = laurel(&LaurelConfig::rw_lr_pa(2, 5));
    let a: Vec<f64> = connection.a.expect("A").val().into_data().iter().collect();
    assert_eq!(a.len(), 2 * WIDTH * 5);
    for (at, found) in a.iter().enumerate() {
        let (i, j) = (at / 5 % WIDTH, at % 5);
        let expected = if i % 5 == j {
            1.0 / ((5 * WIDTH) as f64).sqrt()
        } else {
            0.0
        };
        assert!((found - expected).abs() < 1e-7, "{found} is not {expected}");
    }
}

#[test]
fn it_has_as_many_parameters_as_it_counts() {
    for weights in [
        Weights::One,
        Weights::Softmax,
        Weights::Sigmoid,
        Weights::Raw,
    ] {
        for per_dimension in [false, true] {
            for augmentation in variants() {
                let config = LaurelConfig {
                    weights,
                    per_dimension,
                    augmentation,
                    ..LaurelConfig::default()
                };
                let counted = config.cost(WIDTH).params.total();
                assert_eq!(laurel(&config).num_params(), counted, "{config:?}");
            }
        }
    }
}

#[test]
fn only_the_low_rank_matrices_decay() {
    let list = params::list::<B, _>(&laurel(&LaurelConfig::rw_lr_pa(2, 4)));
    let roles: Vec<_> = list.iter().map(|p| (p.name.as_str(), p.role)).collect();
    use params::Role::{Mixing, Weight};
    let expected = [
        ("mixing", Mixing),
        ("a", Weight),
        ("b", Weight),
        ("gamma", Mixing),
    ];
    assert_eq!(roles, expected);
}

#[test]
fn impossible_variants_name_the_field() {
    let field = |config: LaurelConfig| config.validate().unwrap_err().field;
    assert_eq!(field(LaurelConfig::lr(0)), "augmentation.rank");
    assert_eq!(field(LaurelConfig::pa(0)), "augmentation.k");
    let alpha = LaurelConfig {
        alpha: 1.0,
        ..LaurelConfig::rw()
    };
    assert_eq!(field(alpha), "alpha");
    let per_dimension = LaurelConfig {
        per_dimension: true,
        ..LaurelConfig::default()
    };
    assert_eq!(field(per_dimension), "per_dimension");
}
