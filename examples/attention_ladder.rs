//! Attention residuals against the plain residual, over model sizes (Chen et al. 2026).

residual_zoo::experiment!("attention_ladder");
