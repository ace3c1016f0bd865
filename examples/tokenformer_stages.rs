//! Loss of grown TokenFormers, by length of the stages (Wang et al., Table 7).

residual_zoo::experiment!("tokenformer_stages");
