//! TokenFormers that grow twice against transformers that are widened twice (Figure 7).

residual_zoo::experiment!("tokenformer_chain");
