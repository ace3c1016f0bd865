//! The recurrent transformer on language, with α fixed or trained, and with stacked layers
//! (Kausik, Section 6.3).

residual_zoo::experiment!("recurrent_ablation");
