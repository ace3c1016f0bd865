use burn::backend::Flex;
use residual_zoo_core::params::{self, Role};
use residual_zoo_core::{Design, Sites};

use crate::*;

type B = Flex;

/// A stream of 3 layers with 2 sublayers each.
fn sites() -> Sites {
    Sites::sublayers(8, 3, 2)
}

/// The roles of the parameters of connection `i`, by name.
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
        attention: true,
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
fn starts_are_those_of_the_papers() {
    let start = |on: &Sites| {
        let device = Default::default();
        let scaled = LayerScaleConfig::default().connection::<B>(on, 0, &device);
        params::export::<B, _>(&scaled)["a"]
            .iter::<f64>()
            .next()
            .unwrap() as f32
    };
    for (layers, expected) in [(12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6)] {
        assert_eq!(start(&Sites::sublayers(8, layers, 2)), expected as f32);
    }
    // DeepNet, section 4.3: a decoder of L = 8 layers has α = 16^¼ = 2 and β = 64^-¼.
    let on = Sites::sublayers(8, 8, 2);
    let frame = DeepNormConfig::default().frame(on.count);
    assert!(!frame.pre_norm && !frame.final_norm && !frame.by_depth);
    for factor in [frame.inner, frame.output] {
        assert!((factor - 64f64.powf(-0.25)).abs() < 1e-12);
    }
    // a = 0 or a small a replaces GPT-2's 1/√(2L).
    for frame in [
        SkipInitConfig::default().frame(on.count),
        ReZeroConfig::default().frame(on.count),
        LayerScaleConfig::default().frame(on.count),
        // Nothing is added to the stream.
        DepthLstmConfig::default().frame(on.count),
        DepthLstmCellConfig::default().frame(on.count),
    ] {
        assert!(!frame.by_depth);
    }
    assert_eq!(HyperConfig::default().frame(on.count).output, 0.5);
    let mix = InitialMixConfig {
        start: InitialMixStart::Nanochat,
    };
    let r_and_m = |i| {
        let mix = mix.connection::<B>(&Sites::sublayers(8, 3, 1), i, &Default::default());
        let values = params::export::<B, _>(&mix).into_values();
        values
            .map(|x| x.iter::<f32>().next().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(r_and_m(0), [0.20, 1.15]);
    assert_eq!(r_and_m(2), [0.05, 1.05]);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_field() {
    let good = sites();
    let around = Sites {
        around_layers: true,
        per_layer: 1,
        attention: true,
        count: 3,
        ..good
    };
    let recurrent = Sites {
        recurrent: true,
        ..good
    };
    let mixed = Sites {
        mixed: true,
        ..good
    };
    let field = |result: Result<(), residual_zoo_core::ConfigError>| result.unwrap_err().field;
    // Finite, but not in 32 bits.
    for start in [1e39, -1e300, f64::NAN] {
        let skip = SkipInitConfig { start };
        let scale = LayerScaleConfig { start: Some(start) };
        let highway = HighwayConfig { start };
        for refused in [
            skip.validate(&good),
            scale.validate(&good),
            highway.validate(&good),
        ] {
            assert_eq!(field(refused), "start");
        }
    }
    assert_eq!(field(ReZeroConfig::default().validate(&around)), "ReZero");
    assert_eq!(
        field(DeepNormConfig::default().validate(&around)),
        "DeepNorm"
    );
    assert_eq!(
        field(DepthLstmConfig::default().validate(&around)),
        "DepthLstm"
    );
    assert_eq!(
        field(SelfDependencyConfig::default().validate(&around)),
        "SelfDependency"
    );
    let value = ValueResidualConfig::default();
    assert_eq!(field(value.validate(&around)), "ValueResidual");
    assert_eq!(field(value.validate(&recurrent)), "ValueResidual");
    assert_eq!(field(value.validate(&mixed)), "ValueResidual");
    assert_eq!(field(TreeConfig::default().validate(&around)), "Tree");
    assert!(TreeConfig::default().validate(&good).is_ok());
    let alone = Sites { count: 1, ..around };
    assert_eq!(
        field(IterativeConfig::default().validate(&alone)),
        "Iterative"
    );
    let hyper = |n| HyperConfig {
        n,
        ..HyperConfig::default()
    };
    assert_eq!(field(hyper(0).validate(&good)), "n");
    assert_eq!(field(hyper(65).validate(&good)), "n");
    let mhc = MhcConfig {
        n: 1,
        ..MhcConfig::default()
    };
    assert_eq!(field(mhc.validate(&good)), "n");
    let endless = MhcConfig {
        sinkhorn: 0,
        ..MhcConfig::default()
    };
    assert_eq!(field(endless.validate(&good)), "sinkhorn");
    let dense = DenseConfig {
        dilation: 0,
        period: 1,
    };
    assert_eq!(field(dense.validate(&good)), "dilation");
    let attention = AttentionResidualConfig {
        block: 0,
        ..AttentionResidualConfig::default()
    };
    assert_eq!(field(attention.validate(&good)), "block");
    let start = SkipInitConfig { start: f64::NAN };
    assert_eq!(field(start.validate(&good)), "start");
    // Neither 0 nor infinite in 32 bits.
    for norm_eps in [1e-50, 1e50] {
        let tree = TreeConfig {
            norm_eps,
            ..TreeConfig::default()
        };
        assert_eq!(field(tree.validate(&good)), "norm_eps");
    }
}
