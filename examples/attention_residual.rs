//! Attention residuals against the plain residual (Chen et al. 2026).

residual_zoo::experiment!("attention_residual");
