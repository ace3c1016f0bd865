//! A norm followed by a product with a small matrix, as in retrieval in the Residual Matrix Transformer (RMT). The
//! operation runs on a few rows at a time, so normalised rows are neither written to memory nor kept. The backward pass
//! computes them again.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::Norm;
use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct NormProduct(Norm);

/// Normalises `x` `[batch, time, width]` with the scale `gamma` `[width]`, then multiplies each group of `d_in`
/// features by a small w `[d_in, d_out]`: `[batch, time, width / d_in * d_out]`.
///
/// # Errors
///
/// Returns `x` and `w` if there is no kernel for them.
pub fn norm_product<B: Backend>(
    norm: Norm,
    x: Tensor<B, 3>,
    gamma: Tensor<B, 1>,
    w: Tensor<B, 2>,
) -> Result<Tensor<B, 3>, (Tensor<B, 3>, Tensor<B, 2>)> {
    let inputs = [
        x.into_primitive().tensor(),
        gamma.into_primitive().tensor(),
        w.into_primitive().tensor(),
    ];
    let result = apply::<B, _, 3>(&NormProduct(norm), inputs);
    match result {
        Ok(y) => Ok(Tensor::from_primitive(TensorPrimitive::Float(y))),
        Err([x, _, w]) => Err((
            Tensor::from_primitive(TensorPrimitive::Float(x)),
            Tensor::from_primitive(TensorPrimitive::Float(w)),
        )),
    }
}

#[cfg(feature = "cube")]
crate::op::no_kernel!(NormProduct, 3, cube);

#[cfg(feature = "flex")]
mod flex {
    use std::sync::Arc;

    use burn::backend::Flex;
    use burn::tensor::{DType, TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;

    use super::NormProduct;
    use crate::flex::{add_up, contiguous, each, simd, slice, vector, width, zeros};
    use crate::norm::flex::{Backward, Forward};
    use crate::op::Op;
    use crate::product::flex::{Matrix, is_small, outer, sum_of_outer};

    /// Number of elements of x that a task normalises at a time. They stay in a core's cache.
    const PART: usize = 1 << 14;

    /// The inputs of the backward pass: x, γ and w, and the mean and 1 / √(variance + ε) of each row.
    #[derive(Clone, Debug)]
    pub struct Kept {
        inputs: [FlexTensor; 3],
        rows: Arc<Vec<[f64; 2]>>,
    }

    impl Op<Flex, 3> for NormProduct {
        type Kept = Kept;

        fn takes(&self, inputs: &[FlexTensor; 3]) -> bool {
            let [x, _, w] = inputs;
            let (elements, [d_in, _]) = (x.shape().num_elements(), w.shape().dims());
            let f32s = inputs.iter().all(|x| x.dtype() == DType::F32);
            f32s && elements >= 4 * PART && is_small(w) && width(x).is_multiple_of(d_in)
        }

        fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, Kept) {
            let [x, gamma, w] = inputs;
            let inputs = [contiguous(x), contiguous(gamma), w];
            let [x, gamma, w] = &inputs;
            let ([batch, time, width], [d_in, d_out]) = (x.shape().dims(), w.shape().dims());
            let (new_width, matrix) = (width / d_in * d_out, Matrix::new(w));
            let (x, gamma) = (slice::<f32>(x), slice::<f32>(gamma));
            let per_task = (PART / width).max(1);
            let mut rows = vec![[0.0; 2]; batch * time];
            let mut y = zeros(batch * time * new_width);
            let tasks = (x.chunks(per_task * width))
                .zip(y.chunks_mut(per_task * new_width))
                .zip(rows.chunks_mut(per_task));
            each(tasks.collect(), x.len(), |((x, y), rows)| {
                matrix.times(&self.normal(x, gamma, rows), y);
            });
            let y = FlexTensor::from_data(TensorData::new(y, [batch, time, new_width]));
            let rows = Arc::new(rows);
            (y, Kept { inputs, rows })
        }

        fn backward(&self, kept: Kept, grad: FlexTensor) -> [FlexTensor; 3] {
            let [of_x, of_gamma, w] = &kept.inputs;
            let grad = contiguous(grad);
            let (x, gamma, dy) = (slice(of_x), slice(of_gamma), slice::<f32>(&grad));
            let (width, sides) = (gamma.len(), w.shape().dims());
            let ([d_in, d_out], matrix) = (sides, Matrix::transposed(w));
            let new_width = width / d_in * d_out;
            let per_task = (PART / width).max(1);
            let mut dx = zeros(x.len());
            let tasks = (x.chunks(per_task * width))
                .zip(dx.chunks_mut(per_task * width))
                .zip(dy.chunks(per_task * new_width))
                .zip(kept.rows.chunks(per_task));
            let of_params = each(tasks.collect(), x.len(), |(((x, dx), dy), rows)| {
                let normal = self.normal(x, gamma, &mut rows.to_vec());
                let dw = outer(&normal, dy, sides);
                // dx first holds the gradient of the normalised rows.
                matrix.times(dy, dx);
                let [mut d_gamma, mut d_beta] = [(); 2].map(|()| vec![0.0; width]);
                simd(Backward {
                    centred: self.0.centred,
                    x,
                    gamma,
                    rows,
                    d: dx,
                    d_gamma: &mut d_gamma,
                    d_beta: &mut d_beta,
                });
                (d_gamma, dw)
            });
            let (d_gamma, dw): (Vec<_>, Vec<_>) = of_params.into_iter().unzip();
            [
                FlexTensor::from_data(TensorData::new(dx, of_x.shape())),
                vector(add_up(d_gamma, width)),
                sum_of_outer(dw, sides),
            ]
        }
    }

    impl NormProduct {
        /// Returns normalised rows, and writes the mean and 1 / √(variance + ε) of each.
        fn normal(&self, x: &[f32], gamma: &[f32], rows: &mut [[f64; 2]]) -> Vec<f32> {
            let mut y = vec![0.0; x.len()];
            simd(Forward {
                norm: self.0,
                x,
                gamma: Some(gamma),
                beta: None,
                width: gamma.len(),
                y: &mut y,
                rows,
            });
            y
        }
    }
}

#[cfg(feature = "tch")]
crate::op::no_kernel!(NormProduct, 3, burn::backend::LibTorch, burn_tch::TchTensor);
