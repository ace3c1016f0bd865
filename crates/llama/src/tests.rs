use burn::backend::{Autodiff, Flex};
use burn::optim::GradientsParams;
use burn::tensor::{Distribution, Tensor};
use residual_zoo_core::{
    Activation, Architecture, Branch, Frame, ModelConfig as _, NormDesign, NormPlaces, Pairs,
    PlainModel, RmsScale, Rotary, RotaryScaling, Transfer as _, contract, params,
};

use crate::{Biases, Canon, CanonConfig, Gate, LlamaConfig, LlamaInit, Mlp, QkNorm, presets};

fn small() -> LlamaConfig {
    LlamaConfig {
        n_layer: 2,
        n_head: 6,
        n_kv_head: Some(2),
        width: 60,
        d_ff: Some(44),
        context: 64,
        ..LlamaConfig::default()
    }
}

fn check(config: LlamaConfig) {
    contract::check::<Autodiff<Flex>, _>(&PlainModel(config), &Default::default());
}

#[test]
fn norms_of_another_design_cannot_start_from_these_weights() {
    let of = |norm| LlamaConfig { norm, ..small() };
    let all = [RmsScale::Scale, RmsScale::OnePlus, RmsScale::None];
    for to in all {
        for from in all {
            let fits = of(to).grows_from(&of(from));
            assert_eq!(fits.is_ok(), to == from, "{to:?} {from:?}");
            if let Err(error) = fits {
                assert_eq!(error.field, "model.norm");
                assert!(error.problem.contains(&format!("set it to {from:?}")));
            }
        }
    }
}

#[test]
fn keeps_the_contract() {
    check(small());
}

#[test]
fn keeps_the_contract_as_gemma_with_canon_layers_and_gates() {
    check(LlamaConfig {
        head_dim: Some(12),
        norm: RmsScale::OnePlus,
        norm_places: NormPlaces::Both,
        activation: Activation::GeluTanh,
        attention_cap: Some(2.0),
        logit_cap: Some(3.0),
        windows: vec![Some(7), None],
        scaled_embedding: true,
        tied: true,
        gate: Some(Gate::PerHead),
        canon: Some(CanonConfig::default()),
        ..small()
    });
}

#[test]
fn keeps_the_contract_as_olmo_with_neighbours_as_pairs() {
    check(LlamaConfig {
        norm_places: NormPlaces::Behind,
        qk_norm: Some(QkNorm::All),
        rotary: Rotary {
            pairs: Pairs::Neighbours,
            share: 0.5,
            scaling: Some(RotaryScaling {
                factor: 4.0,
                low: 1.0,
                high: 4.0,
                original: 60,
            }),
            ..Rotary::default()
        },
        head_dim: Some(12),
        bias: Biases::Qkv,
        proj_bias: true,
        mlp_bias: true,
        gate: Some(Gate::PerCoordinate),
        canon: Some(CanonConfig {
            places: "BD".into(),
            kernel: 3,
            residual: false,
        }),
        ..small()
    });
}

#[test]
fn keeps_the_contract_with_norms_of_sums() {
    for norm_places in [NormPlaces::Sandwich, NormPlaces::Original] {
        check(LlamaConfig {
            norm_places,
            canon: Some(CanonConfig::default()),
            ..small()
        });
    }
}

#[test]
fn a_canon_layer_of_three_inputs_has_the_sum_of_their_gradients() {
    type B = Autodiff<Flex>;
    let (_alone, device) = (contract::alone(), Default::default());
    let canon = Canon::<B>::new(&CanonConfig::default(), 3, &device);
    let taps = params::list::<B, _>(&canon)[0].id;
    let gradient = |z: Tensor<B, 3>| {
        let y = canon.forward(z, None);
        let gradients = (y.clone() * y).sum().backward();
        let gradients = GradientsParams::from_grads(gradients, &canon);
        gradients.get::<Flex, 2>(taps).unwrap()
    };
    let input = |_| Tensor::random([2, 7, 3], Distribution::Normal(0.0, 1.0), &device);
    let z: [Tensor<B, 3>; 3] = [0, 1, 2].map(input);
    let [q, k, v] = z.clone().map(gradient);
    let together = gradient(Tensor::cat(z.into(), 2));
    let error: Vec<f32> = (together - (q + k + v))
        .abs()
        .max()
        .into_data()
        .iter()
        .collect();
    assert!(error[0] < 1e-4, "differs by {}", error[0]);
}

#[test]
fn a_norm_of_the_sum_is_the_norm_of_the_stream() {
    let device = Default::default();
    for (norm_places, norms) in [(NormPlaces::Sandwich, 2), (NormPlaces::Original, 1)] {
        let config = LlamaConfig {
            norm_places,
            ..small()
        };
        let frame = Frame::default();
        let mlp = Mlp::<Flex>::new(&config, &frame, &device);
        assert_eq!(
            norm_places.cost(design(), 60, true).params.total(),
            60 * norms
        );
        let x = Tensor::random([2, 3, 60], Distribution::Normal(0.0, 3.0), &device);
        let sum = mlp.residual(x.clone(), None);
        // With a factor of 1, the mean square of a normalised position is 1.
        let squares = (sum.clone() * sum.clone()).mean_dim(2) - 1.0;
        let largest: Vec<f64> = squares.abs().max().into_data().iter().collect();
        assert!(largest[0] < 1e-4, "{norm_places:?}: {}", largest[0]);
        let other = mlp.forward(x.clone(), None) + x;
        let difference: Vec<f64> = (sum - other).abs().max().into_data().iter().collect();
        assert!(difference[0] < 1e-5, "{norm_places:?}: {}", difference[0]);
    }
}

fn design() -> NormDesign {
    NormDesign::Rms {
        scale: RmsScale::Scale,
        eps: 1e-5,
    }
}

#[test]
fn keeps_the_contract_as_nanochat() {
    check(LlamaConfig {
        norm: RmsScale::None,
        activation: Activation::SquaredRelu,
        gated: false,
        qk_norm: Some(QkNorm::Heads),
        qk_norm_late: true,
        qk_scale: 1.2,
        logit_cap: Some(15.0),
        normed_embedding: true,
        bias: Biases::Qk,
        ..small()
    });
}

#[test]
fn presets_have_the_published_sizes() {
    let sizes = [
        6_738_415_616,
        13_015_864_320,
        8_030_261_248,
        1_235_814_400,
        3_212_749_824,
        494_032_768,
        1_543_714_304,
        7_615_616_512,
        596_049_920,
        1_720_574_976,
        4_022_468_096,
        8_190_735_360,
        1_484_916_736,
        7_298_617_344,
        13_716_198_400,
        2_614_341_888,
        9_241_705_984,
        560_988_160,
    ];
    assert_eq!(presets::all().count(), sizes.len());
    for (preset, size) in presets::all().zip(sizes) {
        preset.config.validate().unwrap();
        let params = preset.config.cost(preset.vocab).params;
        assert_eq!(params.total(), size, "{}", preset.name);
        assert_eq!(presets::named(preset.name), Some(preset));
    }
    assert_eq!(presets::named("llama"), None);
}

#[test]
fn invalid_fields_are_named() {
    let field = |config: LlamaConfig| config.validate().unwrap_err().to_string();
    let refuses = |config, expected: &str| {
        let error = field(config);
        assert!(error.contains(expected), "{error}");
    };
    let kv = |n| LlamaConfig {
        n_kv_head: Some(n),
        ..small()
    };
    refuses(
        kv(4),
        "`n_kv_head`: 4 does not divide `n_head` = 6; the next smaller divisor is 3",
    );
    refuses(kv(0), "`n_kv_head` is 0");
    let heads = LlamaConfig {
        n_head: 7,
        n_kv_head: None,
        ..small()
    };
    refuses(heads, "`n_head`: 7 does not divide `width` = 60");
    let windows = LlamaConfig {
        windows: vec![None, Some(0)],
        ..small()
    };
    refuses(windows, "`windows.1` is 0; it must be at least 1");
    let share = |share| LlamaConfig {
        rotary: Rotary {
            share,
            ..Rotary::default()
        },
        ..small()
    };
    refuses(
        share(0.31),
        "`rotary.share` is 0.31, so 3 of the 10 coordinates of a head would turn",
    );
    refuses(
        share(0.05),
        "`rotary.share` is 0.05, so none of the 10 coordinates of a head would turn; use at least 0.2",
    );
    refuses(share(1.5), "`rotary.share` is 1.5; it must be from 0 to 1");
    refuses(share(f64::NAN), "`rotary.share` is NaN");
    let late = LlamaConfig {
        qk_norm_late: true,
        ..small()
    };
    refuses(late, "`qk_norm_late` is true, which needs `qk_norm: Heads`");
    let canon = |places: &str| LlamaConfig {
        canon: Some(CanonConfig {
            places: places.into(),
            ..CanonConfig::default()
        }),
        ..small()
    };
    for places in ["", "AE", "ABA"] {
        refuses(canon(places), "`canon.places` is");
    }
    let kernel = LlamaConfig {
        canon: Some(CanonConfig {
            kernel: 1,
            ..CanonConfig::default()
        }),
        ..small()
    };
    refuses(kernel, "`canon.kernel` is 1; it must be at least 2");
    let cap = LlamaConfig {
        logit_cap: Some(0.0),
        ..small()
    };
    refuses(cap, "`logit_cap` is 0.0; it must be above 0");
    let tied = LlamaConfig {
        init: Some(LlamaInit::Nanochat),
        tied: true,
        ..small()
    };
    refuses(tied, "`init` has a token table that is too large");
    for init in [LlamaInit::Fixed(-1.0), LlamaInit::Huginn(0.0)] {
        let init = LlamaConfig {
            init: Some(init),
            ..small()
        };
        refuses(init, "`init`");
    }
}

/// Checks the standard deviation of every kind of matrix, and the bounds of uniform weights.
#[test]
fn initial_weights_are_those_of_the_projects() {
    let (width, d_ff, of_kv) = (192.0_f64, 512.0, 64.0);
    let narrow = |d_out: f64| (d_out / width).sqrt().min(1.0) / width.sqrt();
    let of_width = (2.0 / (5.0 * width)).sqrt();
    // Of a model of two layers.
    let of_depth = of_width / 2.0;
    let of_layers = of_width / 24.0_f64.sqrt();
    let even = width.sqrt().recip();
    // The standard deviations of q, k, the gate, fc, the projections, the token table and the unembedding.
    let expected = [
        (LlamaInit::Width, [of_width; 7]),
        (
            LlamaInit::Depth,
            [
                of_width, of_width, of_width, of_depth, of_depth, of_width, of_width,
            ],
        ),
        (LlamaInit::Fixed(0.02), [0.02; 7]),
        (
            LlamaInit::Nanochat,
            [even, even, 0.4 * even, 0.4 * even, 0.0, 0.8, 0.001],
        ),
        (
            LlamaInit::Nanochat2025,
            [
                narrow(width),
                narrow(of_kv),
                narrow(d_ff),
                narrow(d_ff),
                0.0,
                1.0,
                0.0,
            ],
        ),
        (
            LlamaInit::Huginn(12.0),
            [
                of_width, of_width, of_width, of_layers, of_layers, of_width, of_width,
            ],
        ),
    ];
    for (init, expected) in expected {
        let config = LlamaConfig {
            n_layer: 2,
            n_head: 6,
            n_kv_head: Some(2),
            width: 192,
            d_ff: Some(512),
            context: 64,
            init: Some(init),
            ..LlamaConfig::default()
        };
        let model = PlainModel(config).assemble::<Flex>(256.into(), &Default::default());
        let weights = params::export::<Flex, _>(&model);
        let names = [
            "q.weight",
            "k.weight",
            "gate.weight",
            "fc.weight",
            "proj.weight",
            "tokens.weight",
            "unembedding.weight",
        ];
        for (name, expected) in names.into_iter().zip(expected) {
            let mut found = weights
                .iter()
                .filter(|(key, _)| key.ends_with(name))
                .peekable();
            assert!(found.peek().is_some(), "{name} in {:?}", weights.keys());
            for (name, weights) in found {
                let weights: Vec<f64> = weights.iter().collect();
                let square: f64 = weights.iter().map(|w| w * w).sum();
                let std = (square / weights.len() as f64).sqrt();
                let off = (std - expected).abs();
                assert!(
                    off <= 0.03 * expected,
                    "{init:?}, {name}: {std} instead of {expected}"
                );
                let most = weights.iter().fold(0.0, |most: f64, w| most.max(w.abs()));
                let is_matrix = name.starts_with("block.");
                if init == LlamaInit::Nanochat && is_matrix {
                    assert!(most <= expected * 3.0_f64.sqrt() + 1e-6, "{name}: {most}");
                }
            }
        }
    }
}

#[test]
fn hashes_are_of_the_start_and_not_of_the_default() {
    let hashed = |width, init| {
        let config = LlamaConfig {
            width,
            init,
            ..small()
        };
        config.hashed().init
    };
    assert_eq!(hashed(48, Some(LlamaInit::Width)), None);
    assert_eq!(hashed(48, None), Some(LlamaInit::Depth));
    assert_eq!(hashed(48, Some(LlamaInit::Depth)), Some(LlamaInit::Depth));
    assert_eq!(hashed(768, None), None);
    assert_eq!(hashed(768, Some(LlamaInit::Width)), Some(LlamaInit::Width));
}

#[test]
fn initial_weights_shrink_with_depth_unless_the_connection_scales_branches() {
    let config = LlamaConfig {
        init: Some(LlamaInit::Depth),
        ..small()
    };
    let scale = |by_depth| {
        config.depth_scale(&Frame {
            by_depth,
            ..Frame::default()
        })
    };
    assert_eq!(scale(false), 1.0);
    assert_eq!(scale(true), 1.0 / (2.0 * config.n_layer as f64).sqrt());
}

#[test]
fn a_gated_feed_forward_network_has_as_many_parameters_as_one_of_four_widths() {
    let d_ff = |width, gated| {
        LlamaConfig {
            width,
            gated,
            d_ff: None,
            ..small()
        }
        .d_ff()
    };
    assert_eq!(d_ff(60, false), 240);
    assert_eq!(d_ff(60, true), 160);
    assert_eq!(d_ff(768, true), 2048);
}
