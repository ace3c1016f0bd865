//! Every variant of LAuReL against the baseline and a deeper baseline (Menghani et al., Table 5).

residual_zoo::experiment!("laurel_ablation");
