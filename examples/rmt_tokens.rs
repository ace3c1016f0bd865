//! Loss of the transformer of `rmt_vs_transformer`, by number of training tokens.

residual_zoo::experiment!("rmt_tokens");
