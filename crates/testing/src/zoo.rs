//! Small models of every architecture, and compositions of them.

use residual_zoo::core::{ImageSize, NormPlaces, Rotary};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::{Augmentation, LaurelConfig, Weights};
use residual_zoo::llama::{Biases, CanonConfig, Gate, LlamaConfig, QkNorm};
use residual_zoo::loops::{Inject, LoopOrder, LoopStart, LoopsConfig, Times, Timestep};
use residual_zoo::ngpt::{NgptConfig, NgptPositions};
use residual_zoo::recurrent::{Alpha, Form, RecurrentConfig};
use residual_zoo::resnet::{BlockKind, ResNetConfig, ShortcutKind, Stem};
use residual_zoo::rmt::RmtConfig;
use residual_zoo::runs::parse_ron;
use residual_zoo::streams::{
    AttentionResidualConfig, DeepNormConfig, DenseConfig, DepthLstmCellConfig, DepthLstmConfig,
    DepthLstmForm, FirstCell, GateNorm, HighwayConfig, HyperConfig, InitialMixConfig,
    IterativeConfig, LayerScaleConfig, MhcConfig, MhcForm, NormPlace, Psi, ReZeroConfig,
    SelfDependencyConfig, SkipInitConfig, TreeConfig, ValueResidualConfig, ValueResidualForm,
};
use residual_zoo::tokenformer::{Position, TokenFormerConfig};
use residual_zoo::vit::{Patches, Pool};
use residual_zoo::{ConnectionConfig, ModelConfig as Zoo};

/// The width of the stream in all models.
pub const WIDTH: usize = 48;

/// A GPT-2 with two layers.
pub fn gpt2() -> Zoo {
    Zoo::of(Gpt2Config {
        n_layer: 2,
        n_head: 4,
        width: WIDTH,
        context: 64,
        ..Gpt2Config::default()
    })
}

/// A modern decoder with two layers, and three query heads for each key head.
pub fn llama() -> Zoo {
    Zoo::of(LlamaConfig {
        n_layer: 2,
        n_head: 6,
        n_kv_head: Some(2),
        width: WIDTH,
        d_ff: Some(52),
        context: 64,
        ..LlamaConfig::default()
    })
}

/// A modern decoder with windows, caps, Canon layers and gates.
fn llama_with_options() -> Zoo {
    Zoo::of(LlamaConfig {
        n_layer: 2,
        n_head: 4,
        n_kv_head: Some(1),
        head_dim: Some(10),
        width: WIDTH,
        context: 64,
        norm_places: NormPlaces::Both,
        rotary: Rotary {
            share: 0.6,
            ..Rotary::default()
        },
        qk_norm: Some(QkNorm::Heads),
        attention_cap: Some(5.0),
        logit_cap: Some(8.0),
        windows: vec![Some(9), None],
        gate: Some(Gate::PerHead),
        canon: Some(CanonConfig::default()),
        ..LlamaConfig::default()
    })
}

/// An nGPT with two layers.
pub fn ngpt() -> Zoo {
    Zoo::of(small_ngpt())
}

fn small_ngpt() -> NgptConfig {
    NgptConfig {
        n_layer: 2,
        n_head: 4,
        width: WIDTH,
        d_ff: Some(52),
        context: 64,
        ..NgptConfig::default()
    }
}

/// An nGPT with the positions of the published code.
fn ngpt_as_code() -> Zoo {
    Zoo::of(NgptConfig {
        positions: NgptPositions::Code,
        ..small_ngpt()
    })
}

/// An RMT with two layers.
pub fn rmt() -> Zoo {
    Zoo::of(RmtConfig {
        n_layer: 2,
        d_k: 8,
        d_v: 6,
        rank: 5,
        d_ff: Some(44),
        context: 64,
        ..RmtConfig::default()
    })
}

/// A TokenFormer with two layers.
pub fn tokenformer() -> Zoo {
    Zoo::of(TokenFormerConfig {
        n_layer: 2,
        n_head: 4,
        width: WIDTH,
        n_attn: Some(29),
        n_ffn: Some(51),
        context: 64,
        ..TokenFormerConfig::default()
    })
}

fn rotary() -> Zoo {
    Zoo::of(TokenFormerConfig {
        n_layer: 2,
        n_head: 4,
        width: WIDTH,
        position: Position::Rotary { fraction: 0.5 },
        context: 64,
        ..TokenFormerConfig::default()
    })
}

fn alibi() -> Zoo {
    Zoo::of(
        RmtConfig {
            n_layer: 2,
            d_k: 8,
            d_v: 6,
            rank: 5,
            context: 64,
            ..RmtConfig::default()
        }
        .code_form(),
    )
}

/// Makes a recurrence over blocks of `block` positions, with a trained α.
pub fn recurrence(block: usize, form: Form) -> RecurrentConfig {
    RecurrentConfig {
        block,
        alpha: Alpha::Trainable(0.5),
        form,
    }
}

/// A modern decoder with four layers, as Huginn uses them.
pub fn huginn() -> Zoo {
    let of = LlamaConfig {
        n_layer: 4,
        n_head: 4,
        width: WIDTH,
        d_ff: Some(52),
        context: 64,
        norm_places: NormPlaces::Sandwich,
        bias: Biases::Qk,
        scaled_embedding: true,
        tied: true,
        ..LlamaConfig::default()
    };
    Zoo::of(of).looped(LoopsConfig {
        prelude: 1,
        coda: 1,
        times: Times::Drawn { mean: 3 },
        backward: None,
        ..LoopsConfig::huginn()
    })
}

/// A GPT-2 with `n_layer` layers.
fn gpt2_of(n_layer: usize) -> Zoo {
    Zoo::of(Gpt2Config {
        n_layer,
        n_head: 4,
        width: WIDTH,
        context: 64,
        ..Gpt2Config::default()
    })
}

/// A loop over all layers but the first `prelude` ones.
fn after(prelude: usize, loops: LoopsConfig) -> LoopsConfig {
    LoopsConfig { prelude, ..loops }
}

/// A model of each architecture, with its name.
pub fn architectures() -> Vec<(&'static str, Zoo)> {
    vec![
        ("GPT-2", gpt2()),
        ("Llama", llama()),
        ("Llama with options", llama_with_options()),
        ("nGPT", ngpt()),
        ("nGPT as its code", ngpt_as_code()),
        ("RMT", rmt()),
        ("LAuReL", gpt2().per_sublayer(LaurelConfig::rw_lr_pa(3, 4))),
        ("TokenFormer", tokenformer()),
        ("recurrent", gpt2().recurrent(recurrence(8, Form::Paper))),
    ]
}

/// A GPT-2 with each connection except LAuReL: in each of the forms below, or as `Name()` around sublayers.
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
    ];
    let layers: Vec<(_, ConnectionConfig)> = vec![
        ("x0 mix", InitialMixConfig::default().into()),
        ("tree", tree().into()),
        ("iterative aggregation", iterative().into()),
        ("DenseFormer", DenseConfig::default().into()),
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

fn shared_rezero() -> ReZeroConfig {
    ReZeroConfig {
        per_layer: true,
        ..ReZeroConfig::default()
    }
}

fn pre_norm_sdu() -> SelfDependencyConfig {
    SelfDependencyConfig {
        norm: NormPlace::Pre,
        psi: Psi::Sigmoid,
        bias: false,
        ..SelfDependencyConfig::default()
    }
}

fn tree() -> TreeConfig {
    TreeConfig {
        d_ff: Some(10),
        ..TreeConfig::default()
    }
}

fn iterative() -> IterativeConfig {
    IterativeConfig {
        d_ff: Some(10),
        bias: false,
        ..IterativeConfig::default()
    }
}

fn dense(dilation: usize, period: usize) -> DenseConfig {
    DenseConfig { dilation, period }
}

fn hyper(n: usize, dynamic: bool) -> HyperConfig {
    HyperConfig {
        n,
        dynamic,
        ..HyperConfig::default()
    }
}

fn mhc(form: MhcForm) -> MhcConfig {
    MhcConfig {
        form,
        n: 3,
        sinkhorn: 4,
        ..MhcConfig::default()
    }
}

fn attention_residual(block: usize) -> AttentionResidualConfig {
    AttentionResidualConfig {
        block,
        ..AttentionResidualConfig::default()
    }
}

fn identity() -> ValueResidualConfig {
    ValueResidualConfig {
        form: ValueResidualForm::Identity,
    }
}

/// Compositions of the connections of `residual_zoo::streams` with the other ideas, with their descriptions.
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
    ]
}

/// A model with the layers of several models in turn.
pub fn in_turn<const N: usize>(models: [Zoo; N]) -> Zoo {
    Zoo::in_turn(models.map(|model| model.layers).concat())
}

/// Compositions of architectures, LAuReL and recurrences, with their descriptions.
pub fn compositions() -> Vec<(&'static str, Zoo)> {
    let per_dimension = LaurelConfig {
        weights: Weights::Sigmoid,
        per_dimension: true,
        augmentation: Augmentation::PreviousLowRank { k: 2, rank: 3 },
        ..LaurelConfig::default()
    };
    vec![
        (
            "LAuReL around TokenFormer sublayers",
            tokenformer().per_sublayer(LaurelConfig::rw_lr(4)),
        ),
        (
            "LAuReL around RMT sublayers",
            rmt().per_sublayer(LaurelConfig::rw_pa(3)),
        ),
        (
            "LAuReL around RMT layers",
            rmt().per_layer(LaurelConfig::rw_lr_pa(2, 3)),
        ),
        (
            "per-dimension LAuReL around rotary TokenFormer layers",
            rotary().per_layer(per_dimension),
        ),
        ("recurrent RMT", rmt().recurrent(recurrence(8, Form::Paper))),
        (
            "recurrent RMT with ALiBi, code form",
            alibi().recurrent(recurrence(10, Form::Code)),
        ),
        (
            "recurrent TokenFormer",
            tokenformer().recurrent(recurrence(16, Form::Code)),
        ),
        (
            "recurrent rotary TokenFormer",
            rotary().recurrent(recurrence(12, Form::Paper)),
        ),
        (
            "recurrent LAuReL around GPT-2",
            gpt2()
                .per_sublayer(LaurelConfig::rw_lr_pa(2, 4))
                .recurrent(recurrence(9, Form::Paper)),
        ),
        (
            "recurrent nGPT",
            ngpt().recurrent(recurrence(9, Form::Paper)),
        ),
        (
            "LAuReL around nGPT and GPT-2 layers in turn",
            in_turn([ngpt(), gpt2()]).per_layer(LaurelConfig::rw_lr(3)),
        ),
        (
            "GPT-2 and TokenFormer in turn",
            in_turn([gpt2(), tokenformer()]),
        ),
        (
            "LAuReL around RMT and GPT-2 in turn",
            in_turn([rmt(), gpt2()]).per_sublayer(LaurelConfig::rw_pa(2)),
        ),
        (
            "recurrent, LAuReL around TokenFormer and RMT layers in turn",
            in_turn([tokenformer(), rmt()])
                .per_layer(LaurelConfig::lr(3))
                .recurrent(recurrence(8, Form::Paper)),
        ),
    ]
}

/// Depth loops over the layers of several architectures, with and without connections, with their descriptions.
pub fn loops() -> Vec<(&'static str, Zoo)> {
    vec![
        ("Huginn", huginn()),
        (
            "Universal Transformer",
            llama().looped(LoopsConfig::universal(3)),
        ),
        (
            "looped RMT, each layer by itself",
            rmt().looped(LoopsConfig {
                order: LoopOrder::Repeat,
                inject: Inject::Linear,
                norm: true,
                ..LoopsConfig::default()
            }),
        ),
        (
            "looped layers of RMT and GPT-2 in turn, with a vector for each loop",
            in_turn([rmt(), gpt2()]).looped(LoopsConfig {
                timestep: Timestep::Learned,
                ..LoopsConfig::looped(3)
            }),
        ),
        (
            "looped LAuReL around TokenFormer",
            tokenformer()
                .per_sublayer(LaurelConfig::rw_lr_pa(2, 3))
                .looped(after(1, LoopsConfig::looped(2))),
        ),
        (
            "hyper in a loop",
            gpt2_of(4).per_sublayer(hyper(2, true)).looped(LoopsConfig {
                coda: 1,
                start: LoopStart::Random(0.5),
                ..after(1, LoopsConfig::looped(2))
            }),
        ),
        (
            "DeepNorm in a loop",
            gpt2_of(3)
                .per_sublayer(DeepNormConfig::default())
                .looped(after(1, LoopsConfig::looped(2))),
        ),
        (
            "mHC in a loop over each layer by itself",
            gpt2().per_sublayer(mhc(MhcForm::Code)).looped(LoopsConfig {
                order: LoopOrder::Repeat,
                ..LoopsConfig::default()
            }),
        ),
    ]
}

/// The size of images for [`vision`].
pub const IMAGE: ImageSize = ImageSize {
    channels: 3,
    height: 6,
    width: 10,
};

/// Models of images, with their descriptions.
pub fn vision() -> Vec<(&'static str, Zoo)> {
    let patches = Patches {
        size: 2,
        ..Patches::default()
    };
    let mean = Patches {
        pool: Pool::Mean,
        ..patches
    };
    let without_token = Patches {
        class_token: false,
        ..mean
    };
    let on = |model: Zoo| model.on_patches(patches);
    vec![
        ("ViT", on(gpt2())),
        ("ViT, mean of the patches", gpt2().on_patches(mean)),
        ("ViT without class token", gpt2().on_patches(without_token)),
        ("TokenFormer on images", on(tokenformer())),
        ("rotary TokenFormer on images", on(rotary())),
        (
            "LAuReL in a ViT",
            on(gpt2().per_sublayer(LaurelConfig::rw_lr_pa(3, 4))),
        ),
        (
            "LAuReL around the layers of a ViT",
            on(gpt2().per_layer(LaurelConfig::rw_lr(4))),
        ),
        (
            "hyper-connections in a TokenFormer on images",
            on(tokenformer().per_sublayer(HyperConfig::default())),
        ),
        (
            "value residuals in a ViT",
            on(gpt2().per_sublayer(ValueResidualConfig::default())),
        ),
        (
            "a ViT of alternating layers",
            on(in_turn([gpt2(), tokenformer()])),
        ),
        ("ResNet", resnet(BlockKind::Basic)),
        (
            "LAuReL in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(LaurelConfig::rw_lr_pa(2, 3)),
        ),
        (
            "LAuReL in a ResNet of bottlenecks",
            resnet(BlockKind::Bottleneck { expansion: 2 }).per_sublayer(LaurelConfig::rw_lr(3)),
        ),
        (
            "hyper-connections in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(HyperConfig::default()),
        ),
        (
            "mHC in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(MhcConfig::default()),
        ),
        (
            "DenseFormer's averages in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(DenseConfig::default()),
        ),
        (
            "attention residuals in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(AttentionResidualConfig::default()),
        ),
        (
            "a highway ResNet",
            resnet(BlockKind::Basic).per_sublayer(HighwayConfig::default()),
        ),
        (
            "LayerScale in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(LayerScaleConfig::default()),
        ),
    ]
}

/// A small ResNet of these blocks. Its norms use running statistics in every pass.
pub fn resnet(block: BlockKind) -> Zoo {
    Zoo::of(ResNetConfig {
        block,
        widths: vec![6, 8],
        depths: vec![2, 3],
        stem: Stem::Cifar,
        shortcut: ShortcutKind::Projection,
        frozen_norm: true,
        ..ResNetConfig::default()
    })
}
