//! Value residuals against the plain transformer (Zhou et al. 2024).

residual_zoo::experiment!("value_residual");
