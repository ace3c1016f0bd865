//! Small models of every architecture, and compositions of them.

use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::core::{ImageSize, NormPlaces, Rotary};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::laurel::{Augmentation, LaurelConfig, Weights};
use residual_zoo_models::llama::{Biases, CanonConfig, Gate, LlamaConfig, QkNorm};
use residual_zoo_models::loops::{Inject, LoopOrder, LoopStart, LoopsConfig, Times, Timestep};
use residual_zoo_models::ngpt::{NgptConfig, NgptPositions};
use residual_zoo_models::recurrent::{Alpha, Form, RecurrentConfig};
use residual_zoo_models::resnet::{BlockKind, ResNetConfig, ShortcutKind, Stem};
use residual_zoo_models::rmt::RmtConfig;
use residual_zoo_models::streams::{
    AttentionResidualConfig, Compress, DeepNormConfig, DenseConfig, HighwayConfig, HyperConfig,
    LayerScaleConfig, LimeConfig, MhcConfig, MhcForm, PrePost, SiameseConfig, SkipsConfig,
    ValueResidualConfig, ValueSharedConfig,
};
use residual_zoo_models::tokenformer::{Position, TokenFormerConfig};
use residual_zoo_models::vit::{Patches, Pool};

mod connections;
mod streams;

pub use connections::connections;
use connections::*;
pub use streams::streams;

/// The width of the stream in all models.
pub const WIDTH: usize = 48;

/// Makes a GPT-2 with two layers.
pub fn gpt2() -> Zoo {
    Zoo::of(Gpt2Config {
        n_layer: 2,
        n_head: 4,
        width: WIDTH,
        context: 64,
        ..Gpt2Config::default()
    })
}

/// Makes a modern decoder with two layers, and three query heads for each key-value head.
pub fn llama() -> Zoo {
    llama_of(2)
}

fn llama_of(n_layer: usize) -> Zoo {
    Zoo::of(LlamaConfig {
        n_layer,
        n_head: 6,
        n_kv_head: Some(2),
        width: WIDTH,
        d_ff: Some(52),
        context: 64,
        ..LlamaConfig::default()
    })
}

/// Makes a modern decoder with windows, caps, Canon layers and gates.
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

/// Makes an nGPT with two layers.
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

/// Makes an nGPT with the positions of the published code.
fn ngpt_as_code() -> Zoo {
    Zoo::of(NgptConfig {
        positions: NgptPositions::Code,
        ..small_ngpt()
    })
}

/// Makes an RMT with two layers.
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

/// Makes a TokenFormer with two layers.
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

/// Configures a recurrence over blocks of `block` positions, with a trained α.
pub fn recurrence(block: usize, form: Form) -> RecurrentConfig {
    RecurrentConfig {
        block,
        alpha: Alpha::Trainable(0.5),
        form,
    }
}

/// Makes a modern decoder with four layers that loops like Huginn.
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

/// Makes a GPT-2 with `n_layer` layers.
fn gpt2_of(n_layer: usize) -> Zoo {
    Zoo::of(Gpt2Config {
        n_layer,
        n_head: 4,
        width: WIDTH,
        context: 64,
        ..Gpt2Config::default()
    })
}

/// Configures a depth loop over all layers after the first `prelude` layers.
fn after(prelude: usize, loops: LoopsConfig) -> LoopsConfig {
    LoopsConfig { prelude, ..loops }
}

/// Makes a model of each architecture, with its name.
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

/// Makes a model whose layers come from `models` in turn.
pub fn in_turn<const N: usize>(models: [Zoo; N]) -> Zoo {
    Zoo::in_turn(models.map(|model| model.layers).concat())
}

/// Makes compositions of architectures, LAuReL and recurrences, with their descriptions.
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

/// Makes depth loops over the layers of several architectures, with and without connections, with their descriptions.
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
            "SiameseNorm in a loop",
            gpt2_of(3)
                .per_sublayer(SiameseConfig::default())
                .looped(after(1, LoopsConfig::looped(2))),
        ),
        (
            "delta over positions in a loop",
            gpt2_of(3)
                .per_sublayer(delta(Compress::Time))
                .looped(after(1, LoopsConfig::looped(2))),
        ),
        (
            "MUDD in a loop",
            gpt2_of(4)
                .per_sublayer(mudd("qkvr", None))
                .looped(after(1, LoopsConfig::looped(2))),
        ),
        (
            "HybridNorm in a loop over each layer by itself",
            gpt2().per_sublayer(hybrid_star()).looped(LoopsConfig {
                order: LoopOrder::Repeat,
                ..LoopsConfig::default()
            }),
        ),
        (
            "mHC in a loop over each layer by itself",
            gpt2().per_sublayer(mhc(MhcForm::Code)).looped(LoopsConfig {
                order: LoopOrder::Repeat,
                ..LoopsConfig::default()
            }),
        ),
        (
            "mHC-lite in a loop",
            gpt2_of(3)
                .per_sublayer(shifts())
                .looped(after(1, LoopsConfig::looped(2))),
        ),
        (
            "U-net skips in a loop",
            gpt2_of(4)
                .per_layer(SkipsConfig::default())
                .looped(after(2, LoopsConfig::looped(2))),
        ),
    ]
}

/// The size of the images that the models of [`vision`] read.
pub const IMAGE: ImageSize = ImageSize {
    channels: 3,
    height: 6,
    width: 10,
};

/// Makes image models, with their descriptions.
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
            "SiameseNorm in a ViT",
            on(gpt2().per_sublayer(SiameseConfig::default())),
        ),
        (
            "MUDD in a ViT",
            on(gpt2().per_sublayer(mudd("qkvr", Some(PrePost::Code)))),
        ),
        (
            "HybridNorm in a ViT",
            on(gpt2().per_sublayer(hybrid_star())),
        ),
        (
            "shared values in a ViT",
            on(gpt2().per_sublayer(ValueSharedConfig::default())),
        ),
        (
            "LIMe in a TokenFormer on images",
            on(tokenformer().per_sublayer(LimeConfig::default())),
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
        (
            "frac in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(frac(2)),
        ),
        (
            "KromHC in a ResNet",
            resnet(BlockKind::Basic).per_sublayer(krom()),
        ),
        (
            "U-net skips and backout in a ViT",
            on(gpt2_of(4).per_layer(skips())),
        ),
    ]
}

/// Makes a small ResNet with blocks of this kind. Its norms use running statistics in every pass.
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
