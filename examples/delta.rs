//! Deep delta learning, with one column and with four, against the plain residual.

residual_zoo::experiment!("delta");
