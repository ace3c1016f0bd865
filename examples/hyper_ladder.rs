//! Hyper-connections against the plain residual, over model sizes (Zhu et al. 2024).

residual_zoo::experiment!("hyper_ladder");
