//! LAuReL against plain residuals of the same depth and deeper, over model sizes (Menghani et al. 2025).

residual_zoo::experiment!("laurel_ladder");
