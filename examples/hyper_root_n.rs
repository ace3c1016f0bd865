//! Hyper-connections with other initial outputs (Zhu et al. 2024, Section 4).

residual_zoo::experiment!("hyper_root_n");
