//! The value of more tokens to the transformer of `rmt_vs_transformer`.

residual_zoo::experiment!("rmt_tokens");
