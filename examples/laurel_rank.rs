//! LAuReL-RW+LR with several ranks (Menghani et al., Figure 3).

residual_zoo::experiment!("laurel_rank");
