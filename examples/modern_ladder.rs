//! Hyper-connections and mHC around the modern decoder, over model sizes (Zhu et al. 2024, Xie et al. 2025).

residual_zoo::experiment!("modern_ladder");
