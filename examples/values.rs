//! Attention values with those of the first layer, with rows of token tables, and shared by all layers.

residual_zoo::experiment!("values");
