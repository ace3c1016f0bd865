//! Connections around other models: alternating layers, recurrences and loops.

use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::core::{NormDesign, RmsScale};
use residual_zoo_models::loops::LoopsConfig;
use residual_zoo_models::recurrent::Form;
use residual_zoo_models::streams::{
    Backout, Compress, DeepNormConfig, DeltaConfig, DepthLstmCellConfig, DepthLstmConfig,
    FracConfig, HighwayConfig, HybridNormConfig, InitialMixConfig, LayerScaleConfig, LimeConfig,
    MhcForm, MhcResidual, Placement, PrePost, SelfDependencyConfig, SiameseConfig, SkipInitConfig,
    SkipsConfig, SpeedrunConfig, ValueEmbeddingConfig, ValueGatedConfig, ValueResidualConfig,
    ValueSharedConfig,
};

use super::*;

/// Makes compositions of the connections of `residual_zoo_models::streams` with other architectures, recurrences and loops,
/// with their descriptions.
pub fn streams() -> Vec<(&'static str, Zoo)> {
    let paper = |block| recurrence(block, Form::Paper);
    let code = |block| recurrence(block, Form::Code);
    vec![
        ("hyper around RMT", rmt().per_sublayer(hyper(3, true))),
        ("hyper around RMT layers", rmt().per_layer(hyper(2, true))),
        (
            "mHC around TokenFormer",
            tokenformer().per_sublayer(mhc(MhcForm::Paper)),
        ),
        (
            "mHC around RMT and GPT-2 in turn",
            in_turn([rmt(), gpt2()]).per_sublayer(mhc(MhcForm::Code)),
        ),
        (
            "attention residual in a recurrence",
            gpt2()
                .per_sublayer(attention_residual(1))
                .recurrent(paper(8)),
        ),
        (
            "attention residual around RMT and TokenFormer in turn",
            in_turn([rmt(), tokenformer()]).per_sublayer(attention_residual(2)),
        ),
        (
            "hyper in a recurrence",
            rmt().per_sublayer(hyper(2, true)).recurrent(code(9)),
        ),
        (
            "mHC in a recurrence of rotary TokenFormers",
            rotary()
                .per_sublayer(mhc(MhcForm::Code))
                .recurrent(paper(12)),
        ),
        ("DenseFormer of RMT layers", rmt().per_layer(dense(1, 1))),
        (
            "DenseFormer of TokenFormer sublayers",
            tokenformer().per_sublayer(dense(2, 1)),
        ),
        (
            "DenseFormer in a recurrence",
            gpt2().per_layer(dense(1, 1)).recurrent(paper(7)),
        ),
        ("value residual in RMT", alibi().per_sublayer(identity())),
        (
            "value residual in TokenFormer",
            rotary().per_sublayer(ValueResidualConfig::default()),
        ),
        (
            "DeepNorm around RMT",
            rmt().per_sublayer(DeepNormConfig::default()),
        ),
        (
            "DeepNorm in a recurrence of TokenFormers",
            tokenformer()
                .per_sublayer(DeepNormConfig::default())
                .recurrent(code(10)),
        ),
        (
            "ReZero around RMT with ALiBi",
            alibi().per_sublayer(shared_rezero()),
        ),
        (
            "ReZero around TokenFormer and GPT-2 in turn",
            in_turn([tokenformer(), gpt2()]).per_sublayer(shared_rezero()),
        ),
        (
            "SDU around RMT",
            rmt().per_sublayer(SelfDependencyConfig::default()),
        ),
        (
            "highway around TokenFormer layers",
            tokenformer().per_layer(HighwayConfig::default()),
        ),
        ("tree of RMT layers", rmt().per_layer(tree())),
        (
            "iterative aggregation of RMT and GPT-2 layers in turn",
            in_turn([rmt(), gpt2()]).per_layer(iterative()),
        ),
        (
            "iterative aggregation in a recurrence",
            gpt2().per_sublayer(iterative()).recurrent(paper(11)),
        ),
        (
            "depth-wise LSTM with RMT's attention",
            rmt().per_sublayer(DepthLstmConfig::default()),
        ),
        (
            "depth-wise LSTM with TokenFormer's attention in a recurrence",
            tokenformer()
                .per_sublayer(DepthLstmConfig::default())
                .recurrent(paper(8)),
        ),
        (
            "LSTM cell around RMT layers",
            rmt().per_layer(DepthLstmCellConfig::default()),
        ),
        (
            "x0 mix of RMT and TokenFormer in turn",
            in_turn([rmt(), tokenformer()]).per_layer(InitialMixConfig::default()),
        ),
        (
            "LayerScale around RMT layers",
            rmt().per_layer(LayerScaleConfig::default()),
        ),
        (
            "SkipInit in a recurrence",
            rmt()
                .per_sublayer(SkipInitConfig::default())
                .recurrent(code(8)),
        ),
        (
            "mHC-lite around RMT and TokenFormer in turn",
            in_turn([rmt(), tokenformer()]).per_sublayer(shifts()),
        ),
        (
            "iHC around RMT layers",
            rmt().per_layer(mhc_with(2, MhcResidual::Identity)),
        ),
        (
            "KromHC in a recurrence",
            tokenformer().per_sublayer(krom()).recurrent(paper(9)),
        ),
        ("frac around RMT", rmt().per_sublayer(frac(2))),
        (
            "frac in a recurrence of TokenFormers",
            rotary()
                .per_sublayer(FracConfig {
                    m: 4,
                    ..static_frac()
                })
                .recurrent(code(10)),
        ),
        ("U-net skips and backout", gpt2_of(4).per_layer(skips())),
        (
            "backout behind the middle of an odd number of layers",
            gpt2_of(5).per_layer(backout(3)),
        ),
        (
            "U-net skips and backout of RMT and GPT-2 sublayers in turn",
            in_turn([rmt(), gpt2()]).per_sublayer(SkipsConfig {
                backout: Some(Backout::Layer(0)),
                ..skips()
            }),
        ),
        (
            "U-net skips in a recurrence",
            gpt2()
                .per_sublayer(SkipsConfig::default())
                .recurrent(paper(8)),
        ),
        (
            "nanochat's tricks around Llama",
            llama_of(3).per_sublayer(nanochat_tricks()),
        ),
        (
            "nanochat's tricks without value embeddings, of RMT and GPT-2 in turn",
            in_turn([rmt(), gpt2()]).per_sublayer(SpeedrunConfig {
                values: None,
                backout: None,
                ..nanochat_tricks()
            }),
        ),
        ("Peri-LN around RMT", rmt().per_sublayer(peri())),
        (
            "Peri-LN in a recurrence",
            gpt2().per_sublayer(peri()).recurrent(paper(8)),
        ),
        (
            "Mix-LN around Llama",
            llama().per_sublayer(placed(mix_ln().placement, rms(RmsScale::Scale))),
        ),
        (
            "LayerNorm Scaling of TokenFormer and RMT in turn",
            in_turn([tokenformer(), rmt()])
                .per_sublayer(placed(Placement::Lns, NormDesign::default())),
        ),
        (
            "SiameseNorm around RMT and GPT-2 in turn",
            in_turn([rmt(), gpt2()]).per_sublayer(SiameseConfig::default()),
        ),
        (
            "SiameseNorm in a recurrence of TokenFormers",
            tokenformer()
                .per_sublayer(paper_siamese())
                .recurrent(code(9)),
        ),
        (
            "delta around RMT",
            rmt().per_sublayer(DeltaConfig::default()),
        ),
        (
            "delta over positions around TokenFormer and RMT in turn",
            in_turn([tokenformer(), rmt()]).per_sublayer(delta(Compress::Time)),
        ),
        (
            "delta over positions in a recurrence",
            gpt2().per_sublayer(paper_delta()).recurrent(paper(8)),
        ),
        (
            "MUDD around three layers",
            gpt2_of(3).per_sublayer(mudd("qkvr", None)),
        ),
        ("MUDD around Llama", llama().per_sublayer(static_mudd())),
        (
            "MUDD around Llama with options",
            llama_with_options().per_sublayer(mudd("vr", Some(PrePost::Code))),
        ),
        ("MUDD around RMT", rmt().per_sublayer(shared_mudd())),
        (
            "MUDD around TokenFormer and RMT in turn",
            in_turn([tokenformer(), rmt()]).per_sublayer(mudd("qkvr", Some(PrePost::Paper))),
        ),
        ("MUDD around nGPT", ngpt().per_sublayer(one_mudd())),
        (
            "HybridNorm around Llama",
            llama().per_sublayer(HybridNormConfig {
                norm: static_mudd().norm,
                ..hybrid_star()
            }),
        ),
        (
            "HybridNorm around Llama with options",
            llama_with_options().per_sublayer(HybridNormConfig::default()),
        ),
        ("HybridNorm around RMT", rmt().per_sublayer(hybrid_star())),
        (
            "HybridNorm in a recurrence of TokenFormers",
            tokenformer()
                .per_sublayer(HybridNormConfig::default())
                .recurrent(code(9)),
        ),
        (
            "gated value residual in Llama",
            llama().per_sublayer(softmax_gated()),
        ),
        (
            "gated value residual in nGPT",
            ngpt().per_sublayer(ValueGatedConfig::default()),
        ),
        (
            "value embedding in RMT",
            rmt().per_sublayer(both_gated(vec![None, Some(0)])),
        ),
        (
            "value embedding in Llama with options",
            llama_with_options().per_sublayer(ValueEmbeddingConfig::default()),
        ),
        (
            "value embedding of one table in layers that are not adjacent",
            gpt2_of(4).per_sublayer(weighted(vec![Some(0), Some(1), None, Some(1)])),
        ),
        (
            "value embedding in a loop",
            gpt2_of(3)
                .per_sublayer(ValueEmbeddingConfig::default())
                .looped(after(1, LoopsConfig::looped(2))),
        ),
        (
            "shared values in Llama",
            llama().per_sublayer(ValueSharedConfig::default()),
        ),
        (
            "shared values in Llama with options",
            llama_with_options().per_sublayer(ValueSharedConfig::default()),
        ),
        (
            "shared values in a loop",
            gpt2_of(4)
                .per_sublayer(ValueSharedConfig::default())
                .looped(after(2, LoopsConfig::looped(2))),
        ),
        ("LIMe in Llama", llama().per_sublayer(LimeConfig::default())),
        ("LIMe in RMT", alibi().per_sublayer(LimeConfig::default())),
        (
            "LIMe in TokenFormer",
            rotary().per_sublayer(LimeConfig::default()),
        ),
        ("LIMe in nGPT", ngpt().per_sublayer(LimeConfig::default())),
        (
            "LIMe in four layers",
            gpt2_of(4).per_sublayer(LimeConfig::default()),
        ),
    ]
}
