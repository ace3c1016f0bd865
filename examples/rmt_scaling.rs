//! Loss of RMT and transformer over compute and parameters (Mak & Flanigan, Figure 2, Tables 8 and 9).

residual_zoo::experiment!("rmt_scaling");
