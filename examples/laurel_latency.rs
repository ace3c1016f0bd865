//! How long a prompt and a token take with LAuReL (Section 3.2.2).

residual_zoo::experiment!("laurel_latency");
