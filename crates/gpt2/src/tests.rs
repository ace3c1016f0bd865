use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_core::params::{self, Role};
use residual_zoo_core::{Architecture, LanguageModel, PlainModel, Tensors, contract};

use crate::{Gpt2, Gpt2Config, Init, net2net};

fn small() -> Gpt2Config {
    Gpt2Config {
        n_layer: 2,
        n_head: 4,
        width: 60,
        context: 64,
        ..Gpt2Config::default()
    }
}

fn check(config: &Gpt2Config) {
    contract::check::<Autodiff<Flex>, _>(&PlainModel(config.clone()), &Default::default());
}

#[test]
fn keeps_the_contract() {
    check(&small());
}

#[test]
fn keeps_the_contract_with_every_switch_flipped() {
    check(&Gpt2Config {
        bias: false,
        tied: false,
        d_ff: Some(44),
        activation: residual_zoo_core::Activation::GeluErf,
        inverse_layer_scale: true,
        ..small()
    });
}

#[test]
fn presets_have_the_published_sizes() {
    // Parameter counts of the released checkpoints.
    let sizes = [
        (Gpt2Config::small(), 124_439_808),
        (Gpt2Config::medium(), 354_823_168),
        (Gpt2Config::large(), 774_030_080),
        (Gpt2Config::xl(), 1_557_611_200),
    ];
    for (config, size) in sizes {
        assert_eq!(config.cost(50_257).params.total(), size);
        config.validate().unwrap();
    }
}

#[test]
fn flops_follow_palm_appendix_b() {
    let config = Gpt2Config {
        bias: false,
        ..Gpt2Config::small()
    };
    let cost = config.cost(50_257);
    // 6 N + 12 L T D, where N counts the parameters of matrix products.
    let norms = (2 * config.n_layer + 1) * config.width;
    let n = cost.params.other - norms + 50_257 * config.width;
    let attention = 12 * config.n_layer * config.context * config.width;
    assert_eq!(cost.training_flops(), 6 * n + attention);
}

/// Checks the root mean square of every parameter of a new model of two layers: `weights` for matrices and tables, half
/// of `weights` for projections back to the stream, 1 for γ, and 0 for biases and β.
fn assert_initial_stds(config: &Gpt2Config, weights: f64) {
    let device = Default::default();
    Flex::seed(&device, 1);
    let model: Gpt2<Flex> = config.build(1000, &device).unwrap();
    for (name, data) in params::export(&model) {
        let values: Vec<f64> = data.iter::<f64>().collect();
        let n = values.len() as f64;
        let std = (values.iter().map(|x| x * x).sum::<f64>() / n).sqrt();
        let expected = match name.as_str() {
            n if n.ends_with("proj.weight") => weights / 2.0,
            n if n.ends_with("weight") => weights,
            n if n.ends_with("gamma") => 1.0,
            _ => 0.0,
        };
        // Five standard errors for a sample of n normal values.
        let error = 5.0 * expected / (2.0 * n).sqrt();
        assert!(
            (std - expected).abs() <= error,
            "{name} at width {}: std {std}, not {expected}",
            config.width
        );
    }
}

#[test]
fn initial_weights_follow_the_width_below_768_and_gpt2_from_there_on() {
    for width in [64, 128, 256, 512, 768, 1024] {
        let config = |init| Gpt2Config {
            width,
            init,
            context: 64,
            tied: false,
            ..small()
        };
        let of_width = (0.4 / width as f64).sqrt();
        let default = if width < 768 { of_width } else { 0.02 };
        assert_initial_stds(&config(None), default);
        assert_initial_stds(&config(Some(Init::Width)), of_width);
        assert_initial_stds(&config(Some(Init::Fixed(0.1))), 0.1);
    }
}

#[test]
fn parameters_have_their_roles() {
    let config = Gpt2Config {
        tied: false,
        ..small()
    };
    let model: Gpt2<Flex> = config.build(50, &Default::default()).unwrap();
    let list = params::list(&model);
    let role = |name: &str| list.iter().find(|p| p.name == name).expect(name).role;
    assert_eq!(role("embeddings.tokens.weight"), Role::Embedding);
    assert_eq!(role("embeddings.positions.weight"), Role::Embedding);
    assert_eq!(role("embeddings.norm.gamma"), Role::Norm);
    assert_eq!(role("embeddings.unembedding.weight"), Role::Unembedding);
    assert_eq!(
        role("block.layers.1.attention.branch.norm.beta"),
        Role::Norm
    );
    assert_eq!(
        role("block.layers.1.attention.branch.qkv.weight"),
        Role::Weight
    );
    assert_eq!(role("block.layers.1.attention.branch.qkv.bias"), Role::Bias);
    assert_eq!(
        role("block.layers.0.feed_forward.branch.proj.weight"),
        Role::Weight
    );
    assert_eq!(
        list.iter()
            .map(|p| p.shape.iter().product::<usize>())
            .sum::<usize>(),
        model.num_params()
    );
}

#[test]
fn a_tied_unembedding_is_one_parameter() {
    let tied: Gpt2<Flex> = small().build(50, &Default::default()).unwrap();
    let untied: Gpt2<Flex> = Gpt2Config {
        tied: false,
        ..small()
    }
    .build(50, &Default::default())
    .unwrap();
    assert_eq!(untied.num_params() - tied.num_params(), 50 * 60);
}

#[test]
fn impossible_sizes_name_the_field() {
    let errors = [
        (
            Gpt2Config {
                n_head: 7,
                ..small()
            },
            "n_head",
        ),
        (
            Gpt2Config {
                n_head: 0,
                ..small()
            },
            "n_head",
        ),
        (
            Gpt2Config {
                n_layer: 0,
                ..small()
            },
            "n_layer",
        ),
        (
            Gpt2Config {
                width: 0,
                ..small()
            },
            "width",
        ),
        (
            Gpt2Config {
                context: 0,
                ..small()
            },
            "context",
        ),
        (
            Gpt2Config {
                dropout: 1.0,
                ..small()
            },
            "dropout",
        ),
        (
            Gpt2Config {
                norm_eps: f64::NAN,
                ..small()
            },
            "norm_eps",
        ),
        (
            Gpt2Config {
                init: Some(Init::Fixed(-0.1)),
                ..small()
            },
            "init",
        ),
    ];
    for (config, field) in errors {
        assert_eq!(config.validate().unwrap_err().field, field);
    }
    let error = Gpt2Config {
        n_head: 7,
        ..small()
    }
    .build::<Flex>(50, &Default::default());
    assert_eq!(
        error.unwrap_err().to_string(),
        "`n_head`: 7 does not divide `width` = 60; the next smaller divisor is 6"
    );
}

/// Returns the logits of the model of `config` with these weights.
fn logits(config: &Gpt2Config, tensors: Tensors) -> Vec<f32> {
    let device = Default::default();
    let model = config.build::<Flex>(11, &device).unwrap();
    let model = params::import::<Flex, _>(model, tensors).unwrap();
    let ids = Tensor::<Flex, 2, Int>::from_data([[3, 1, 4, 1, 5, 9, 2, 6]], &device);
    model.forward(ids).into_data().iter().collect()
}

/// Makes weights of a model of `config`, all different, and large enough to show a missing term.
fn weights(config: &Gpt2Config) -> Tensors {
    let model = config.build::<Flex>(11, &Default::default()).unwrap();
    let shift = |(name, data): (String, burn::tensor::TensorData)| {
        let shape = data.shape.clone();
        let values = data.iter::<f32>().enumerate();
        let values: Vec<f32> = values
            .map(|(i, x)| 2.0 * x + 0.1 * (i as f32).sin())
            .collect();
        (name, burn::tensor::TensorData::new(values, shape))
    };
    params::export::<Flex, _>(&model)
        .into_iter()
        .map(shift)
        .collect()
}

#[test]
fn net2net_to_twice_the_width_keeps_the_logits() {
    for (bias, tied) in [(true, true), (false, false), (false, true)] {
        let narrow = Gpt2Config {
            width: 24,
            n_head: 3,
            d_ff: Some(40),
            init: Some(Init::Fixed(0.02)),
            bias,
            tied,
            ..small()
        };
        let wide = Gpt2Config {
            width: 48,
            n_head: 6,
            d_ff: Some(100),
            ..narrow.clone()
        };
        let tensors = weights(&narrow);
        let before = logits(&narrow, tensors.clone());
        let widened = net2net::widen(&wide, &narrow, &tensors, 0.0).unwrap();
        let after = logits(&wide, widened);
        let error = before.iter().zip(&after).map(|(a, b)| (a - b).abs());
        let error = error.fold(0.0, f32::max);
        assert!(error < 2e-5, "bias {bias}, tied {tied}: {error}");
    }
}

#[test]
fn net2net_with_noise_draws_copies_apart_and_keeps_the_originals() {
    let narrow = Gpt2Config {
        width: 24,
        n_head: 3,
        ..small()
    };
    let wide = Gpt2Config {
        width: 48,
        n_head: 6,
        ..narrow.clone()
    };
    let tensors = weights(&narrow);
    let widened = net2net::widen(&wide, &narrow, &tensors, 0.01).unwrap();
    let name = "embeddings.tokens.weight";
    let before: Vec<f32> = tensors[name].iter().collect();
    let after: Vec<f32> = widened[name].iter().collect();
    let size = (before.iter().map(|x| x * x).sum::<f32>() / before.len() as f32).sqrt();
    let mut apart = 0;
    for (i, row) in after.chunks(48).enumerate() {
        let original = &before[24 * i..24 * (i + 1)];
        assert_eq!(&row[..24], original);
        for (copy, original) in row[24..].iter().zip(original) {
            assert!((copy - original).abs() <= 0.0101 * size);
            apart += usize::from(copy != original);
        }
    }
    assert!(apart > before.len() * 9 / 10, "{apart}");
}

#[test]
fn net2net_refuses_what_is_no_widening() {
    let narrow = small();
    let tensors = weights(&narrow);
    let cases = [
        (
            Gpt2Config {
                width: 120,
                n_head: 4,
                ..small()
            },
            "`model.n_head` makes heads of width 30",
        ),
        (
            Gpt2Config {
                width: 30,
                n_head: 2,
                ..small()
            },
            "cannot shrink from 60 to 30",
        ),
        (
            Gpt2Config {
                n_layer: 3,
                ..small()
            },
            "`model` differs from the model of the other run in more than width",
        ),
        (
            Gpt2Config {
                d_ff: Some(30),
                ..small()
            },
            "`model.d_ff` cannot shrink",
        ),
    ];
    for (wide, expected) in cases {
        let error = net2net::widen(&wide, &narrow, &tensors, 0.0).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
