//! LAuReL-RW+LR against its rank (Menghani et al., Figure 3).

residual_zoo::experiment!("laurel_rank");
