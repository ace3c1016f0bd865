//! Convolutions of images whose channels are side by side.

use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::precision::narrow;

/// The convolution of x `[batch, height, width, in]` with w `[out, in, kernel, kernel]`, whose kernel is odd and padded by
/// half of it: `[batch, ⌈height / stride⌉, ⌈width / stride⌉, out]`.
pub fn convolution<B: Backend>(stride: usize, x: Tensor<B, 4>, w: Tensor<B, 4>) -> Tensor<B, 4> {
    let inputs = kernels::convolution(stride, narrow(x), narrow(w));
    inputs.unwrap_or_else(|[x, w]| plain(stride, x, w))
}

/// [`convolution`], by Burn.
pub fn plain<B: Backend>(stride: usize, x: Tensor<B, 4>, w: Tensor<B, 4>) -> Tensor<B, 4> {
    let padding = w.dims()[3] / 2;
    let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
    let y = conv2d(x.permute([0, 3, 1, 2]), w, None, options);
    y.permute([0, 2, 3, 1])
}
