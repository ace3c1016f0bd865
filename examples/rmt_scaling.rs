//! Loss of RMT and transformer, by compute and by parameters (Mak & Flanigan, Figure 2, Tables 8 and 9).

residual_zoo::experiment!("rmt_scaling");
