//! The loss of the RMT against the size of its residual stream, all else being equal (Mak & Flanigan,
//! Figure 6).

residual_zoo::experiment!("rmt_stream_size");
