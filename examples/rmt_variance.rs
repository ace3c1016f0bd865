//! Variance changes in storage and retrieval. Compares the expressions of Table 1 with measured activations and
//! gradients (Mak & Flanigan, Tables 1 and 2).

residual_zoo::experiment!("rmt_variance");
