//! Published models, by name. To add another model of these families, add an entry to the list.

use residual_zoo_core::{Activation, NormPlaces, RmsScale, Rotary, RotaryScaling};

use crate::{Biases, LlamaConfig, LlamaInit, QkNorm};

/// A published model.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// The name, such as `llama-3-8b`.
    pub name: &'static str,
    /// Number of token ids.
    pub vocab: usize,
    /// The config.
    pub config: LlamaConfig,
}

/// Sizes of a model: number of token ids, width of the stream, width of the feed-forward network, number of layers,
/// number of query heads, number of key-value heads, width of a head.
type Sizes = [usize; 7];

/// A function that returns the config of a model family, without sizes.
type Family = fn() -> LlamaConfig;

/// The name, sizes, context and family of each published model.
const MODELS: [(&str, Sizes, usize, Family); 18] = [
    (
        "llama-2-7b",
        [32_000, 4096, 11_008, 32, 32, 32, 128],
        4096,
        llama_2,
    ),
    (
        "llama-2-13b",
        [32_000, 5120, 13_824, 40, 40, 40, 128],
        4096,
        llama_2,
    ),
    (
        "llama-3-8b",
        [128_256, 4096, 14_336, 32, 32, 8, 128],
        8192,
        llama_3,
    ),
    (
        "llama-3.2-1b",
        [128_256, 2048, 8192, 16, 32, 8, 64],
        131_072,
        llama_3_2,
    ),
    (
        "llama-3.2-3b",
        [128_256, 3072, 8192, 28, 24, 8, 128],
        131_072,
        llama_3_2,
    ),
    (
        "qwen-2.5-0.5b",
        [151_936, 896, 4864, 24, 14, 2, 64],
        32_768,
        qwen_2_tied,
    ),
    (
        "qwen-2.5-1.5b",
        [151_936, 1536, 8960, 28, 12, 2, 128],
        32_768,
        qwen_2_tied,
    ),
    (
        "qwen-2.5-7b",
        [152_064, 3584, 18_944, 28, 28, 4, 128],
        32_768,
        qwen_2,
    ),
    (
        "qwen-3-0.6b",
        [151_936, 1024, 3072, 28, 16, 8, 128],
        40_960,
        qwen_3_tied,
    ),
    (
        "qwen-3-1.7b",
        [151_936, 2048, 6144, 28, 16, 8, 128],
        40_960,
        qwen_3_tied,
    ),
    (
        "qwen-3-4b",
        [151_936, 2560, 9728, 36, 32, 8, 128],
        40_960,
        qwen_3_tied,
    ),
    (
        "qwen-3-8b",
        [151_936, 4096, 12_288, 36, 32, 8, 128],
        40_960,
        qwen_3,
    ),
    (
        "olmo-2-1b",
        [100_352, 2048, 8192, 16, 16, 16, 128],
        4096,
        olmo_2,
    ),
    (
        "olmo-2-7b",
        [100_352, 4096, 11_008, 32, 32, 32, 128],
        4096,
        olmo_2,
    ),
    (
        "olmo-2-13b",
        [100_352, 5120, 13_824, 40, 40, 40, 128],
        4096,
        olmo_2,
    ),
    (
        "gemma-2-2b",
        [256_000, 2304, 9216, 26, 8, 4, 256],
        8192,
        gemma_2,
    ),
    (
        "gemma-2-9b",
        [256_000, 3584, 14_336, 42, 16, 8, 256],
        8192,
        gemma_2,
    ),
    (
        "nanochat-d20-2025",
        [65_536, 1280, 5120, 20, 10, 10, 128],
        2048,
        nanochat_2025,
    ),
];

/// Returns the published models.
pub fn all() -> impl Iterator<Item = Preset> {
    MODELS.into_iter().map(|(name, sizes, context, family)| {
        let [vocab, width, d_ff, n_layer, n_head, n_kv_head, head_dim] = sizes;
        let config = LlamaConfig {
            n_layer,
            n_head,
            n_kv_head: Some(n_kv_head),
            head_dim: Some(head_dim),
            width,
            d_ff: Some(d_ff),
            context,
            ..family()
        };
        Preset {
            name,
            vocab,
            config,
        }
    })
}

/// Returns the published model called `name`.
pub fn named(name: &str) -> Option<Preset> {
    all().find(|preset| preset.name == name)
}

fn base(base: f64) -> Rotary {
    Rotary {
        base,
        ..Rotary::default()
    }
}

fn llama_2() -> LlamaConfig {
    LlamaConfig::default()
}

fn llama_3() -> LlamaConfig {
    LlamaConfig {
        rotary: base(5e5),
        ..LlamaConfig::default()
    }
}

fn llama_3_2() -> LlamaConfig {
    let scaling = RotaryScaling {
        factor: 32.0,
        low: 1.0,
        high: 4.0,
        original: 8192,
    };
    LlamaConfig {
        rotary: Rotary {
            scaling: Some(scaling),
            ..base(5e5)
        },
        tied: true,
        ..llama_3()
    }
}

fn qwen_2() -> LlamaConfig {
    LlamaConfig {
        rotary: base(1e6),
        norm_eps: 1e-6,
        bias: Biases::Qkv,
        ..LlamaConfig::default()
    }
}

fn qwen_2_tied() -> LlamaConfig {
    LlamaConfig {
        tied: true,
        ..qwen_2()
    }
}

fn qwen_3() -> LlamaConfig {
    LlamaConfig {
        rotary: base(1e6),
        norm_eps: 1e-6,
        qk_norm: Some(QkNorm::Heads),
        ..LlamaConfig::default()
    }
}

fn qwen_3_tied() -> LlamaConfig {
    LlamaConfig {
        tied: true,
        ..qwen_3()
    }
}

fn olmo_2() -> LlamaConfig {
    LlamaConfig {
        rotary: base(5e5),
        norm_eps: 1e-6,
        norm_places: NormPlaces::Behind,
        qk_norm: Some(QkNorm::All),
        ..LlamaConfig::default()
    }
}

fn gemma_2() -> LlamaConfig {
    LlamaConfig {
        norm: RmsScale::OnePlus,
        norm_places: NormPlaces::Both,
        norm_eps: 1e-6,
        activation: Activation::GeluTanh,
        attention_scale: Some(1.0 / 16.0),
        attention_cap: Some(50.0),
        logit_cap: Some(30.0),
        windows: vec![Some(4096), None],
        scaled_embedding: true,
        tied: true,
        ..LlamaConfig::default()
    }
}

/// Returns nanochat's config of October 2025, without sizes.
fn nanochat_2025() -> LlamaConfig {
    LlamaConfig {
        norm: RmsScale::None,
        // The machine epsilon of f32.
        norm_eps: f64::from(f32::EPSILON),
        activation: Activation::SquaredRelu,
        gated: false,
        rotary: Rotary {
            backwards: true,
            ..Rotary::default()
        },
        qk_norm: Some(QkNorm::Heads),
        qk_norm_late: true,
        logit_cap: Some(15.0),
        normed_embedding: true,
        init: Some(LlamaInit::Nanochat2025),
        ..LlamaConfig::default()
    }
}
