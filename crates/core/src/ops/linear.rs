//! Products of all tokens with one matrix.

use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::precision::{Precision, matmul, narrow};

/// y = x · weight + bias.
#[derive(Module, Debug)]
pub struct Linear<B: Backend> {
    /// `[d_in, d_out]`.
    pub weight: Param<Tensor<B, 2>>,
    /// `[d_out]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Linear<B> {
    /// Maps `[batch, time, d_in]` to `[batch, time, d_out]`.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let bias = self.bias.as_ref().map(Param::val);
        of_tokens(x, self.weight.val(), bias)
    }

    /// Computes some of the columns of y: maps `[batch, time, d_in]` to `[batch, time, columns]`.
    pub fn forward_columns(&self, x: Tensor<B, 3>, columns: Range<usize>) -> Tensor<B, 3> {
        let weight = self.weight.val().slice_dim(1, columns.clone());
        let bias = self.bias.as_ref();
        let bias = bias.map(|bias| bias.val().slice_dim(0, columns));
        of_tokens(x, weight, bias)
    }
}

/// Computes x · weight + bias for all tokens: `[batch, time, d_in]` to `[batch, time, d_out]`.
fn of_tokens<B: Backend>(
    x: Tensor<B, 3>,
    weight: Tensor<B, 2>,
    bias: Option<Tensor<B, 1>>,
) -> Tensor<B, 3> {
    let [batch, time, d_in] = x.dims();
    let x = x.reshape([batch * time, d_in]);
    let y = match bias {
        Some(bias) => affine(x, weight, bias),
        None => product(x, weight),
    };
    let d_out = y.dims()[1];
    y.reshape([batch, time, d_out])
}

/// Computes x · weight: `[batch, time, d_in]` by `[d_in, d_out]` to `[batch, time, d_out]`.
///
/// One product covers all tokens, so the gradient of the weight is one product as well. With a batch axis, the gradient
/// would be one product per sequence and a sum over these products.
pub fn project<B: Backend>(x: Tensor<B, 3>, weight: Tensor<B, 2>) -> Tensor<B, 3> {
    let [batch, time, d_in] = x.dims();
    let d_out = weight.dims()[1];
    product(x.reshape([batch * time, d_in]), weight).reshape([batch, time, d_out])
}

/// Computes x · w + b for x `[rows, d_in]`, w `[d_in, d_out]` and b `[d_out]`: `[rows, d_out]`.
fn affine<B: Backend>(x: Tensor<B, 2>, w: Tensor<B, 2>, b: Tensor<B, 1>) -> Tensor<B, 2> {
    let bf16 = Precision::now() == Precision::Bf16;
    kernels::linear(kernels::Linear { bf16 }, x, w, b).unwrap_or_else(|(x, w, b)| {
        let y = product(x, w);
        match y.dtype() {
            // The bias is rounded at each use rather than once, so that the gradients of all uses are summed in f32.
            // The gradient of each use is one sum over all tokens.
            DType::BF16 => y + narrow(b).unsqueeze(),
            _ => y + b.unsqueeze(),
        }
    })
}

/// Computes x · w: `[rows, d_in]` by `[d_in, d_out]` to `[rows, d_out]`.
pub fn product<B: Backend>(x: Tensor<B, 2>, w: Tensor<B, 2>) -> Tensor<B, 2> {
    match Precision::now() {
        Precision::F32 | Precision::Tf32 => {
            kernels::product(x, w).unwrap_or_else(|[x, w]| matmul(x, w))
        }
        Precision::Bf16 => matmul(x, w),
    }
}

/// Multiplies each group of `d_in` features of x `[batch, time, n · d_in]` by w `[d_in, d_out]`:
/// `[batch, time, n · d_out]`.
pub fn product_of_parts<B: Backend>(x: Tensor<B, 3>, w: Tensor<B, 2>) -> Tensor<B, 3> {
    let [batch, time, width] = x.dims();
    let [d_in, d_out] = w.dims();
    let n = width / d_in;
    product(x.reshape([batch * time * n, d_in]), w).reshape([batch, time, n * d_out])
}
