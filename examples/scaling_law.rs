//! Lemma 1 of the paper on the recurrent transformer (Kausik). Computes the exponents from fitted scaling laws, and
//! counts the unique sequences of a growing corpus.

residual_zoo::experiment!("scaling_law");
