//! Connections around the modern decoder.

residual_zoo::experiment!("modern_connections");
