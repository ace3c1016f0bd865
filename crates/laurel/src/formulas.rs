//! Numbers of parameters that LAuReL adds, by the paper's formulas.
//!
//! Each function except [`rw_lr_model`] counts one connection on a stream of `width` features, D. Without a norm on the
//! correction, the formulas are exact: [`Design::cost`](residual_zoo_core::Design::cost) gives the same counts. A
//! variant with RW adds the parameters of [`rw`].

use crate::Weights;

/// RW: two parameters for α and β, one with `Sigmoid`, and none with `One` (section 2.1 and Table 4).
pub fn rw(weights: Weights) -> usize {
    match weights {
        Weights::One => 0,
        Weights::Sigmoid => 1,
        _ => 2,
    }
}

/// RW with an α and a β per feature: 2D (end of section 2.4). With `Sigmoid`, the number would be D.
pub fn rw_per_dimension(width: usize) -> usize {
    2 * width
}

/// LR: 2rD (section 2.2 and Table 4).
pub fn lr(r: usize, width: usize) -> usize {
    2 * r * width
}

/// PA over `k` streams, where h is the identity: k (Table 4).
pub fn pa(k: usize) -> usize {
    k
}

/// PA over `k` streams, where h is a product of rank `r`: 2rD + k (section 2.3).
pub fn pa_low_rank(k: usize, r: usize, width: usize) -> usize {
    lr(r, width) + pa(k)
}

/// LR+PA over `k` streams, each with a product of rank `r`: 2rkD + k (Table 4).
pub fn lr_pa(k: usize, r: usize, width: usize) -> usize {
    k * lr(r, width) + pa(k)
}

/// RW+LR in a model with N = `n_layer` connections: 2N(rD + 1). For r = 4, section 3.2.1 gives 2N(4D + 1).
pub fn rw_lr_model(n_layer: usize, r: usize, width: usize) -> usize {
    n_layer * (rw(Weights::DoubleSoftmax) + lr(r, width))
}
