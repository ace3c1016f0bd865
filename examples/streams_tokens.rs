//! Loss of the baseline of the stream experiments, by number of training tokens.

residual_zoo::experiment!("streams_tokens");
