//! Loss of the RMT by residual-stream size, with everything else equal (Mak & Flanigan, Figure 6).

residual_zoo::experiment!("rmt_stream_size");
