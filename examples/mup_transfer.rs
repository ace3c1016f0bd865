//! Whether the learning rate of a narrow model holds for a wide one, with μP and without (Appendix C.2.1).

residual_zoo::experiment!("mup_transfer");
