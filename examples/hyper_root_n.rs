//! Hyper-connections with other scales of the initial output projections (Zhu et al. 2024, Section 4).

residual_zoo::experiment!("hyper_root_n");
