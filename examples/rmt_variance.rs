//! How storage and retrieval change the variance of what passes through them: Table 1's expressions
//! against measured activations and gradients (Mak & Flanigan, Tables 1 and 2).

residual_zoo::experiment!("rmt_variance");
