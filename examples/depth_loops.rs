//! Loops over depth: a looped transformer, a Universal Transformer and Huginn.

residual_zoo::experiment!("depth_loops");
