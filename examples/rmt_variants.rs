//! RMT against a highway transformer, a depth-wise LSTM and hierarchical aggregation (Mak & Flanigan, Table 10).

residual_zoo::experiment!("rmt_variants");
