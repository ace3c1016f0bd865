//! The copy task with and without the curriculum (Kausik, Section 6.2).

residual_zoo::experiment!("recurrent_curriculum");
