use burn::backend::Flex;
use burn::module::Module;
use burn::tensor::{Distribution, Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, Connection, Design, Plain, ResidualBlock, Sites, Stream, Update, contract, params,
};

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

/// Returns a random stream x_i that carries `earlier` streams.
fn stream(earlier: usize) -> Stream<B> {
    Stream {
        carried: (0..earlier).map(|_| random()).collect(),
        ..Stream::new(random())
    }
}

/// A branch with f(x) = `fx`.
#[derive(Module, Debug)]
struct Constant<B: Backend> {
    fx: Tensor<B, 3>,
}

impl<B: Backend> Branch<B> for Constant<B> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, _: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        self.fx.clone()
    }
}

/// Computes x_{i+1}, where f(x_i) is `fx`.
fn join(connection: &impl Connection<B>, stream: &Stream<B>, fx: Tensor<B, 3>) -> Tensor<B, 3> {
    let update = Update::new(Constant { fx }, connection.clone());
    update.forward(stream.clone(), None).x
}

/// Returns the sites of one layer with two sublayers.
fn sites() -> Sites {
    Sites::sublayers(WIDTH, 1, 2)
}

fn laurel(config: &LaurelConfig) -> Laurel<B> {
    config.connection(&sites(), 0, &Default::default())
}

/// Draws the parameters from N(0, 1).
fn redrawn(connection: Laurel<B>) -> Laurel<B> {
    contract::redrawn(connection, Distribution::Normal(0.0, 1.0), 1)
}

fn assert_close(a: Tensor<B, 3>, b: Tensor<B, 3>, tolerance: f64) {
    let error: Vec<f64> = (a - b).abs().max().into_data().iter().collect();
    assert!(error[0] <= tolerance, "differs by {}", error[0]);
}

#[test]
fn at_initialisation_with_alpha_and_beta_one_it_is_plain() {
    for (weights, augmentation) in [Weights::One, Weights::Raw, Weights::DoubleSoftmax]
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
            let (stream, fx) = (stream(augmentation.k() - 1), random());
            let plain = join(&Plain, &stream, fx.clone());
            assert_close(
                join(&laurel(&config), &stream, fx.clone()),
                plain.clone(),
                0.0,
            );
            let norm = augmentation != Augmentation::Identity;
            let normed = LaurelConfig { norm, ..config };
            assert_close(join(&laurel(&normed), &stream, fx), plain, 0.0);
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
        let mut connection = redrawn(laurel(&config));
        connection.b = connection.b.map(|b| b.map(|b| b.zeros_like()));
        let (stream, fx) = (stream(2), random());
        let plain = join(&Plain, &stream, fx.clone());
        assert_close(join(&connection, &stream, fx), plain, 0.0);
    }
}

#[test]
fn one_pair_for_all_streams_is_the_sum_of_single_products() {
    let config = LaurelConfig {
        augmentation: Augmentation::PreviousLowRank { k: 3, rank: 4 },
        ..LaurelConfig::default()
    };
    let connection = redrawn(laurel(&config));
    let (stream, fx) = (stream(2), random());
    let gamma = connection.gamma.clone().expect("weights").val();
    let streams = [stream.x.clone()]
        .into_iter()
        .chain(stream.carried.iter().cloned());
    let terms = streams
        .enumerate()
        .map(|(j, x)| connection.low_rank(x, 0) * gamma.clone().narrow(0, j, 1).unsqueeze());
    let plain = join(&Plain, &stream, fx.clone());
    let expected = terms.fold(plain, |sum, term| sum + term);
    assert_close(join(&connection, &stream, fx), expected, 1e-4);
}

#[test]
fn streams_before_the_first_are_left_out() {
    let augmentation = Augmentation::PreviousActivations { k: 3 };
    let config = LaurelConfig {
        augmentation,
        ..LaurelConfig::default()
    };
    let connection = redrawn(laurel(&config));
    let (stream, fx) = (stream(0), random());
    let gamma = connection.gamma.clone().expect("weights").val();
    let expected = stream.x.clone() * (gamma.narrow(0, 0, 1).unsqueeze() + 1.0) + fx.clone();
    assert_close(join(&connection, &stream, fx), expected, 1e-5);
}

#[test]
fn no_more_than_k_streams_are_kept() {
    for augmentation in variants() {
        let connection = laurel(&LaurelConfig {
            augmentation,
            ..LaurelConfig::default()
        });
        let update = Update::new(Constant { fx: random() }, connection);
        let stream = (0..20).fold(stream(0), |stream, _| update.forward(stream, None));
        assert_eq!(stream.carried.len(), augmentation.k() - 1);
    }
}

#[test]
fn alpha_and_beta_start_as_configured() {
    for (weights, alpha, expected) in [
        (Weights::Softmax, None, [0.5, 0.5]),
        (Weights::Softmax, Some(0.3), [0.3, 0.7]),
        (Weights::DoubleSoftmax, None, [1.0, 1.0]),
        (Weights::DoubleSoftmax, Some(1.5), [1.5, 0.5]),
        (Weights::Sigmoid, None, [0.5, 0.5]),
        (Weights::Sigmoid, Some(0.3), [0.3, 0.7]),
        (Weights::TwoSigmoids, None, [0.95, 0.95]),
        (Weights::TwoSigmoids, Some(0.3), [0.3, 0.3]),
        (Weights::Raw, None, [1.0, 1.0]),
    ] {
        for per_dimension in [false, true] {
            let config = LaurelConfig {
                weights,
                per_dimension,
                alpha,
                ..LaurelConfig::default()
            };
            config.validate(&sites()).unwrap();
            let (stream, fx) = (stream(0), random());
            let [a, b] = expected;
            let expected = fx.clone() * a + stream.x.clone() * b;
            assert_close(join(&laurel(&config), &stream, fx), expected, 1e-6);
        }
    }
}

#[test]
fn alpha_and_beta_are_the_functions_of_their_parameters() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (p, q) = (0.7, -0.4);
    // The softmax of two numbers is the sigmoid of their difference.
    let share = sigmoid(p - q);
    for (weights, [a, b]) in [
        (Weights::Softmax, [share, 1.0 - share]),
        (Weights::DoubleSoftmax, [2.0 * share, 2.0 - 2.0 * share]),
        (Weights::Sigmoid, [sigmoid(p), 1.0 - sigmoid(p)]),
        (Weights::TwoSigmoids, [sigmoid(p), sigmoid(q)]),
        (Weights::Raw, [p, q]),
    ] {
        let config = LaurelConfig {
            weights,
            ..LaurelConfig::default()
        };
        let mut connection = laurel(&config);
        let set = |mixing: Tensor<B, 2>| {
            let rows = mixing.dims()[0];
            let both = Tensor::from_data([[p], [q]], &mixing.device());
            both.narrow(0, 0, rows)
        };
        connection.mixing = connection.mixing.map(|mixing| mixing.map(set));
        let (stream, fx) = (stream(0), random());
        let expected = fx.clone() * a + stream.x.clone() * b;
        assert_close(join(&connection, &stream, fx), expected, 1e-6);
    }
}

#[test]
fn the_norm_is_that_of_the_correction() {
    for augmentation in variants().into_iter().skip(1) {
        let config = |norm| LaurelConfig {
            augmentation,
            norm,
            ..LaurelConfig::default()
        };
        let normed = redrawn(laurel(&config(true)));
        let mut plain = normed.clone();
        plain.norm = None;
        let (stream, fx) = (stream(2), random());
        let sum = join(&Plain, &stream, fx.clone());
        let correction = join(&plain, &stream, fx.clone()) - sum.clone();
        let mean_square = (correction.clone() * correction.clone()).mean_dim(2);
        let gamma = normed.norm.as_ref().unwrap().gamma.as_ref().unwrap().val();
        let expected = sum + correction / (mean_square + 1e-6).sqrt() * gamma.unsqueeze();
        assert_close(join(&normed, &stream, fx), expected, 1e-4);
        assert_eq!(
            laurel(&config(false)).num_params() + WIDTH,
            normed.num_params()
        );
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
        Weights::DoubleSoftmax,
        Weights::Sigmoid,
        Weights::TwoSigmoids,
        Weights::Raw,
    ] {
        for per_dimension in [false, true] {
            for augmentation in variants() {
                let config = LaurelConfig {
                    weights,
                    per_dimension,
                    augmentation,
                    norm: augmentation != Augmentation::Identity,
                    ..LaurelConfig::default()
                };
                let counted = config.cost(&sites()).params.total() / 2;
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
    let field = |config: LaurelConfig| config.validate(&sites()).unwrap_err().field;
    assert_eq!(field(LaurelConfig::lr(0)), "augmentation.rank");
    assert_eq!(field(LaurelConfig::pa(0)), "augmentation.k");
    for (weights, alpha) in [
        (Weights::Softmax, 1.0),
        (Weights::Sigmoid, 0.0),
        (Weights::TwoSigmoids, 1.0),
        (Weights::DoubleSoftmax, 2.0),
        (Weights::DoubleSoftmax, f64::NAN),
        (Weights::Raw, 0.5),
        (Weights::One, 0.5),
    ] {
        let alpha = LaurelConfig {
            weights,
            alpha: Some(alpha),
            ..LaurelConfig::default()
        };
        assert_eq!(field(alpha), "alpha");
    }
    let norm = LaurelConfig {
        norm: true,
        ..LaurelConfig::rw()
    };
    assert_eq!(field(norm), "norm");
    let per_dimension = LaurelConfig {
        per_dimension: true,
        ..LaurelConfig::default()
    };
    assert_eq!(field(per_dimension), "per_dimension");
}
