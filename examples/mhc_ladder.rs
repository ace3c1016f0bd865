//! mHC against the plain residual, over model sizes (Xie et al. 2025).

residual_zoo::experiment!("mhc_ladder");
