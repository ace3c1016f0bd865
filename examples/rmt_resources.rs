//! Parameters and FLOPs of RMT and transformer, by residual-stream size. Compares the figures of Table 7 with counted
//! figures (Mak & Flanigan, Figure 1, Table 7).

residual_zoo::experiment!("rmt_resources");
