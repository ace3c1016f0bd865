//! Lemma 1 of the recurrent transformer paper: exponents of the number of unique sequences from
//! fitted scaling laws, and the number of unique sequences of a corpus as it grows.

residual_zoo::experiment!("scaling_law");
