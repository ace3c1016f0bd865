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
    Added, GrowError, Init, MergeError, Normalization, Pattention, Position, TokenFormer,
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

/// Normalizations that a zero key does not change.
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

/// Draws trained parameters from N(0, 0.3²), so that none is small, as after training.
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
        // Grow the grown model once more.
        let (again, _) = grow(&grown, &larger, 40, 30, &device).expect("it grows");
        let error = difference(&model, &again);
        assert!(error < 1e-5, "{normalization:?}: {error}");
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
            .contains("`n_attn`: cannot shrink from 13 to 12"),
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
    let device = Default::default();
    let mut rows = Tensor::<B, 3>::random([3, 63, 60], Distribution::Normal(0.0, 1.5), &device);
    // A row with norm 0.
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

/// Random weights of a GPT-2 of the sizes of `config`, as the zoo names them.
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
    // All parameters, in their shapes.
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
        (Init::Width, [of_width, of_width, of_width / 8f64.sqrt()]),
        (Init::Fixed(0.1), [0.1, 0.1, 0.1 / 8f64.sqrt()]),
        (Init::Code, [0.02, values, values]),
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

#[test]
fn a_model_merged_with_itself_with_half_the_values_is_the_same_function() {
    let rotary = Position::Rotary { fraction: 0.5 };
    for normalization in [
        Normalization::L2NormGelu,
        Normalization::GeluL2Norm,
        Normalization::GeluL1Norm,
        Normalization::Softmax,
    ] {
        for (tau, position) in [(None, Position::Learned), (Some(2.5), rotary)] {
            let config = TokenFormerConfig {
                normalization,
                tau: tau.map(|tau| crate::Tau {
                    attn: tau,
                    ffn: tau,
                }),
                position,
                n_head: 6,
                ..small()
            };
            let model = trained(&config);
            let own = weights(&model);
            let (merged, both) = merge((&config, &own), (&config, &own), 0.5).unwrap();
            assert_eq!((merged.n_attn(), merged.n_ffn()), (26, 42));
            let error = difference(&loaded(&merged, both), &model);
            assert!(error < 2e-5, "{normalization:?}, {tau:?}: {error}");
        }
    }
}

#[test]
fn a_model_merged_with_its_grown_self_is_the_same_function() {
    let model = trained(&small());
    let (grown, config) = grow(&model, &small(), 20, 30, &Default::default()).unwrap();
    // The config of a run can omit the τ that its weights have.
    let without = TokenFormerConfig {
        tau: None,
        ..config
    };
    let (own, larger) = (weights(&model), weights(&grown));
    let (merged, both) = merge((&small(), &own), (&without, &larger), 0.5).unwrap();
    let tau = merged.tau();
    assert!((tau.attn - 26f64.sqrt()).abs() < 1e-5 && (tau.ffn - 42f64.sqrt()).abs() < 1e-5);
    let error = difference(&loaded(&merged, both), &model);
    assert!(error < 2e-5, "{error}");
}

#[test]
fn models_that_do_not_belong_together_are_not_merged() {
    let config = small();
    let a = trained(&config);
    let b = weights(&retrained(a.clone(), 2));
    let a = weights(&a);
    let error = merge((&config, &a), (&config, &b), 1.0).unwrap_err();
    assert!(
        matches!(&error, MergeError::Differs(name) if name.contains("embeddings")),
        "{error}"
    );
    for scale in [0.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
        let error = merge((&config, &a), (&config, &a), scale).unwrap_err();
        assert!(error.to_string().starts_with("`value_scale`"), "{error}");
    }
    let refused = |other: TokenFormerConfig, field: &str| {
        let of_other = weights(&trained(&other));
        let error = merge((&config, &a), (&other, &of_other), 1.0).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("`{field}`")),
            "{error}"
        );
    };
    refused(
        TokenFormerConfig {
            n_layer: 1,
            ..small()
        },
        "n_layer",
    );
    refused(
        TokenFormerConfig {
            n_head: 2,
            ..small()
        },
        "n_head",
    );
    refused(
        TokenFormerConfig {
            normalization: Normalization::Softmax,
            ..small()
        },
        "normalization",
    );
    refused(
        TokenFormerConfig {
            added: Some(ADDED),
            ..small()
        },
        "added",
    );
}

/// Returns a trained model, and the same model as `config` begins to tune it.
fn to_tune(config: &TokenFormerConfig) -> (TokenFormer<B>, TokenFormer<B>) {
    let base = trained(&small());
    let fresh = config.build::<B>(11, &Default::default()).unwrap();
    let first = config.grow(&small(), weights(&base), &weights(&fresh));
    let model = loaded(config, first.unwrap());
    (base, model)
}

#[test]
fn tuning_trains_the_added_pairs_alone() {
    let config = TokenFormerConfig {
        added: Some(ADDED),
        ..small()
    };
    let (base, model) = to_tune(&config);
    // Sums with more zeros have another order.
    let error = difference(&model, &base);
    assert!(error < 1e-5, "zero keys keep the function: {error}");
    let list = params::list::<B, _>(&model);
    let trainable = list.iter().filter(|info| info.trainable);
    assert!(trainable.clone().all(|info| info.name.contains(".added.")));
    // 2 layers with 4 and 1 sets of keys and values.
    assert_eq!(trainable.count(), 2 * 5 * 2);
    let cost = config.cost(11);
    assert_eq!(cost.params.total(), 2 * 2 * 24 * (4 * 5 + 7));
    assert_eq!(
        cost.forward_flops - small().cost(11).forward_flops,
        2 * 4 * 24 * (4 * 5 + 7)
    );

    // The pairs of both tasks beside the base.
    let other = TokenFormerConfig {
        added: Some(Added { attn: 2, ffn: 3 }),
        ..small()
    };
    let first = other
        .grow(&small(), weights(&base), &weights(&trained(&other)))
        .unwrap();
    let task = retrained(model.clone(), 2);
    let (both, all) = merge((&config, &weights(&task)), (&other, &first), 1.0).unwrap();
    assert_eq!(both.added, Some(Added { attn: 7, ffn: 10 }));
    let keys = &all["block.layers.1.feed_forward.branch.ffn.added.keys"];
    assert_eq!(keys.shape.to_vec(), [10, 24]);
    // The keys of the other task are not zero, because `trained` drew them.
    assert!(difference(&loaded(&both, all.clone()), &task) > 1e-3);
    let mut unused = all;
    for (name, value) in &mut unused {
        if name.ends_with(".added.keys") {
            let own = [(".attention.", 5), (".feed_forward.", 7)];
            let rows = own.iter().find(|(part, _)| name.contains(part)).unwrap().1;
            let numbers: Vec<f32> = value.iter().collect();
            let numbers = numbers.iter().enumerate();
            let kept = numbers.map(|(i, x)| if i < rows * 24 { *x } else { 0.0 });
            *value = TensorData::new(kept.collect::<Vec<f32>>(), value.shape.to_vec());
        }
    }
    let error = difference(&loaded(&both, unused), &task);
    assert!(
        error < 1e-5,
        "with zero keys, the other pairs do nothing: {error}"
    );

    // Tasks with different bases cannot be merged.
    let (_, stranger) = to_tune(&config);
    let task_weights = weights(&task);
    let mut of_stranger = weights(&stranger);
    let name = "block.layers.0.feed_forward.branch.ffn.keys";
    let other_keys = weights(&trained(&config))[name].clone();
    of_stranger.insert(name.to_owned(), other_keys);
    let error = merge((&config, &task_weights), (&config, &of_stranger), 1.0).unwrap_err();
    assert!(matches!(error, MergeError::OtherBase(_)), "{error}");

    // Two tasks beside one base.
    let tasks = [2, 3].map(|seed| retrained(model.clone(), seed));
    let sets = tasks.each_ref().map(|task| added(&weights(task)));
    for (task, set) in tasks.iter().zip(sets) {
        assert_eq!(set.len(), 20);
        let switched = params::import_some(model.clone(), set).unwrap();
        assert_eq!(difference(&switched, task), 0.0);
        assert!(difference(task, &base) > 1e-3);
        let (absorbed, all) = config.absorb(weights(task));
        assert_eq!((absorbed.n_attn(), absorbed.added), (18, None));
        let error = difference(&loaded(&absorbed, all), task);
        assert!(error < 1e-5, "{error}");
    }
}

/// Hu et al., "LoRA" (2021).
#[test]
fn lora_trains_the_corrections_alone() {
    let config = TokenFormerConfig {
        lora: Some(3),
        ..small()
    };
    let (base, model) = to_tune(&config);
    assert_eq!(difference(&model, &base), 0.0, "B = 0 keeps the function");
    let list = params::list::<B, _>(&model);
    let trainable = list.iter().filter(|info| info.trainable);
    assert!(trainable.clone().all(|info| info.name.contains(".lora.")));
    assert_eq!(trainable.count(), 2 * 5 * 4);
    let cost = config.cost(11);
    let (attn, ffn) = (config.n_attn() + 24, config.n_ffn() + 24);
    assert_eq!(cost.params.total(), 2 * 2 * 3 * (4 * attn + ffn));

    let task = retrained(model, 2);
    assert!(difference(&task, &base) > 1e-3);
    let (absorbed, all) = config.absorb(weights(&task));
    assert_eq!(absorbed, small());
    let error = difference(&loaded(&absorbed, all), &task);
    assert!(error < 1e-5, "{error}");

    let other = |lora, added| TokenFormerConfig {
        lora,
        added,
        ..small()
    };
    assert!(other(Some(3), None).grows_from(&config).is_ok());
    for wrong in [other(Some(2), None), small()] {
        assert_eq!(wrong.grows_from(&config).unwrap_err().field, "model.lora");
    }
    assert_eq!(other(Some(0), None).validate().unwrap_err().field, "lora");
    assert_eq!(
        other(Some(1), Some(ADDED)).validate().unwrap_err().field,
        "lora"
    );
    let merged = merge((&config, &weights(&task)), (&config, &weights(&task)), 1.0);
    assert!(matches!(merged, Err(MergeError::Config(error)) if error.field == "lora"));
}

#[test]
fn the_number_of_added_pairs_stays() {
    let added = |attn| TokenFormerConfig {
        added: Some(Added { attn, ffn: 7 }),
        ..small()
    };
    assert!(added(5).grows_from(&small()).is_ok());
    assert!(added(5).grows_from(&added(5)).is_ok());
    for other in [added(6), small()] {
        assert_eq!(
            other.grows_from(&added(5)).unwrap_err().field,
            "model.added"
        );
    }
    assert_eq!(added(0).validate().unwrap_err().field, "added.attn");
}
