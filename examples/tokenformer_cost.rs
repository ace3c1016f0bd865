//! FLOPs of TokenFormer and transformer against the length of the text, exact (Wang et al., Table 3,
//! Figure 5).

residual_zoo::experiment!("tokenformer_cost");
