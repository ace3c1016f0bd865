//! TokenFormers that grow twice against transformers that are widened twice (Wang et al., Figure 7).

residual_zoo::experiment!("tokenformer_chain");
