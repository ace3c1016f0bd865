//! The operations that architectures share, one file each.

pub mod activation;
pub mod attention;
pub mod loss;
pub mod norm;
