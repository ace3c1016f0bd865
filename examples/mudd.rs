//! MUDD with one or four mixtures, static or dynamic.

residual_zoo::experiment!("mudd");
