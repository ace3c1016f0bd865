//! Initial values of parameters.

use burn::module::{Initializer, Param};
use burn::tensor::{Tensor, backend::Backend};

use crate::Linear;

/// Draws a parameter from N(0, `std`²).
pub fn normal<B: Backend, const D: usize>(
    shape: [usize; D],
    std: f64,
    device: &B::Device,
) -> Param<Tensor<B, D>> {
    Initializer::Normal { mean: 0.0, std }.init(shape, device)
}

/// √(2 / (5 D)): the standard deviation of initial weights on a stream of `width` features, D (Nguyen and Salazar,
/// "Transformers without tears", 2019, section 2.2).
pub fn std_of_width(width: usize) -> f64 {
    (2.0 / (5.0 * width as f64)).sqrt()
}

/// Builds the layer y = x · weight + bias, with `weight` `[d_in, d_out]` from N(0, `std`²) and a zero bias.
pub fn linear<B: Backend>(
    d_in: usize,
    d_out: usize,
    bias: bool,
    std: f64,
    device: &B::Device,
) -> Linear<B> {
    Linear {
        weight: normal([d_in, d_out], std, device),
        bias: bias.then(|| Initializer::Zeros.init([d_out], device)),
    }
}
