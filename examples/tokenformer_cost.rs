//! Exact FLOPs of TokenFormer and transformer, by sequence length (Wang et al., Table 3, Figure 5).

residual_zoo::experiment!("tokenformer_cost");
