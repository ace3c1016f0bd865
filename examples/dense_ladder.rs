//! DenseFormer against plain residuals of the same depth and deeper, over model sizes (Pagliardini et al. 2024).

residual_zoo::experiment!("dense_ladder");
