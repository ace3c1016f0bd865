//! Settings and models that connections refuse.

use super::*;

#[test]
fn skips_refuse_streams_without_a_partner_for_each_layer() {
    let layers = |count| Sites {
        count,
        per_layer: 1,
        around_layers: true,
        ..sites()
    };
    let field = |config: &SkipsConfig, count| {
        let refused = config.validate(&layers(count)).err();
        refused.map(|error| error.field)
    };
    let unet = SkipsConfig::default();
    let found = [1, 2, 3, 4].map(|count| field(&unet, count).is_some());
    assert_eq!(found, [true, false, true, false]);
    assert_eq!(field(&unet, 3).as_deref(), Some("unet"));
    let backout = |backout| SkipsConfig {
        unet: None,
        backout,
        ..SkipsConfig::default()
    };
    let middle = backout(Some(Backout::Middle));
    let found = [1, 2, 3, 4].map(|count| field(&middle, count).is_some());
    assert_eq!(found, [true, true, false, false]);
    let eighth = backout(Some(Backout::Layer(8)));
    assert_eq!(field(&eighth, 12), None);
    assert_eq!(field(&eighth, 9).as_deref(), Some("backout"));
    assert_eq!(field(&backout(None), 4).as_deref(), Some("Skips"));
    let infinite = SkipsConfig {
        unet_start: Some(f64::INFINITY),
        ..unet
    };
    assert_eq!(field(&infinite, 4).as_deref(), Some("unet_start"));
}

#[test]
fn speedruns_refuse_what_they_do_not_fit_and_name_the_remedy() {
    let good = narrow_speedrun();
    let error = |config: &SpeedrunConfig, on: Sites| config.validate(&on).unwrap_err().to_string();
    good.validate(&sites()).unwrap();
    let nothing = SpeedrunConfig {
        smear: None,
        mix: None,
        values: None,
        backout: None,
        ..good.clone()
    };
    let wide = SpeedrunConfig {
        smear: Some(SmearConfig::default()),
        ..good.clone()
    };
    let only_smear = SpeedrunConfig {
        smear: good.smear.clone(),
        ..nothing.clone()
    };
    let unet = SpeedrunConfig {
        unet: Some(SkipWeight::Raw),
        ..good.clone()
    };
    let images = Sites {
        ids: None,
        ..sites()
    };
    let layers = Sites {
        around_layers: true,
        ..sites()
    };
    let recurrent = Sites {
        recurrent: true,
        ..sites()
    };
    for (config, on, parts) in [
        (&nothing, sites(), ["Speedrun", "leave the connection out"]),
        (&wide, sites(), ["smear.channels", "smear: (channels: 4)"]),
        (&only_smear, images, ["smear", "`smear: None`"]),
        (&good, images, ["values", "`values: None`"]),
        (&unet, sites(), ["unet", "an even number"]),
        (
            &good,
            Sites::sublayers(8, 2, 2),
            ["backout", "`backout: None`"],
        ),
        (&good, layers, ["Speedrun", "PerSublayer"]),
        (&good, recurrent, ["Speedrun", "recurrence"]),
    ] {
        let error = error(config, on);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn speedruns_continue_from_other_initial_values_but_not_from_other_tricks() {
    let this = narrow_speedrun();
    let other = |change: fn(&mut SpeedrunConfig)| {
        let mut before = narrow_speedrun();
        change(&mut before);
        this.continues(&before)
    };
    assert!(other(|it| it.mix = Some(InitialMixStart::Plain)));
    assert!(other(|it| it.backout_start = 0.5));
    assert!(other(|it| it.smear.as_mut().unwrap().start = 0.5));
    assert!(!other(|it| it.smear.as_mut().unwrap().channels = 3));
    assert!(!other(|it| it.smear = None));
    assert!(!other(|it| it.mix = None));
    assert!(!other(|it| it.values = None));
    assert!(!other(|it| it.unet = Some(SkipWeight::Raw)));
    assert!(!other(|it| it.backout = Some(Backout::Layer(0))));
}

#[test]
fn connections_in_attention_refuse_what_they_do_not_fit() {
    let size = AttentionSize {
        without_values: true,
        ..AttentionSize::of_heads(2, 4)
    };
    let good = Sites {
        attention: Some(size),
        ..sites()
    };
    let bad = [
        Sites {
            around_layers: true,
            ..good
        },
        Sites {
            recurrent: true,
            ..good
        },
        Sites {
            mixed: true,
            ..good
        },
        Sites {
            attention: None,
            ..good
        },
    ];
    let gated = ValueGatedConfig::default();
    let (embedding, shared) = (narrow_embedding(), ValueSharedConfig::default());
    let field = |result: Result<(), ConfigError>| result.err().map(|error| error.field);
    let refused = |on: &Sites| {
        [
            field(gated.validate(on)),
            field(embedding.validate(on)),
            field(shared.validate(on)),
            field(LimeConfig::default().validate(on)),
        ]
    };
    assert_eq!(refused(&good), [const { None }; 4]);
    let names = ["ValueGated", "ValueEmbedding", "ValueShared", "Lime"];
    for on in bad {
        assert_eq!(refused(&on), names.map(|name| Some(name.into())));
    }
    let images = Sites { ids: None, ..good };
    assert_eq!(
        field(embedding.validate(&images)),
        Some("ValueEmbedding".into())
    );
    let projected = Sites {
        attention: Some(AttentionSize::of_heads(2, 4)),
        ..good
    };
    assert_eq!(
        field(shared.validate(&projected)),
        Some("ValueShared".into())
    );
    let still = ValueGatedConfig {
        start: 0.0,
        ..ValueGatedConfig::default()
    };
    assert_eq!(field(still.validate(&good)), Some("start".into()));
    // The stream has three layers, and tables must be counted 0, 1, … in the order of their first layers.
    for tables in [
        vec![Some(0)],
        vec![None, None, None],
        vec![Some(1), Some(0), None],
        vec![Some(0), None, Some(2)],
    ] {
        let embedding = ValueEmbeddingConfig {
            tables: ValueTables::Layers(tables),
            ..narrow_embedding()
        };
        assert_eq!(field(embedding.validate(&good)), Some("tables".into()));
    }
    for (gate, name) in [
        (
            TableGate::Channels {
                count: 9,
                range: 3.0,
            },
            "gate.count",
        ),
        (
            TableGate::Channels {
                count: 0,
                range: 3.0,
            },
            "gate.count",
        ),
        (
            TableGate::Both {
                count: 4,
                range: 0.0,
            },
            "gate.range",
        ),
    ] {
        let embedding = ValueEmbeddingConfig {
            gate,
            ..ValueEmbeddingConfig::default()
        };
        assert_eq!(field(embedding.validate(&good)), Some(name.into()));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_field() {
    let good = sites();
    let around = Sites {
        around_layers: true,
        per_layer: 1,
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
    // Not finite in 32 bits.
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
    let of_n = |n, residual| MhcConfig {
        n,
        residual,
        ..MhcConfig::default()
    };
    for (n, residual) in [
        (6, MhcResidual::Permutations),
        (64, MhcResidual::Permutations),
        (3, MhcResidual::Kronecker(vec![2, 2])),
        (6, MhcResidual::Kronecker(vec![6])),
        (4, MhcResidual::Kronecker(vec![1, 2, 2])),
        (4, MhcResidual::Kronecker(vec![])),
        (2, MhcResidual::Chosen(vec![])),
        (2, MhcResidual::Chosen(vec![vec![0, 1]])),
        (2, MhcResidual::Chosen(vec![vec![0, 1], vec![0, 1]])),
        (2, MhcResidual::Chosen(vec![vec![0, 1], vec![1, 1]])),
        (3, MhcResidual::Chosen(vec![vec![0, 1], vec![1, 0]])),
    ] {
        let refused = of_n(n, residual).validate(&good);
        assert_eq!(field(refused), "residual");
    }
    let six = of_n(6, MhcResidual::Permutations).validate(&good);
    let problem = six.unwrap_err().problem;
    assert!(problem.contains("6!") && problem.contains("Kronecker([2, 3])"));
    assert!(of_n(5, MhcResidual::Permutations).validate(&good).is_ok());
    let code = MhcConfig {
        form: MhcForm::Code,
        ..krom()
    };
    assert_eq!(field(code.validate(&good)), "form");
    let transposed = MhcConfig {
        transposed: true,
        ..of_n(2, MhcResidual::Identity)
    };
    assert_eq!(field(transposed.validate(&good)), "transposed");
    let no_identity = MhcConfig {
        start: MhcStart::OneStream,
        ..of_n(3, MhcResidual::Chosen(vec![vec![1, 2, 0], vec![2, 0, 1]]))
    };
    assert_eq!(field(no_identity.validate(&good)), "start");
    for m in [0, 3, 65] {
        let frac = FracConfig {
            m,
            ..FracConfig::default()
        };
        assert_eq!(field(frac.validate(&good)), "m");
    }
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
    let placement = NormPlacementConfig::default();
    assert_eq!(field(placement.validate(&around)), "NormPlacement");
    let siamese = SiameseConfig::default();
    assert_eq!(field(siamese.validate(&around)), "Siamese");
    assert_eq!(field(DeltaConfig::default().validate(&around)), "Delta");
    let mix = |p| placed(Placement::Mix { post_layers: p });
    assert!(mix(Some(3)).validate(&good).is_ok());
    assert_eq!(field(mix(Some(4)).validate(&good)), "placement.post_layers");
    let norm = NormDesign::Rms {
        scale: RmsScale::Scale,
        eps: 0.0,
    };
    let siamese = SiameseConfig { norm, ..siamese };
    assert_eq!(field(siamese.validate(&good)), "norm.eps");
    for (channels, kernel, k_eps, wrong) in [
        (0, 4, 1e-5, "channels"),
        (65, 4, 1e-5, "channels"),
        (4, 0, 1e-5, "kernel"),
        // The square of ε is 0 in 32 bits.
        (4, 4, 1e-30, "k_eps"),
        (4, 4, -1e-5, "k_eps"),
        (4, 4, f64::NAN, "k_eps"),
    ] {
        let delta = DeltaConfig {
            channels,
            kernel,
            k_eps,
            ..DeltaConfig::default()
        };
        assert_eq!(field(delta.validate(&good)), wrong);
    }
    let mudd = MuddConfig::default();
    assert!(mudd.validate(&good).is_ok());
    for place in [&around, &recurrent] {
        assert_eq!(field(mudd.validate(place)), "Mudd");
    }
    // In nGPT, q, k and v read one input, so only `ways: One, own_norms: false` is possible.
    let mut ngpt = good;
    ngpt.attention = good
        .attention
        .map(|attention| residual_zoo_core::AttentionSize {
            three_inputs: false,
            ..attention
        });
    assert_eq!(field(mudd.validate(&ngpt)), "Mudd");
    let one = |own_norms| MuddConfig {
        ways: MuddWays::One,
        own_norms,
        ..MuddConfig::default()
    };
    assert_eq!(field(one(true).validate(&ngpt)), "Mudd");
    assert!(one(false).validate(&ngpt).is_ok());
    let without = Sites {
        attention: None,
        ..good
    };
    assert_eq!(field(one(false).validate(&without)), "Mudd");
    for letters in ["", "x", "qkvv"] {
        let mudd = MuddConfig {
            ways: MuddWays::Each(letters.into()),
            ..MuddConfig::default()
        };
        assert_eq!(field(mudd.validate(&good)), "ways");
    }
    for multiple in [0, 1 << 24] {
        let rounded = MuddConfig {
            hidden_multiple: Some(multiple),
            ..MuddConfig::default()
        };
        assert_eq!(field(rounded.validate(&good)), "hidden_multiple");
    }
    let hybrid = HybridNormConfig::default();
    for place in [&around, &mixed, &without] {
        assert_eq!(field(hybrid.validate(place)), "HybridNorm");
    }
    assert!(hybrid.validate(&recurrent).is_ok());
    let star = HybridNormConfig {
        first_pre: true,
        ..HybridNormConfig::default()
    };
    assert!(star.validate(&good).is_ok());
    assert_eq!(field(star.validate(&recurrent)), "first_pre");
    // 0 and infinite in 32 bits.
    for norm_eps in [1e-50, 1e50] {
        let tree = TreeConfig {
            norm_eps,
            ..TreeConfig::default()
        };
        assert_eq!(field(tree.validate(&good)), "norm_eps");
    }
}
