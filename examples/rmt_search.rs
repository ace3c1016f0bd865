//! An RMT and a transformer, each with its own random search (Mak & Flanigan, Appendix C.2.1).

residual_zoo::experiment!("rmt_search");
