//! Loss of grown TokenFormers, by stage length (Wang et al., Table 7).

residual_zoo::experiment!("tokenformer_stages");
