//! Reproduces the tables of TokenFormer.

use residual_zoo::core::{Architecture, Frame};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::tokenformer::formulas::{Shape, transformer_flops, transformer_params};
use residual_zoo::tokenformer::{Position, TokenFormerConfig};
use serde_json::{Value, json};

use super::{NEOX, norm_scales};

/// Returns the figures of one table row, for the layers only.
fn row(config: &TokenFormerConfig) -> Value {
    json!({
        "layers": config.n_layer,
        "hidden": config.width,
        "attention_pairs": config.n_attn(),
        "ffn_pairs": config.n_ffn(),
        "heads": config.n_head,
        "table3_non_embedding": Shape::from(config).params_as_printed(),
        "exact_non_embedding": config.cost(NEOX).params.other,
    })
}

/// Returns the figures of one table row, with the embeddings of a language model that has no position table.
fn language_row(config: TokenFormerConfig) -> Value {
    let mut row = row(&config);
    let without_positions = TokenFormerConfig {
        position: Position::Rotary { fraction: 0.25 },
        ..config
    };
    let params = without_positions.cost(NEOX).params;
    row["exact_with_tied_embedding"] = params.total().into();
    let affine = TokenFormerConfig {
        affine_final_norm: true,
        ..without_positions
    };
    row["exact_with_final_norm_affine"] = affine.cost(NEOX).params.total().into();
    row
}

pub fn table_8() -> Value {
    let language = [
        TokenFormerConfig::m150(),
        TokenFormerConfig::m450(),
        TokenFormerConfig::m900(),
        TokenFormerConfig::b1_5(),
        TokenFormerConfig::m124(),
        TokenFormerConfig::m354(),
        TokenFormerConfig::m757(),
        TokenFormerConfig::b1_4(),
    ];
    let large_307m = TokenFormerConfig::large_307m();
    let mut large_307m_as_printed = row(&TokenFormerConfig {
        n_ffn: Some(768),
        ..large_307m.clone()
    });
    large_307m_as_printed["exact_non_embedding_if_ffn_pairs_3072"] =
        large_307m.cost(NEOX).params.other.into();
    let vision = [
        row(&TokenFormerConfig::base_86m()),
        row(&TokenFormerConfig::base_109m()),
        large_307m_as_printed,
        row(&TokenFormerConfig::large_407m()),
    ];
    let rows: Value = language
        .map(language_row)
        .into_iter()
        .chain(vision)
        .collect();
    json!({ "vocab": NEOX, "table8": rows })
}

#[test]
fn tokenformers_formulas_count_what_the_layers_do() {
    for config in [TokenFormerConfig::m124(), TokenFormerConfig::large_307m()] {
        let (shape, time) = (Shape::from(&config), config.context);
        let layers = config.block_cost(0, time, &Frame::default()) * config.n_layer;
        assert_eq!(shape.params_counted(), layers.params.total());
        assert_eq!(shape.flops_counted(time), layers.forward_flops * time);
        let saved = 2 * (shape.params_counted() - shape.params_as_printed()) * time;
        assert_eq!(
            shape.flops_as_printed(time) + saved,
            shape.flops_counted(time)
        );

        let transformer = Gpt2Config {
            n_layer: config.n_layer,
            width: config.width,
            bias: false,
            ..Default::default()
        };
        let layers = transformer.block_cost(0, time, &Frame::default()) * config.n_layer;
        let norms = norm_scales(&transformer) - config.width;
        let params = transformer_params(config.n_layer, config.width);
        assert_eq!(params + norms, layers.params.total());
        let flops = transformer_flops(config.n_layer, config.width, time);
        assert_eq!(flops, layers.forward_flops * time);
    }
}
