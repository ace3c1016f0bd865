//! DeepNorm and ReZero in a deep model where post-norm fails (Wang et al. 2022; Bachlechner et al. 2020).

residual_zoo::experiment!("deep_norm");
