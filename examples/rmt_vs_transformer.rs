//! RMT against a transformer on the same tokens: loss per token, FLOP and second (Mak & Flanigan,
//! Tables 3 and 4, Figures 3 and 4).

residual_zoo::experiment!("rmt_vs_transformer");
