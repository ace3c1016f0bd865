//! What the size of the residual stream costs: parameters and FLOPs of RMT and transformer, as
//! Table 7 prints them and as they are counted (Mak & Flanigan, Figure 1, Table 7).

residual_zoo::experiment!("rmt_resources");
