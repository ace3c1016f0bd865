//! Loss of grown TokenFormers over the length of the stages (Wang et al., Table 7).

residual_zoo::experiment!("tokenformer_stages");
