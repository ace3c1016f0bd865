//! LAuReL against one more layer (Menghani et al., Tables 6 and 7).

residual_zoo::experiment!("laurel_naive_scaling");
