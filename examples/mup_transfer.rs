//! Transfer of the learning rate from a narrow model to a wide one, with and without μP
//! (Mak & Flanigan, Appendix C.2.1).

residual_zoo::experiment!("mup_transfer");
