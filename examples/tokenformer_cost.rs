//! Exact FLOPs of TokenFormer and transformer, by length of the sequence (Wang et al., Table 3, Figure 5).

residual_zoo::experiment!("tokenformer_cost");
