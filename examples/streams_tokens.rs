//! The value of more tokens to the baseline of the experiments on streams.

residual_zoo::experiment!("streams_tokens");
