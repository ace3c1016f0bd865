//! DenseFormer against transformers of the same depth and deeper (Pagliardini et al. 2024, Table 1).

residual_zoo::experiment!("dense_former");
