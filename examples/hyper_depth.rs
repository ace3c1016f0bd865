//! Hyper-connections and mHC against the plain residual, over depth (Zhu et al. 2024; Xie et al. 2025).

residual_zoo::experiment!("hyper_depth");
