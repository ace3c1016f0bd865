//! Operations of the recurrent transformer and of an ordinary transformer, by length of the sequence. Prints the
//! estimates of section 5.1 and the FLOPs of the models.

residual_zoo::experiment!("recurrent_cost");
