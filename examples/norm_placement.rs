//! Norms before branches, after them, after the sum, and in other places, over two depths.

residual_zoo::experiment!("norm_placement");
