//! mHC against the plain residual, over depth (Xie et al. 2025).

residual_zoo::experiment!("mhc_depth");
