//! Convolutions of images whose channels are the last axis.

use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::precision::{matmul_f32, narrow};

/// Convolves x `[batch, height, width, in]` with w `[out, in, kernel, kernel]`. The kernel size is odd, and x has a
/// zero padding of (kernel − 1) / 2 pixels on each side. Returns `[batch, ⌈height / stride⌉, ⌈width / stride⌉, out]`.
pub fn convolution<B: Backend>(stride: usize, x: Tensor<B, 4>, w: Tensor<B, 4>) -> Tensor<B, 4> {
    let inputs = kernels::convolution(stride, narrow(x), narrow(w));
    inputs.unwrap_or_else(|[x, w]| plain(stride, x, w))
}

/// The plain form of [`convolution`], by Burn. A kernel of one pixel is a product with every stride-th pixel instead,
/// because Burn 0.21 computes a wrong gradient for this case on WGPU.
pub fn plain<B: Backend>(stride: usize, x: Tensor<B, 4>, w: Tensor<B, 4>) -> Tensor<B, 4> {
    let [d_out, d_in, kernel, _] = w.dims();
    if kernel == 1 {
        let x = every(stride, x);
        let [batch, height, width, _] = x.dims();
        let rows = x.reshape([batch * height * width, d_in]);
        let y = matmul_f32(rows, w.reshape([d_out, d_in]).transpose());
        return y.reshape([batch, height, width, d_out]);
    }
    let padding = kernel / 2;
    let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
    let y = conv2d(x.permute([0, 3, 1, 2]), w, None, options);
    y.permute([0, 2, 3, 1])
}

/// Returns every nth row and column of x `[batch, height, width, channels]`, starting with the first.
pub fn every<B: Backend>(n: usize, x: Tensor<B, 4>) -> Tensor<B, 4> {
    if n == 1 {
        return x;
    }
    let ([_, height, width, _], device) = (x.dims(), x.device());
    let places = |side: usize| Tensor::<B, 1, Int>::arange_step(0..side as i64, n, &device);
    x.select(1, places(height)).select(2, places(width))
}
