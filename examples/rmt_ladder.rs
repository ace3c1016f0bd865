//! The RMT against a transformer, over model sizes (Mak and Flanigan 2025).

residual_zoo::experiment!("rmt_ladder");
