//! An RMT and a transformer, each with a random search of its own (Appendix C.2.1).

residual_zoo::experiment!("rmt_search");
