//! Loss of the RMT by size of its residual stream, with everything else equal (Mak & Flanigan, Figure 6).

residual_zoo::experiment!("rmt_stream_size");
