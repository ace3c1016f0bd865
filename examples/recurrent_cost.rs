//! Operation counts of the recurrent transformer and of an ordinary transformer, by sequence length. Prints the
//! paper's estimates (Kausik, Section 5.1) and the FLOPs of the models.

residual_zoo::experiment!("recurrent_cost");
