//! Muon against AdamW (Jordan et al. 2024, Liu et al. 2025).

residual_zoo::experiment!("muon");
