//! Connection settings, and a GPT-2 with each connection.

use residual_zoo_models::core::{Activation, NormDesign, NormParams, RmsScale};
use residual_zoo_models::runs::parse_ron;
use residual_zoo_models::streams::{
    AttentionResidualConfig, Backout, Compress, DeltaConfig, DeltaForm, DenseConfig,
    DepthLstmConfig, DepthLstmForm, FirstCell, FracConfig, FractionNorm, GateNorm,
    HybridNormConfig, HyperConfig, InitialMixConfig, IterativeConfig, LimeConfig, LimeStart,
    MhcConfig, MhcForm, MhcResidual, MhcStart, MuddConfig, MuddWays, NormPlace,
    NormPlacementConfig, Placement, PrePost, Psi, ReZeroConfig, SelfDependencyConfig,
    SiameseConfig, SiameseForm, SkipWeight, SkipsConfig, SmearConfig, SpeedrunConfig, TableGate,
    TreeConfig, ValueEmbeddingConfig, ValueGate, ValueGatedConfig, ValueResidualConfig,
    ValueResidualForm, ValueTables,
};
use residual_zoo_models::{ConnectionConfig, ModelConfig as Zoo};

use super::*;

/// Makes GPT-2s with every connection except LAuReL: one for each form below, or one with `Name()` around each
/// sublayer.
pub fn connections() -> Vec<(&'static str, Zoo)> {
    let lstm = |form, gate_norm, first_cell| DepthLstmConfig {
        form,
        gate_norm,
        first_cell,
        d_ff: Some(52),
        ..DepthLstmConfig::default()
    };
    let code_lstm = lstm(DepthLstmForm::Code, GateNorm::Joint, FirstCell::Zero);
    let paper_lstm = lstm(DepthLstmForm::Paper, GateNorm::Each, FirstCell::Embedding);
    let sublayers: Vec<(_, ConnectionConfig)> = vec![
        ("ReZero", ReZeroConfig::default().into()),
        ("ReZero with one a for a layer", shared_rezero().into()),
        ("x0 mix of sublayers", InitialMixConfig::default().into()),
        ("SDU", SelfDependencyConfig::default().into()),
        ("SDU, pre-norm", pre_norm_sdu().into()),
        ("depth-wise LSTM", paper_lstm.into()),
        ("depth-wise LSTM, code", code_lstm.into()),
        ("tree of sublayers", tree().into()),
        ("DenseFormer of sublayers", dense(2, 3).into()),
        ("hyper", hyper(3, true).into()),
        ("static hyper", hyper(2, false).into()),
        ("mHC", mhc(MhcForm::Paper).into()),
        ("mHC, code", mhc(MhcForm::Code).into()),
        (
            "attention residual",
            AttentionResidualConfig::default().into(),
        ),
        ("block attention residual", attention_residual(3).into()),
        ("value residual", ValueResidualConfig::default().into()),
        ("value residual, identity", identity().into()),
        ("iHC", mhc_with(3, MhcResidual::Identity).into()),
        ("mHC-lite", mhc_with(3, MhcResidual::Permutations).into()),
        ("mHC-lite of shifts", shifts().into()),
        ("KromHC", krom().into()),
        ("frac", FracConfig::default().into()),
        ("frac, layer norm", frac(6).into()),
        ("static frac", static_frac().into()),
        ("U-net skips of sublayers", SkipsConfig::default().into()),
        ("U-net skips of sublayers and backout", skips().into()),
        ("Peri-LN", peri().into()),
        (
            "norms behind branches",
            placed(Placement::PostBranch, NormDesign::default()).into(),
        ),
        (
            "LayerNorm Scaling",
            placed(Placement::Lns, rms(RmsScale::Scale)).into(),
        ),
        ("Mix-LN", mix_ln().into()),
        ("SiameseNorm", SiameseConfig::default().into()),
        ("SiameseNorm, paper", paper_siamese().into()),
        ("delta", DeltaConfig::default().into()),
        ("delta over channels", delta(Compress::Channel).into()),
        ("delta over positions", delta(Compress::Time).into()),
        ("delta, paper", paper_delta().into()),
        ("MUDD", mudd("qkvr", None).into()),
        ("MUDD, shared norms", shared_mudd().into()),
        ("MUDD, static", static_mudd().into()),
        ("MUDD, one mixture", one_mudd().into()),
        ("MUDD, one mixture and own norms", ddformer().into()),
        (
            "MUDD, PrePostDANorm",
            mudd("qkvr", Some(PrePost::Paper)).into(),
        ),
        (
            "MUDD, PrePostDANorm of the code",
            mudd("qkvr", Some(PrePost::Code)).into(),
        ),
        ("MUDD of v and r", mudd("rv", None).into()),
        ("MUDD of q and k", mudd("qk", Some(PrePost::Code)).into()),
        ("HybridNorm", HybridNormConfig::default().into()),
        ("HybridNorm*", hybrid_star().into()),
        ("gated value residual", ValueGatedConfig::default().into()),
        (
            "gated value residual, softmax and bias",
            softmax_gated().into(),
        ),
        ("value embedding", ValueEmbeddingConfig::default().into()),
        (
            "value embedding, gate reads both",
            both_gated(vec![Some(0), Some(1)]).into(),
        ),
        (
            "value embedding, one table",
            weighted(vec![Some(0), Some(0)]).into(),
        ),
        ("speedrun", speedrun().into()),
        ("LIMe", LimeConfig::default().into()),
        ("LIMe, plain start", plain_lime().into()),
    ];
    let layers: Vec<(_, ConnectionConfig)> = vec![
        ("x0 mix", InitialMixConfig::default().into()),
        ("tree", tree().into()),
        ("iterative aggregation", iterative().into()),
        ("DenseFormer", DenseConfig::default().into()),
        ("frac of layers", frac(3).into()),
        ("U-net skips", SkipsConfig::default().into()),
    ];
    let is = |name: &str, config| serde_json::to_value(config).unwrap().get(name).is_some();
    let others = ConnectionConfig::NAMES.iter().map(|(name, _)| *name);
    let others = others.filter(|name| {
        let mut listed = sublayers.iter().chain(&layers);
        *name != "Laurel" && !listed.any(|(_, config)| is(name, config))
    });
    let default = |name: &str| parse_ron(&format!("{name}()"), name.as_ref()).unwrap();
    let others: Vec<_> = others.map(|name| (name, default(name))).collect();
    let sublayers = sublayers
        .into_iter()
        .chain(others)
        .map(|(name, connection)| (name, gpt2().per_sublayer(connection)));
    let layers = layers
        .into_iter()
        .map(|(name, connection)| (name, gpt2().per_layer(connection)));
    sublayers.chain(layers).collect()
}

pub(super) fn shared_rezero() -> ReZeroConfig {
    ReZeroConfig {
        per_layer: true,
        ..ReZeroConfig::default()
    }
}

pub(super) fn pre_norm_sdu() -> SelfDependencyConfig {
    SelfDependencyConfig {
        norm: NormPlace::Pre,
        psi: Psi::Sigmoid,
        bias: false,
        ..SelfDependencyConfig::default()
    }
}

pub(super) fn tree() -> TreeConfig {
    TreeConfig {
        d_ff: Some(10),
        ..TreeConfig::default()
    }
}

pub(super) fn iterative() -> IterativeConfig {
    IterativeConfig {
        d_ff: Some(10),
        bias: false,
        ..IterativeConfig::default()
    }
}

pub(super) fn dense(dilation: usize, period: usize) -> DenseConfig {
    DenseConfig { dilation, period }
}

pub(super) fn hyper(n: usize, dynamic: bool) -> HyperConfig {
    HyperConfig {
        n,
        dynamic,
        ..HyperConfig::default()
    }
}

pub(super) fn mhc(form: MhcForm) -> MhcConfig {
    MhcConfig {
        form,
        n: 3,
        sinkhorn: 4,
        ..MhcConfig::default()
    }
}

pub(super) fn mhc_with(n: usize, residual: MhcResidual) -> MhcConfig {
    MhcConfig {
        n,
        residual,
        ..MhcConfig::default()
    }
}

/// Configures mHC-lite with cyclic shifts as its permutations, and with resᵀ H in place of res H.
pub(super) fn shifts() -> MhcConfig {
    let shift = |k: usize| (0..4).map(|s| (s + k) % 4).collect();
    MhcConfig {
        start: MhcStart::Identity(-3.0),
        transposed: true,
        ..mhc_with(4, MhcResidual::Chosen((0..4).map(shift).collect()))
    }
}

/// Configures KromHC with two factors, as in the authors' code.
pub(super) fn krom() -> MhcConfig {
    MhcConfig {
        start: MhcStart::OneStream,
        transposed: true,
        ..mhc_with(6, MhcResidual::Kronecker(vec![3, 2]))
    }
}

/// Configures frac-connections with layer norms.
pub(super) fn frac(m: usize) -> FracConfig {
    FracConfig {
        m,
        norm: FractionNorm::Layer,
        norm_eps: 1e-5,
        ..FracConfig::default()
    }
}

pub(super) fn static_frac() -> FracConfig {
    FracConfig {
        m: 3,
        dynamic: false,
        ..FracConfig::default()
    }
}

/// Configures U-net skips with sigmoid weights, and a backout.
pub(super) fn skips() -> SkipsConfig {
    SkipsConfig {
        unet: Some(SkipWeight::Sigmoid),
        backout: Some(Backout::Middle),
        ..SkipsConfig::default()
    }
}

/// Configures a backout of layer `b`, without U-net skips.
pub(super) fn backout(b: usize) -> SkipsConfig {
    SkipsConfig {
        unet: None,
        backout: Some(Backout::Layer(b)),
        ..SkipsConfig::default()
    }
}

/// Configures all speedrun tricks for two layers that share a value table.
pub(super) fn speedrun() -> SpeedrunConfig {
    SpeedrunConfig {
        smear: Some(SmearConfig {
            channels: 5,
            start: 0.7,
        }),
        values: Some(both_gated(vec![Some(0), Some(0)])),
        unet: Some(SkipWeight::Sigmoid),
        backout: Some(Backout::Layer(0)),
        ..SpeedrunConfig::default()
    }
}

/// Configures nanochat's tricks for a narrow model.
pub(super) fn nanochat_tricks() -> SpeedrunConfig {
    SpeedrunConfig {
        smear: Some(SmearConfig {
            channels: 5,
            start: 0.7,
        }),
        ..SpeedrunConfig::default()
    }
}

pub(super) fn attention_residual(block: usize) -> AttentionResidualConfig {
    AttentionResidualConfig {
        block,
        ..AttentionResidualConfig::default()
    }
}

pub(super) fn identity() -> ValueResidualConfig {
    ValueResidualConfig {
        form: ValueResidualForm::Identity,
    }
}

pub(super) fn rms(scale: RmsScale) -> NormDesign {
    NormDesign::Rms { scale, eps: 1e-6 }
}

pub(super) fn placed(placement: Placement, norm: NormDesign) -> NormPlacementConfig {
    NormPlacementConfig {
        placement,
        norm,
        ..NormPlacementConfig::default()
    }
}

pub(super) fn peri() -> NormPlacementConfig {
    NormPlacementConfig {
        embedding_norm: true,
        ..placed(Placement::Peri, NormDesign::default())
    }
}

pub(super) fn mix_ln() -> NormPlacementConfig {
    let placement = Placement::Mix {
        post_layers: Some(1),
    };
    placed(placement, NormDesign::default())
}

pub(super) fn paper_siamese() -> SiameseConfig {
    SiameseConfig {
        form: SiameseForm::Paper,
        input_norm: false,
        norm: rms(RmsScale::OnePlus),
        ..SiameseConfig::default()
    }
}

pub(super) fn delta(compress: Compress) -> DeltaConfig {
    DeltaConfig {
        channels: 3,
        compress,
        embedding_conv: compress == Compress::Time,
        norm: rms(RmsScale::Scale),
        ..DeltaConfig::default()
    }
}

pub(super) fn paper_delta() -> DeltaConfig {
    DeltaConfig {
        form: DeltaForm::Paper,
        channels: 2,
        per_layer: false,
        kernel: 3,
        norm: NormDesign::default(),
        ..delta(Compress::Time)
    }
}

/// Configures MUDD with a mixture for each input in `letters`: q, k, v or r. Adding one vector to all keys does not
/// change attention, so a shift in the norm of keys would get no gradient. The norms therefore have a scale only.
pub(super) fn mudd(letters: &str, pre_post: Option<PrePost>) -> MuddConfig {
    MuddConfig {
        ways: MuddWays::Each(letters.into()),
        norm: NormDesign::Layer {
            params: NormParams::Scale,
            eps: 1e-5,
        },
        pre_post,
        ..MuddConfig::default()
    }
}

pub(super) fn shared_mudd() -> MuddConfig {
    MuddConfig {
        own_norms: false,
        activation: Activation::GeluTanh,
        hidden_multiple: Some(7),
        wide_last: false,
        ..MuddConfig::default()
    }
}

pub(super) fn static_mudd() -> MuddConfig {
    MuddConfig {
        dynamic: false,
        norm: NormDesign::Rms {
            scale: RmsScale::Scale,
            eps: 1e-6,
        },
        ..MuddConfig::default()
    }
}

pub(super) fn one_mudd() -> MuddConfig {
    MuddConfig {
        ways: MuddWays::One,
        ..shared_mudd()
    }
}

pub(super) fn ddformer() -> MuddConfig {
    MuddConfig {
        ways: MuddWays::One,
        ..mudd("qkvr", Some(PrePost::Paper))
    }
}

pub(super) fn hybrid_star() -> HybridNormConfig {
    HybridNormConfig {
        first_pre: true,
        ..HybridNormConfig::default()
    }
}

pub(super) fn softmax_gated() -> ValueGatedConfig {
    ValueGatedConfig {
        gate: ValueGate::SoftmaxSigmoid,
        bias: true,
        ..ValueGatedConfig::default()
    }
}

pub(super) fn both_gated(tables: Vec<Option<usize>>) -> ValueEmbeddingConfig {
    ValueEmbeddingConfig {
        tables: ValueTables::Layers(tables),
        gate: TableGate::Both {
            count: 5,
            range: 2.0,
        },
    }
}

pub(super) fn weighted(tables: Vec<Option<usize>>) -> ValueEmbeddingConfig {
    ValueEmbeddingConfig {
        tables: ValueTables::Layers(tables),
        gate: TableGate::Lambda,
    }
}

pub(super) fn plain_lime() -> LimeConfig {
    LimeConfig {
        start: LimeStart::Identity,
    }
}
