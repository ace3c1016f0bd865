//! Merging two TokenFormers that were tuned with new parameter tokens (Wang et al., Sections 4.4 and 5).

residual_zoo::experiment!("tokenformer_merge");
