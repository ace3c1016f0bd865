mod merging;
mod tuning;

use std::collections::BTreeMap;

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Distribution, Int, Tensor, TensorData, backend::Backend};
use residual_zoo_core::ops::norm::standardise;
use residual_zoo_core::{
    Activation, Architecture, LanguageModel, NormParams, PlainModel, Transfer as _, contract,
    ops::loss::Loss, params,
};

use crate::{
    Added, GrowError, MergeError, Normalization, PairInit, Pattention, Position, TokenFormer,
    TokenFormerConfig, added, from_transformer, grow, merge,
};

type B = Autodiff<Flex>;

const ADDED: Added = Added { attn: 5, ffn: 7 };

fn small() -> TokenFormerConfig {
    TokenFormerConfig {
        n_layer: 2,
        n_head: 3,
        width: 24,
        n_attn: Some(13),
        n_ffn: Some(21),
        context: 64,
        ..TokenFormerConfig::default()
    }
}

/// Normalizations whose result a zero key does not change.
const THAT_GROW: [Normalization; 3] = [
    Normalization::L2NormGelu,
    Normalization::GeluL2Norm,
    Normalization::GeluL1Norm,
];

fn forms() -> Vec<TokenFormerConfig> {
    let theta = |normalization| TokenFormerConfig {
        normalization,
        ..small()
    };
    vec![
        small(),
        theta(Normalization::GeluL2Norm),
        theta(Normalization::GeluL1Norm),
        theta(Normalization::Softmax),
        TokenFormerConfig {
            norm_params: NormParams::Scale,
            ..small()
        },
        TokenFormerConfig {
            norm_params: NormParams::ScaleAndShift,
            ..small()
        },
        TokenFormerConfig {
            position: Position::Rotary { fraction: 0.25 },
            affine_final_norm: true,
            activation: Activation::GeluTanh,
            pattention_eps: 1e-5,
            n_attn: None,
            n_ffn: None,
            ..small()
        },
        TokenFormerConfig {
            added: Some(ADDED),
            norm_params: NormParams::ScaleAndShift,
            ..small()
        },
    ]
}

#[test]
fn every_form_keeps_the_contract() {
    for config in forms() {
        contract::check::<B, _>(&PlainModel(config), &Default::default());
    }
}

fn ids() -> Tensor<B, 2, Int> {
    Tensor::from_data(
        [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]],
        &Default::default(),
    )
}

/// Draws the trainable parameters from N(0, 0.3²), so that none is zero, as after training.
fn retrained<M: Module<B>>(model: M, seed: u64) -> M {
    contract::redrawn(model, Distribution::Normal(0.0, 0.3), seed)
}

fn trained(config: &TokenFormerConfig) -> TokenFormer<B> {
    let model = config
        .build::<B>(11, &Default::default())
        .expect("a valid config");
    retrained(model, 1)
}

fn difference(a: &TokenFormer<B>, b: &TokenFormer<B>) -> f64 {
    let difference = (a.forward(ids()) - b.forward(ids())).abs().max();
    let difference: Vec<f64> = difference.into_data().iter().collect();
    difference[0]
}

#[test]
fn growth_keeps_the_logits() {
    let device = Default::default();
    for normalization in THAT_GROW {
        let config = TokenFormerConfig {
            normalization,
            ..small()
        };
        let model = trained(&config);
        let (grown, larger) = grow(&model, &config, 17, 30, &device).expect("it grows");
        assert_eq!((larger.n_attn(), larger.n_ffn()), (17, 30));
        assert_eq!(larger.tau(), config.tau());
        let error = difference(&model, &grown);
        assert!(error < 1e-5, "{normalization:?}: {error}");
        // The grown model grows once more.
        let (again, _) = grow(&grown, &larger, 40, 30, &device).expect("it grows");
        let error = difference(&model, &again);
        assert!(error < 1e-5, "{normalization:?}: {error}");
    }
}

#[test]
fn growth_keeps_the_logits_of_a_tuned_model() {
    let device = Default::default();
    for (added, lora) in [(None, Some(2)), (Some(Added { attn: 3, ffn: 5 }), None)] {
        let config = TokenFormerConfig {
            added,
            lora,
            ..small()
        };
        let model = trained(&config);
        let (grown, _) = grow(&model, &config, 17, 30, &device).expect("it grows");
        let error = difference(&model, &grown);
        assert!(error < 1e-5, "{added:?}, {lora:?}: {error}");
    }
}

#[test]
fn growth_with_a_recomputed_tau_does_not_keep_the_logits() {
    let device = Default::default();
    let config = small();
    let model = trained(&config);
    let recomputed = TokenFormerConfig {
        n_attn: Some(17),
        n_ffn: Some(30),
        tau: None,
        ..config.clone()
    };
    let larger = recomputed.build::<B>(11, &device).expect("a valid config");
    let mut tensors = params::export::<B, _>(&model);
    let fresh = params::export::<B, _>(&larger);
    for (name, tau) in fresh.iter().filter(|(name, _)| name.ends_with("tau")) {
        tensors.insert(name.clone(), tau.clone());
    }
    let weights = recomputed.grow(&config, tensors, &fresh).expect("it grows");
    let larger = params::import::<B, _>(larger, weights).expect("it fits");
    let error = difference(&model, &larger);
    assert!(error > 1e-2, "logits moved by {error} only");
}

#[test]
fn growth_of_a_softmax_does_not_keep_the_logits() {
    let config = TokenFormerConfig {
        normalization: Normalization::Softmax,
        ..small()
    };
    let model = trained(&config);
    let (grown, _) = grow(&model, &config, 17, 30, &Default::default()).expect("it grows");
    assert!(difference(&model, &grown) > 1e-2);
}

#[test]
fn the_new_keys_are_zero_and_learn() {
    let _alone = contract::alone();
    let config = small();
    let (grown, _) = grow(&trained(&config), &config, 17, 30, &Default::default()).expect("grows");
    let tensors = params::export::<B, _>(&grown);
    let keys = &tensors["block.layers.1.attention.branch.q.keys"];
    assert_eq!(*keys.shape, [17, 24]);
    let keys: Vec<f64> = keys.iter().collect();
    assert!(keys[13 * 24..].iter().all(|x| *x == 0.0));
    assert!(keys[..13 * 24].iter().all(|x| *x != 0.0));

    let loss = Loss::new(grown.forward(ids()), ids()).cross_entropy;
    let grads = GradientsParams::from_grads(loss.backward(), &grown);
    let list = params::list::<B, _>(&grown);
    let q = list
        .iter()
        .find(|p| p.name.ends_with("1.attention.branch.q.keys"));
    let gradient = grads
        .get::<Flex, 2>(q.expect("keys").id)
        .expect("a gradient");
    let new = gradient.narrow(0, 13, 4).abs().max().into_scalar();
    assert!(new > 0.0);
}

#[test]
fn models_do_not_shrink_or_change_otherwise() {
    let device = Default::default();
    let (config, model) = (small(), trained(&small()));
    let error = grow(&model, &config, 12, 30, &device).expect_err("an error");
    assert!(
        error
            .to_string()
            .contains("`n_attn` cannot shrink from 13 to 12"),
        "{error}"
    );
    let other = TokenFormerConfig {
        width: 48,
        ..config
    };
    let error = grow(&model, &other, 17, 30, &device).expect_err("an error");
    assert!(matches!(error, GrowError::Model(_)), "{error}");
}

#[test]
fn a_row_of_zeros_gives_zeros_and_a_gradient_of_zero() {
    let _alone = contract::alone();
    let device = Default::default();
    for normalization in THAT_GROW {
        let config = TokenFormerConfig {
            normalization,
            ..small()
        };
        let pattention = Pattention::<B>::new(&config, (13, None), 2.0, 0.3, &device);
        let x = Tensor::<B, 3>::zeros([1, 2, 24], &device).require_grad();
        let y = pattention.forward(x.clone());
        let grads = y.clone().sum().backward();
        let gradient = x.grad(&grads).expect("a gradient").into_data();
        assert!(y.into_data().iter::<f64>().all(|y| y == 0.0));
        assert!(gradient.iter::<f64>().all(|g| g == 0.0));
    }
}

#[test]
fn the_fast_and_the_plain_theta_agree() {
    let _alone = contract::alone();
    let device = Default::default();
    let mut rows = Tensor::<B, 3>::random([3, 63, 60], Distribution::Normal(0.0, 1.5), &device);
    // One row has norm 0.
    rows = rows.slice_assign([0..1, 5..6], Tensor::zeros([1, 1, 60], &device));
    let weights = Tensor::<B, 3>::random([3, 63, 60], Distribution::Default, &device);
    let normalizations = THAT_GROW.into_iter().chain([Normalization::Softmax]);
    let activations = [Activation::GeluTanh, Activation::GeluErf, Activation::Relu];
    for (normalization, activation) in
        normalizations.flat_map(|n| activations.map(|activation| (n, activation)))
    {
        let config = TokenFormerConfig {
            normalization,
            activation,
            pattention_eps: 1e-3,
            ..small()
        };
        let mut pattention = Pattention::<B>::new(&config, (60, None), 3.0, 0.1, &device);
        pattention.tau = Param::from_tensor(Tensor::from_data([3.0], &device).require_grad());
        let a = rows.clone().require_grad();
        let of = |y: Tensor<B, 3>| {
            let grads = (y.clone() * weights.clone()).sum().backward();
            let of_tau = pattention.tau.val().grad(&grads).unwrap();
            let of_a = a.grad(&grads).unwrap();
            [y.into_data(), of_a.into_data(), of_tau.into_data()]
        };
        let fast = of(pattention.theta(a.clone()));
        let plain = of(pattention.theta_plain(a.clone()));
        for (i, (fast, plain)) in fast.iter().zip(&plain).enumerate() {
            let largest = plain.iter::<f64>().fold(1.0, |m: f64, x| m.max(x.abs()));
            for (fast, plain) in fast.iter::<f64>().zip(plain.iter::<f64>()) {
                let error = (fast - plain).abs() / largest;
                let what = format!("{normalization:?}, {activation:?}, result {i}");
                assert!(error < 2e-5, "{what}: {fast} is not {plain}");
            }
        }
    }
}

#[test]
fn theta_does_not_depend_on_the_size_of_the_keys() {
    let device = Default::default();
    let mut pattention = Pattention::<B>::new(&small(), (13, None), 2.0, 0.3, &device);
    let x = Tensor::<B, 3>::random([1, 2, 24], Distribution::Normal(0.0, 1.0), &device);
    let before = pattention.forward(x.clone());
    pattention.keys = pattention.keys.map(|keys| keys * 7.0);
    let error = (pattention.forward(x) - before).abs().max().into_scalar();
    assert!(error < 1e-6, "{error}");
}

/// Returns random weights of a GPT-2 with the sizes of `config`, under the zoo's parameter names.
fn transformer(config: &TokenFormerConfig) -> BTreeMap<String, TensorData> {
    let d = config.width;
    let mut tensors = BTreeMap::new();
    let mut draw = |name: String, shape: Vec<usize>| {
        let noise = Distribution::Normal(0.2, 0.5);
        let count: usize = shape.iter().product();
        let mut data = Tensor::<Flex, 1>::random([count], noise, &Default::default()).into_data();
        data.shape = shape.into();
        tensors.insert(name, data);
    };
    draw("embeddings.tokens.weight".into(), vec![11, d]);
    draw(
        "embeddings.positions.weight".into(),
        vec![config.context, d],
    );
    for layer in 0..config.n_layer {
        let attention = format!("block.layers.{layer}.attention.branch");
        draw(format!("{attention}.norm.gamma"), vec![d]);
        draw(format!("{attention}.qkv.weight"), vec![d, 3 * d]);
        draw(format!("{attention}.proj.weight"), vec![d, d]);
        let mlp = format!("block.layers.{layer}.feed_forward.branch");
        draw(format!("{mlp}.norm.gamma"), vec![d]);
        draw(format!("{mlp}.fc.weight"), vec![d, config.n_ffn()]);
        draw(format!("{mlp}.proj.weight"), vec![config.n_ffn(), d]);
    }
    tensors
}

#[test]
fn a_pretrained_transformer_gives_weights_of_the_same_function_but_theta() {
    let device = Default::default();
    let config = TokenFormerConfig {
        n_attn: None,
        n_ffn: None,
        ..small()
    };
    let transformer = transformer(&config);
    let tensors = from_transformer(&config, &transformer).expect("equal sizes");
    let model = config.build::<B>(11, &device).expect("a valid config");
    // The import checks that all parameters are present, with their shapes.
    params::import::<B, _>(model, tensors.clone()).expect("a whole model");

    let get = |tensors: &BTreeMap<String, TensorData>, name: &str| {
        Tensor::<B, 2>::from_data(tensors[name].clone(), &device)
    };
    let gamma = |name: &str| Tensor::<B, 1>::from_data(transformer[name].clone(), &device);
    let pattention = |name: &str, n: usize| {
        let mut p = Pattention::<B>::new(&config, (n, None), (n as f64).sqrt(), 1.0, &device);
        p.keys = p.keys.map(|_| get(&tensors, &format!("{name}.keys")));
        p.values = p.values.map(|_| get(&tensors, &format!("{name}.values")));
        p
    };
    let x = Tensor::<B, 3>::random([2, 5, 24], Distribution::Normal(0.0, 1.0), &device);
    let x = standardise(x, 1e-9);
    let gelu = |x| Activation::GeluErf.apply(x);
    let close = |a: Tensor<B, 3>, b: Tensor<B, 3>| {
        let scale = b.clone().abs().max().into_scalar();
        let error = (a - b).abs().max().into_scalar() / scale;
        assert!(error < 1e-5, "{error}");
    };

    let attention = "block.layers.1.attention.branch";
    let scaled = gelu(x.clone()) * gamma(&format!("{attention}.norm.gamma")).unsqueeze();
    let qkv = scaled.matmul(get(&transformer, &format!("{attention}.qkv.weight")).unsqueeze());
    for (i, name) in ["q", "k", "v"].into_iter().enumerate() {
        let found = pattention(&format!("{attention}.{name}"), 24).forward(x.clone());
        close(found, qkv.clone().narrow(2, i * 24, 24));
    }

    let mlp = "block.layers.1.feed_forward.branch";
    let scaled = x.clone() * gamma(&format!("{mlp}.norm.gamma")).unsqueeze();
    let a = scaled.matmul(get(&transformer, &format!("{mlp}.fc.weight")).unsqueeze());
    let norm = (a.clone() * a.clone()).sum_dim(2).sqrt();
    let hidden = gelu(a * 96f64.sqrt() / norm);
    let expected = hidden.matmul(get(&transformer, &format!("{mlp}.proj.weight")).unsqueeze());
    close(pattention(&format!("{mlp}.ffn"), 96).forward(x), expected);
}

#[test]
fn a_transformer_of_other_sizes_is_refused() {
    let config = TokenFormerConfig {
        n_attn: None,
        ..small()
    };
    let mut weights = transformer(&config);
    let wider = TokenFormerConfig {
        n_ffn: Some(22),
        ..config.clone()
    };
    let error = from_transformer(&wider, &weights).unwrap_err().to_string();
    assert!(
        error.contains("fc.weight") && error.contains("[24, 22]"),
        "{error}"
    );
    weights.remove("block.layers.1.attention.branch.proj.weight");
    let error = from_transformer(&config, &weights).unwrap_err().to_string();
    assert!(
        error.contains("no `block.layers.1.attention.branch.proj.weight`"),
        "{error}"
    );
    let fewer = small();
    assert!(from_transformer(&fewer, &weights).is_err());
    let deeper = TokenFormerConfig {
        n_layer: config.n_layer + 1,
        ..config.clone()
    };
    let deep = transformer(&deeper);
    let error = from_transformer(&config, &deep).unwrap_err().to_string();
    assert!(error.contains("more layers"), "{error}");
}

#[test]
fn impossible_sizes_name_the_field() {
    let field = |config: TokenFormerConfig| config.validate().unwrap_err().field;
    let n_head = TokenFormerConfig {
        n_head: 5,
        ..small()
    };
    assert_eq!(field(n_head), "n_head");
    for fraction in [0.0, 0.3, 1.5, f64::NAN] {
        let rotary = TokenFormerConfig {
            position: Position::Rotary { fraction },
            width: 30,
            ..small()
        };
        assert_eq!(field(rotary), "position.fraction", "{fraction}");
    }
}

#[test]
fn initial_weights_have_the_stated_standard_deviations() {
    let device = Default::default();
    let (width, layers) = (96, 4);
    let of_width = (0.4 / 96f64).sqrt();
    let values = 2.0 / (4.0 * 96f64.sqrt());
    // Keys and tables; values of q, k and v; values of o and the feed-forward network.
    for (init, [keys, inside, to_stream]) in [
        (
            PairInit::Width,
            [of_width, of_width, of_width / 8f64.sqrt()],
        ),
        (PairInit::Fixed(0.1), [0.1, 0.1, 0.1 / 8f64.sqrt()]),
        (PairInit::Code, [0.02, values, values]),
    ] {
        Flex::seed(&device, 3);
        let config = TokenFormerConfig {
            n_layer: layers,
            width,
            n_attn: Some(80),
            n_ffn: Some(200),
            init,
            ..small()
        };
        let model: TokenFormer<Flex> = config.build(100, &device).unwrap();
        for (name, data) in params::export(&model) {
            let numbers: Vec<f64> = data.iter().collect();
            let n = numbers.len() as f64;
            let found = (numbers.iter().map(|x| x * x).sum::<f64>() / n).sqrt();
            let expected = match name.as_str() {
                name if name.ends_with("tau") => continue,
                name if name.ends_with("o.values") || name.ends_with("ffn.values") => to_stream,
                name if name.ends_with("values") => inside,
                _ => keys,
            };
            // Five standard errors of n normal values.
            let error = 5.0 * expected / (2.0 * n).sqrt();
            assert!(
                (found - expected).abs() <= error,
                "{init:?}, {name}: {found}, not {expected}"
            );
        }
    }
}

fn weights(model: &TokenFormer<B>) -> BTreeMap<String, TensorData> {
    params::export::<B, _>(model)
}

fn loaded(config: &TokenFormerConfig, weights: BTreeMap<String, TensorData>) -> TokenFormer<B> {
    let model = config.build::<B>(11, &Default::default()).unwrap();
    params::import(model, weights).unwrap()
}
