//! Small models of every architecture, and compositions of them.

use residual_zoo::ModelConfig as Zoo;
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::{Augmentation, LaurelConfig, Weights};
use residual_zoo::recurrent::{Alpha, Form, RecurrentConfig};
use residual_zoo::rmt::RmtConfig;
use residual_zoo::tokenformer::{Position, TokenFormerConfig};

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

/// A recurrence over blocks of `block` positions, with a trained α.
pub fn recurrence(block: usize, form: Form) -> RecurrentConfig {
    RecurrentConfig {
        block,
        alpha: Alpha::Trainable(0.5),
        form,
    }
}

/// A model of each architecture, with its name.
pub fn architectures() -> Vec<(&'static str, Zoo)> {
    vec![
        ("GPT-2", gpt2()),
        ("RMT", rmt()),
        ("LAuReL", gpt2().per_sublayer(LaurelConfig::rw_lr_pa(3, 4))),
        ("TokenFormer", tokenformer()),
        ("recurrent", gpt2().recurrent(recurrence(8, Form::Paper))),
    ]
}

/// A model with the layers of several models in turn.
pub fn in_turn<const N: usize>(models: [Zoo; N]) -> Zoo {
    Zoo::in_turn(models.map(|model| model.layers).concat())
}

/// Compositions, with their descriptions.
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
