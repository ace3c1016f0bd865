//! Prompt latency and token latency with LAuReL (Menghani et al., Section 3.2.2).

residual_zoo::experiment!("laurel_latency");
