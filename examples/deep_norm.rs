//! DeepNorm and ReZero against post-norm and pre-norm in a deep model (Wang et al. 2022; Bachlechner et al. 2020).

residual_zoo::experiment!("deep_norm");
