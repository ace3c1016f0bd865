use burn::backend::Flex;
use residual_zoo_core::params::{self, Role};
use residual_zoo_core::{
    AttentionSize, ConfigError, Design, NormDesign, NormParams, RmsScale, Sites,
};

use crate::*;

mod refused;
mod starts;

type B = Flex;

/// Returns the sites of a stream with 3 layers of 2 sublayers each.
fn sites() -> Sites {
    Sites::sublayers(8, 3, 2)
}

/// Returns the name and role of each parameter of connection `i`.
fn roles<D: Design>(design: &D, i: usize) -> Vec<(String, Role)> {
    let device = <B as burn::tensor::backend::BackendTypes>::Device::default();
    let list = params::list::<B, _>(&design.connection::<B>(&sites(), i, &device));
    list.into_iter().map(|p| (p.name, p.role)).collect()
}

fn decayed<D: Design>(design: &D, i: usize) -> Vec<String> {
    let roles = roles(design, i).into_iter();
    roles
        .filter(|(_, role)| *role == Role::Weight)
        .map(|(name, _)| name)
        .collect()
}

fn placed(placement: Placement) -> NormPlacementConfig {
    NormPlacementConfig {
        placement,
        ..NormPlacementConfig::default()
    }
}

/// Returns a config whose gate fits a stream of width 8.
fn narrow_embedding() -> ValueEmbeddingConfig {
    ValueEmbeddingConfig {
        gate: TableGate::Channels {
            count: 4,
            range: 3.0,
        },
        ..ValueEmbeddingConfig::default()
    }
}

/// Returns nanochat's tricks for a stream of width 8.
fn narrow_speedrun() -> SpeedrunConfig {
    SpeedrunConfig {
        smear: Some(SmearConfig {
            channels: 4,
            ..SmearConfig::default()
        }),
        values: Some(narrow_embedding()),
        ..SpeedrunConfig::default()
    }
}

fn krom() -> MhcConfig {
    MhcConfig {
        residual: MhcResidual::Kronecker(vec![2, 2]),
        ..MhcConfig::default()
    }
}

#[test]
fn only_maps_decay() {
    let hyper = HyperConfig::default();
    assert_eq!(decayed(&hyper, 1), ["dynamic.w_alpha", "dynamic.w_beta"]);
    assert_eq!(decayed(&MhcConfig::default(), 1), ["read.phi"]);
    assert_eq!(decayed(&HighwayConfig::default(), 1), ["gate.weight"]);
    assert_eq!(
        decayed(&SelfDependencyConfig::default(), 1),
        ["gate.weight", "value.weight"]
    );
    assert_eq!(
        decayed(&DepthLstmConfig::default(), 1),
        ["gates.map.weight", "fc.weight", "proj.weight"]
    );
    let tree = decayed(&TreeConfig::default(), 1);
    assert_eq!(tree, ["node.fc.weight", "node.proj.weight"]);
    let none: [&str; 0] = [];
    assert_eq!(decayed(&SkipInitConfig::default(), 1), none);
    assert_eq!(decayed(&LayerScaleConfig::default(), 1), none);
    assert_eq!(decayed(&InitialMixConfig::default(), 1), none);
    assert_eq!(decayed(&DeepNormConfig::default(), 1), none);
    assert_eq!(decayed(&DenseConfig::default(), 1), none);
    assert_eq!(decayed(&AttentionResidualConfig::default(), 1), none);
    assert_eq!(decayed(&ValueResidualConfig::default(), 2), none);
    let mudd = decayed(&MuddConfig::default(), 1);
    assert_eq!(mudd, ["mixtures.generator.w1", "mixtures.generator.w2"]);
    assert_eq!(decayed(&MuddConfig::default(), 2), none);
    assert_eq!(decayed(&HybridNormConfig::default(), 0), none);
    assert_eq!(decayed(&HybridNormConfig::default(), 1), none);
    assert_eq!(decayed(&NormPlacementConfig::default(), 1), none);
    assert_eq!(decayed(&SiameseConfig::default(), 1), none);
    let delta = DeltaConfig {
        channels: 4,
        embedding_conv: true,
        ..DeltaConfig::default()
    };
    let maps = ["beta.weight", "value.weight"];
    let first = ["beta.weight", "value.weight", "expand", "compress.conv"];
    let last = ["beta.weight", "value.weight", "last.conv"];
    assert_eq!(decayed(&delta, 0), first);
    assert_eq!(decayed(&delta, 1), maps);
    assert_eq!(decayed(&delta, 5), last);
    let frac = decayed(&FracConfig::default(), 1);
    assert_eq!(frac, ["dynamic.w_alpha", "dynamic.w_beta"]);
    assert_eq!(decayed(&krom(), 1), ["read.phi"]);
    assert_eq!(decayed(&SkipsConfig::default(), 5), none);
    assert_eq!(decayed(&ValueGatedConfig::default(), 2), ["gate.weight"]);
    let embedding = decayed(&narrow_embedding(), 4);
    assert_eq!(embedding, ["gate"], "a table does not decay");
    assert_eq!(decayed(&narrow_speedrun(), 0), ["values.gate"]);
    assert_eq!(decayed(&narrow_speedrun(), 1), none);
    assert_eq!(decayed(&ValueSharedConfig::default(), 2), none);
    assert_eq!(decayed(&LimeConfig::default(), 2), none);
}

#[test]
fn connections_have_the_published_numbers_of_parameters() {
    let count = |config: MhcConfig| {
        let on = Sites::sublayers(768, 12, 2);
        config.cost(&on).params.total()
    };
    let lite = MhcConfig {
        residual: MhcResidual::Permutations,
        ..MhcConfig::default()
    };
    assert_eq!(count(krom()), 958_824); // 959K
    assert_eq!(count(lite), 2_433_864); // 2,433K
    assert_eq!(count(MhcConfig::default()), 1_843_848); // 1,844K
    let frac = |dynamic| {
        let on = Sites::sublayers(2048, 16, 2);
        let config = FracConfig {
            dynamic,
            ..FracConfig::default()
        };
        config.cost(&on).params.total()
    };
    assert_eq!([false, true].map(frac), [1152, 165_056]);
}

#[test]
fn the_reads_of_an_attention_residual_are_counted_one_by_one() {
    for count in 1..20 {
        for block in 1..8 {
            let on = Sites { count, ..sites() };
            let config = AttentionResidualConfig {
                block,
                ..AttentionResidualConfig::default()
            };
            // x_0, the sums of finished blocks, and the sum of the current block, if it has begun.
            let sources = |i: usize| 1 + i / block + usize::from(!i.is_multiple_of(block));
            let reads: usize = (1..=count).map(sources).sum();
            let cost = config.cost(&on);
            assert_eq!(cost.forward_flops, reads * on.width * 4, "{count}, {block}");
            assert_eq!(cost.params.total(), 2 * on.width * count);
        }
    }
}

#[test]
fn a_dense_former_has_half_a_square_of_weights() {
    let layers = |count| Sites {
        count,
        per_layer: 1,
        around_layers: true,
        ..sites()
    };
    for l in [1, 2, 7, 48] {
        let weights = DenseConfig::default().cost(&layers(l)).params.total();
        assert_eq!(weights, l * (l + 3) / 2);
    }
    // "4x5" over 12 layers: after layers 5 and 10, every fourth output.
    let sparse = DenseConfig {
        dilation: 4,
        period: 5,
    };
    assert_eq!(sparse.cost(&layers(12)).params.total(), 2 + 3);
}

#[test]
fn mudd_adds_as_many_parameters_as_the_paper_counts() {
    // After layer l: D K + K C (l + 2) + C (l + 2), K = C (l + 2).
    let mudd = MuddConfig {
        own_norms: false,
        wide_last: false,
        ..MuddConfig::default()
    };
    for (d, layers) in [(8, 1), (8, 5), (64, 12)] {
        let on = Sites::sublayers(d, layers, 2);
        let total = |mudd: &MuddConfig| mudd.cost(&on).params.total();
        let weights = |l| if l + 1 == layers { l + 2 } else { 4 * (l + 2) };
        let of = |k: &dyn Fn(usize) -> usize| -> usize {
            let behind = |l| k(l) * (d + weights(l)) + weights(l);
            (0..layers).map(behind).sum()
        };
        assert_eq!(total(&mudd), of(&weights));
        let wide = MuddConfig {
            wide_last: true,
            hidden_multiple: Some(8),
            ..mudd.clone()
        };
        let rounded = |l| {
            let k = if l + 1 == layers {
                4 * (l + 2)
            } else {
                weights(l)
            };
            8 * (k / 8 + 1)
        };
        assert_eq!(total(&wide), of(&rounded));
        let fixed = MuddConfig {
            dynamic: false,
            ..mudd.clone()
        };
        assert_eq!(total(&fixed), of(&|_| 0));
        // `own` has LN_q, LN_k and LN_v in all layers but the first. `pre_post` has norms of the sources, before each
        // W_1, and after each mixture of r.
        let own = MuddConfig {
            own_norms: true,
            ..mudd.clone()
        };
        let norms = 2 * d * (2 * layers + 2 * (layers - 1));
        assert_eq!(total(&own), of(&weights) + norms);
        let pre_post = MuddConfig {
            pre_post: Some(PrePost::Code),
            ..mudd.clone()
        };
        assert_eq!(total(&pre_post), of(&weights) + d * (1 + 3 * layers));
    }
}

#[test]
fn hybrid_norm_replaces_a_norm_by_three_of_heads() {
    // With heads of width Dh and RMS norms, a layer has 3 Dh + D norm parameters. A pre-norm layer has 2 D.
    let (d, layers, head) = (48, 3, 12);
    let mut on = Sites::sublayers(d, layers, 2);
    on.attention = Some(residual_zoo_core::AttentionSize::of_heads(4, head));
    let total = |first_pre, norm| {
        let hybrid = HybridNormConfig {
            first_pre,
            norm,
            ..HybridNormConfig::default()
        };
        hybrid.cost(&on).params.total()
    };
    let rms = NormDesign::Rms {
        scale: RmsScale::Scale,
        eps: 1e-6,
    };
    assert_eq!(total(false, rms), layers * (3 * head + d));
    assert_eq!(total(true, rms), layers * (3 * head + d) + d);
    let layer = NormDesign::default();
    assert_eq!(total(false, layer), layers * (3 * head + 2 * d));
}

#[test]
fn mix_ln_norms_the_sums_of_a_quarter_of_the_layers() {
    let mix = placed(Placement::Mix { post_layers: None });
    let of_sum = |layers: usize| {
        let on = Sites::sublayers(8, layers, 2);
        let names = (0..on.count).map(|i| {
            let connection = mix.connection::<B>(&on, i, &Default::default());
            params::list::<B, _>(&connection)[0].name.clone()
        });
        names.filter(|name| name == "norms.behind.gamma").count()
    };
    assert_eq!([3, 4, 7, 12].map(of_sum), [0, 2, 2, 6]);
}

#[test]
fn a_delta_of_the_paper_has_its_parameters() {
    // Per residual: D + 1 for β, D m for v. Per compress: D m + m over channels, D m K + m over positions.
    let (on, d, m, k) = (sites(), 8, 4, 3);
    let total = |config: &DeltaConfig| config.cost(&on).params.total();
    let norm = NormDesign::Layer {
        params: NormParams::None,
        eps: 1e-5,
    };
    let paper = DeltaConfig {
        form: DeltaForm::Paper,
        norm,
        ..DeltaConfig::default()
    };
    assert_eq!(total(&paper), 6 * (2 * d + 1));
    let channels = DeltaConfig {
        channels: m,
        per_layer: false,
        ..paper
    };
    let residuals = 6 * (d + 1 + d * m);
    assert_eq!(total(&channels), residuals + 7 * (d * m + m));
    let positions = DeltaConfig {
        compress: Compress::Time,
        kernel: k,
        embedding_conv: true,
        per_layer: true,
        ..channels
    };
    let compress = 4 * (d * m * k + m);
    assert_eq!(total(&positions), residuals + compress + d * m * k);
}
