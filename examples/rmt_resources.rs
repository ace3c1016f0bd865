//! Parameters and FLOPs of RMT and transformer, by size of the residual stream. Compares the figures of Table 7 with
//! counted ones (Mak & Flanigan, Figure 1, Table 7).

residual_zoo::experiment!("rmt_resources");
