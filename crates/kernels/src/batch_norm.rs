//! Batch normalisation by the statistics of the batch.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Tensor, TensorData, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Debug)]
struct BatchNorm {
    eps: f64,
    /// The mean and the variance of each channel, when they are computed.
    statistics: Arc<Mutex<Option<[TensorData; 2]>>>,
}

/// The norm of a batch, and the mean and the variance Σ (x − mean)² / rows of each channel.
pub type Normed<B> = (Tensor<B, 2>, [Tensor<B, 1>; 2]);

/// (x − mean) / √(variance + eps) · γ + β for x `[rows, channels]` and γ and β `[1, channels]`. The mean and the variance,
/// `[channels]`, are those of all rows.
///
/// # Errors
///
/// Returns `x`, γ and β if there is no kernel for them.
pub fn batch_norm<B: Backend>(
    eps: f64,
    x: Tensor<B, 2>,
    gamma: Tensor<B, 2>,
    beta: Tensor<B, 2>,
) -> Result<Normed<B>, [Tensor<B, 2>; 3]> {
    let op = BatchNorm {
        eps,
        statistics: Arc::default(),
    };
    let device = x.device();
    let inputs = [x, gamma, beta].map(|x| x.into_primitive().tensor());
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let y = match apply::<B, _, 3>(&op, inputs) {
        Ok(y) => of(y),
        Err(inputs) => return Err(inputs.map(of)),
    };
    let statistics = op.statistics.lock().unwrap_or_else(PoisonError::into_inner);
    let statistics = statistics.clone();
    let statistics = statistics.unwrap_or_else(|| unreachable!("the pass computed them"));
    Ok((y, statistics.map(|data| Tensor::from_data(data, &device))))
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::{DType, TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::{BatchNorm, PoisonError};
    use crate::flex::{add_up, contiguous, each, rows_per_task, simd, slice, tensor_like, zeros};
    use crate::op::Op;

    /// What the backward pass needs: x, γ, β, and the mean and 1 / √(variance + eps) of each channel.
    #[derive(Clone, Debug)]
    pub struct Kept {
        inputs: [FlexTensor; 3],
        mean: Vec<f32>,
        scale: Vec<f32>,
    }

    /// Runs `f` with the widest SIMD instructions of the processor.
    struct Wide<F>(F);

    impl<F: FnOnce() -> R, R> WithSimd for Wide<F> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> R {
            simd.vectorize(self.0)
        }
    }

    /// Σ over the rows of `term(row of a, row of b)`, `[channels]`.
    fn sum(
        [a, b]: [&[f32]; 2],
        channels: usize,
        term: impl Fn(usize, f32, f32) -> f32 + Sync + Send,
    ) -> Vec<f32> {
        let part = rows_per_task(channels) * channels;
        let tasks = a.chunks(part).zip(b.chunks(part)).collect();
        let parts = each(tasks, a.len(), |(a, b)| {
            simd(Wide(
                #[inline(always)]
                || {
                    let mut sums = vec![0.0; channels];
                    for (a, b) in a.chunks_exact(channels).zip(b.chunks_exact(channels)) {
                        for (c, sum) in sums.iter_mut().enumerate() {
                            *sum += term(c, a[c], b[c]);
                        }
                    }
                    sums
                },
            ))
        });
        add_up(parts, channels)
    }

    /// `f(channel, a, b)` of each element.
    fn map(
        [a, b]: [&[f32]; 2],
        channels: usize,
        f: impl Fn(usize, f32, f32) -> f32 + Sync + Send,
    ) -> Vec<f32> {
        let mut y = zeros(a.len());
        let part = rows_per_task(channels) * channels;
        let tasks = a.chunks(part).zip(b.chunks(part)).zip(y.chunks_mut(part));
        each(tasks.collect(), a.len(), |((a, b), y)| {
            simd(Wide(
                #[inline(always)]
                || {
                    let rows = a.chunks_exact(channels).zip(b.chunks_exact(channels));
                    for ((a, b), y) in rows.zip(y.chunks_exact_mut(channels)) {
                        for (c, y) in y.iter_mut().enumerate() {
                            *y = f(c, a[c], b[c]);
                        }
                    }
                },
            ));
        });
        y
    }

    impl Op<Flex, 3> for BatchNorm {
        type Kept = Kept;

        fn takes(&self, inputs: &[FlexTensor; 3]) -> bool {
            inputs.iter().all(|x| x.dtype() == DType::F32) && inputs[0].shape().num_elements() > 0
        }

        fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, Kept) {
            let inputs = inputs.map(contiguous);
            let [x, gamma, beta] = inputs.each_ref().map(slice::<f32>);
            let channels = gamma.len();
            let rows = (x.len() / channels) as f32;
            let shared = |sums: Vec<f32>| sums.into_iter().map(|sum| sum / rows).collect();
            let mean: Vec<f32> = shared(sum([x, x], channels, |_, x, _| x));
            let variance: Vec<f32> = shared(sum([x, x], channels, |c, x, _| {
                (x - mean[c]) * (x - mean[c])
            }));
            let scale: Vec<f32> = variance
                .iter()
                .map(|v| 1.0 / (v + self.eps as f32).sqrt())
                .collect();
            let factor: Vec<f32> = scale.iter().zip(gamma).map(|(s, g)| s * g).collect();
            let y = map([x, x], channels, |c, x, _| {
                (x - mean[c]) * factor[c] + beta[c]
            });
            let y = tensor_like(y, &inputs[0]);
            let statistics = [mean.clone(), variance].map(|v| TensorData::new(v, [channels]));
            let mut noted = self
                .statistics
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *noted = Some(statistics);
            let kept = Kept {
                inputs,
                mean,
                scale,
            };
            (y, kept)
        }

        /// With x̂ = (x − mean) · scale and means over all rows:
        ///
        /// ```text
        /// dγ = Σ dy x̂,  dβ = Σ dy,  dx = γ · scale · (dy − mean(dy) − x̂ · mean(dy x̂))
        /// ```
        fn backward(&self, kept: Kept, grad: FlexTensor) -> [FlexTensor; 3] {
            let Kept {
                inputs,
                mean,
                scale,
            } = kept;
            let grad = contiguous(grad);
            let [x, gamma, _] = inputs.each_ref().map(slice::<f32>);
            let (dy, channels) = (slice::<f32>(&grad), gamma.len());
            let rows = (x.len() / channels) as f32;
            let d_beta = sum([x, dy], channels, |_, _, dy| dy);
            let d_gamma = sum([x, dy], channels, |c, x, dy| dy * (x - mean[c]) * scale[c]);
            // dx = factor · dy − of_x · (x − mean) − shift
            let each_one = |f: &dyn Fn(usize) -> f32| (0..channels).map(f).collect::<Vec<f32>>();
            let factor = each_one(&|c| gamma[c] * scale[c]);
            let of_x = each_one(&|c| factor[c] * scale[c] * d_gamma[c] / rows);
            let shift = each_one(&|c| factor[c] * d_beta[c] / rows);
            let dx = map([x, dy], channels, |c, x, dy| {
                factor[c] * dy - of_x[c] * (x - mean[c]) - shift[c]
            });
            let [of_x, of_gamma, of_beta] = &inputs;
            [
                tensor_like(dx, of_x),
                tensor_like(d_gamma, of_gamma),
                tensor_like(d_beta, of_beta),
            ]
        }
    }
}

#[cfg(feature = "tch")]
crate::op::no_kernel!(BatchNorm, 3, burn::backend::LibTorch, burn_tch::TchTensor);
