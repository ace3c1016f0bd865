//! Batch normalisation with the statistics of the batch.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Tensor, TensorData, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation, with the statistics that its forward pass computes.
#[derive(Clone, Debug)]
struct BatchNorm {
    eps: f64,
    /// The mean and the variance of each channel, once computed.
    statistics: Arc<Mutex<Option<[TensorData; 2]>>>,
}

/// The normalised batch, and the mean and the variance Σ (x − mean)² / rows of each channel.
pub type Normed<B> = (Tensor<B, 2>, [Tensor<B, 1>; 2]);

/// Computes (x − mean) / √(variance + eps) · γ + β for x `[rows, channels]` and γ and β `[1, channels]`. The mean and
/// the variance, `[channels]`, are over all rows.
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

#[cfg(feature = "cube")]
crate::op::no_kernel!(BatchNorm, 3, cube);

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::{DType, TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::{BatchNorm, PoisonError};
    use crate::flex::{add_up, contiguous, each, rows_per_task, simd, slice, tensor_like, zeros};
    use crate::op::Op;

    /// The inputs of the backward pass: x, γ, β, and the mean and 1 / √(variance + eps) of each channel.
    #[derive(Clone, Debug)]
    pub struct Kept {
        inputs: [FlexTensor; 3],
        mean: Vec<f32>,
        scale: Vec<f32>,
    }

    /// Numbers per channel, such as the mean.
    type Channels<'a, const P: usize> = [&'a [f32]; P];

    /// Adds `term` of each element to the sum of its channel. `term` gets the numbers of the channel, and the elements
    /// of a and b.
    struct Sum<'a, F, const P: usize> {
        a: &'a [f32],
        b: &'a [f32],
        of: Channels<'a, P>,
        term: &'a F,
        sums: &'a mut [f32],
    }

    impl<F: Fn([f32; P], f32, f32) -> f32, const P: usize> WithSimd for Sum<'_, F, P> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self {
                a,
                b,
                mut of,
                term,
                sums,
            } = self;
            // Slices of equal length need no bounds checks.
            let n = sums.len();
            for of in &mut of {
                *of = &of[..n];
            }
            for row in 0..a.len() / n {
                let (a, b) = (&a[row * n..][..n], &b[row * n..][..n]);
                for c in 0..n {
                    let mut values = [0.0; P];
                    for p in 0..P {
                        values[p] = of[p][c];
                    }
                    sums[c] += term(values, a[c], b[c]);
                }
            }
        }
    }

    /// y = `f` of each element. `f` gets the numbers of the channel, and the elements of a and b.
    struct Map<'a, F, const P: usize> {
        a: &'a [f32],
        b: &'a [f32],
        of: Channels<'a, P>,
        f: &'a F,
        channels: usize,
        y: &'a mut [f32],
    }

    impl<F: Fn([f32; P], f32, f32) -> f32, const P: usize> WithSimd for Map<'_, F, P> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self {
                a,
                b,
                mut of,
                f,
                channels: n,
                y,
            } = self;
            for of in &mut of {
                *of = &of[..n];
            }
            for row in 0..a.len() / n {
                let (a, b) = (&a[row * n..][..n], &b[row * n..][..n]);
                let y = &mut y[row * n..][..n];
                for c in 0..n {
                    let mut values = [0.0; P];
                    for p in 0..P {
                        values[p] = of[p][c];
                    }
                    y[c] = f(values, a[c], b[c]);
                }
            }
        }
    }

    /// Computes Σ `term` over all rows, `[channels]`.
    fn sum<const P: usize>(
        [a, b]: [&[f32]; 2],
        channels: usize,
        of: Channels<P>,
        term: impl Fn([f32; P], f32, f32) -> f32 + Sync + Send,
    ) -> Vec<f32> {
        let part = rows_per_task(channels) * channels;
        let tasks = a.chunks(part).zip(b.chunks(part)).collect();
        let parts = each(tasks, a.len(), |(a, b)| {
            let mut sums = vec![0.0; channels];
            simd(Sum {
                a,
                b,
                of,
                term: &term,
                sums: &mut sums,
            });
            sums
        });
        add_up(parts, channels)
    }

    /// Applies `f` to each element.
    fn map<const P: usize>(
        [a, b]: [&[f32]; 2],
        channels: usize,
        of: Channels<P>,
        f: impl Fn([f32; P], f32, f32) -> f32 + Sync + Send,
    ) -> Vec<f32> {
        let mut y = zeros(a.len());
        let part = rows_per_task(channels) * channels;
        let tasks = a.chunks(part).zip(b.chunks(part)).zip(y.chunks_mut(part));
        each(tasks.collect(), a.len(), |((a, b), y)| {
            simd(Map {
                a,
                b,
                of,
                f: &f,
                channels,
                y,
            });
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
            let mean: Vec<f32> = shared(sum([x, x], channels, [], |[], x, _| x));
            let variance: Vec<f32> = shared(sum([x, x], channels, [&mean], |[mean], x, _| {
                (x - mean) * (x - mean)
            }));
            let scale: Vec<f32> = variance
                .iter()
                .map(|v| 1.0 / (v + self.eps as f32).sqrt())
                .collect();
            let factor: Vec<f32> = scale.iter().zip(gamma).map(|(s, g)| s * g).collect();
            let y = map(
                [x, x],
                channels,
                [&mean, &factor, beta],
                |[mean, factor, beta], x, _| (x - mean) * factor + beta,
            );
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
            let d_beta = sum([x, dy], channels, [], |[], _, dy| dy);
            let of = [mean.as_slice(), &scale];
            let d_gamma = sum([x, dy], channels, of, |[mean, scale], x, dy| {
                dy * (x - mean) * scale
            });
            // dx = factor · dy − of_x · (x − mean) − shift
            let each_one = |f: &dyn Fn(usize) -> f32| (0..channels).map(f).collect::<Vec<f32>>();
            let factor = each_one(&|c| gamma[c] * scale[c]);
            let of_x = each_one(&|c| factor[c] * scale[c] * d_gamma[c] / rows);
            let shift = each_one(&|c| factor[c] * d_beta[c] / rows);
            let of = [mean.as_slice(), &factor, &of_x, &shift];
            let dx = map(
                [x, dy],
                channels,
                of,
                |[mean, factor, of_x, shift], x, dy| factor * dy - of_x * (x - mean) - shift,
            );
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
mod libtorch {
    use burn::backend::LibTorch;
    use burn::tensor::TensorData;
    use burn_tch::TchTensor;
    use tch::{Kind, Tensor};

    use super::{BatchNorm, PoisonError};
    use crate::graph::Graph;
    use crate::op::Op;

    impl Op<LibTorch, 3> for BatchNorm {
        type Kept = Graph<3>;

        fn takes(&self, inputs: &[TchTensor; 3]) -> bool {
            inputs
                .iter()
                .all(|x| matches!(x.tensor.kind(), Kind::Float | Kind::Double))
                && inputs[0].tensor.numel() > 0
        }

        fn forward(&self, inputs: [TchTensor; 3]) -> (TchTensor, Graph<3>) {
            let none: Option<&Tensor> = None;
            Graph::of(inputs, |[x, gamma, beta]| {
                let (rows, channels) = (x.size()[0], x.size()[1]);
                // PyTorch is fast if the channels of a pixel are side by side in memory. The axes are [1, channels,
                // rows, 1], in PyTorch's order.
                let pixels = x.reshape([1, rows, 1, channels]).permute([0, 3, 1, 2]);
                let [gamma, beta] = [gamma, beta].map(|x| x.reshape([-1]));
                let (y, mean, scale) = pixels.native_batch_norm(
                    Some(&gamma),
                    Some(&beta),
                    none,
                    none,
                    true,
                    0.0,
                    self.eps,
                );
                // scale is 1 / √(variance + eps).
                let variance = (scale.detach().to_kind(Kind::Double).pow_tensor_scalar(-2)
                    - self.eps)
                    .clamp_min(0.0);
                let statistics =
                    [mean.detach().to_kind(Kind::Double), variance].map(|of_channels| {
                        let values = Vec::<f64>::try_from(&of_channels);
                        let values = values
                            .unwrap_or_else(|e| unreachable!("one number for each channel: {e}"));
                        TensorData::new(values, [channels as usize])
                    });
                let mut noted = self
                    .statistics
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                *noted = Some(statistics);
                y.permute([0, 2, 3, 1]).reshape([rows, channels])
            })
        }

        fn backward(&self, kept: Graph<3>, grad: TchTensor) -> [TchTensor; 3] {
            kept.backward(&grad)
        }
    }
}
