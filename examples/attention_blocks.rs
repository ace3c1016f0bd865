//! Attention residuals over blocks of whole layers (Chen et al. 2026).

residual_zoo::experiment!("attention_blocks");
