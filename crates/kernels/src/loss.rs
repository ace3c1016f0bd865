//! Computes log Z and the target's logit of each row. Losses follow from these two numbers. On Flex and GPUs, the
//! backward pass turns the logits into their gradient in place if nothing else holds them. No other tensor then has the
//! size of the logits.

use std::marker::PhantomData;

use burn::tensor::{Int, Tensor, TensorPrimitive, backend::Backend, ops::IntTensor};

use crate::op::apply;

/// The operation; it carries the targets.
#[derive(Debug)]
pub(crate) struct LogZ<B: Backend> {
    pub(crate) targets: IntTensor<B>,
    backend: PhantomData<B>,
}

impl<B: Backend> Clone for LogZ<B> {
    fn clone(&self) -> Self {
        let targets = self.targets.clone();
        let backend = PhantomData;
        Self { targets, backend }
    }
}

/// Computes, for each row of `logits` `[rows, vocabulary]`, log Σ exp(logits) and the logit of its target. `targets`
/// is `[rows]`, the result `[rows, 2]`.
///
/// # Errors
///
/// Returns `logits` if there is no kernel for them.
///
/// # Panics
///
/// Panics on a CPU if a target is not in the vocabulary. On a GPU, the result of such a row is undefined.
pub fn log_z_and_target<B: Backend>(
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
) -> Result<Tensor<B, 2>, Tensor<B, 2>> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let op = LogZ::<B> {
        targets: targets.into_primitive(),
        backend: PhantomData,
    };
    let result = apply::<B, _, 1>(&op, [logits.into_primitive().tensor()]);
    result.map(of).map_err(|[logits]| of(logits))
}

#[cfg(feature = "flex")]
mod flex {
    use std::sync::Arc;

    use burn::backend::Flex;
    use burn::tensor::TensorData;
    use burn::tensor::backend::Backend;
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::LogZ;
    use crate::flex::{self, Real, each, real, rows_per_task, simd, slice, with_real};
    use crate::op::{Op, same};

    /// The inputs of the backward pass: the logits, the targets, and log Z.
    #[derive(Clone, Debug)]
    pub struct Kept {
        logits: FlexTensor,
        targets: Arc<Vec<usize>>,
        log_z: FlexTensor,
    }

    /// log Σ exp(x) of a row.
    struct LogSumExp<'a, E>(&'a [E]);

    impl<E: Real> WithSimd for LogSumExp<'_, E> {
        type Output = E;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> E {
            let max = E::largest(simd, self.0);
            let mut total = E::zero();
            // One part of the row at a time, so that no buffer has the size of a row.
            let mut part = [E::zero(); 256];
            for x in self.0.chunks(part.len()) {
                let part = &mut part[..x.len()];
                for (y, &x) in part.iter_mut().zip(x) {
                    *y = (x - max).fast_exp();
                }
                total = total + E::total(simd, part);
            }
            max + total.ln()
        }
    }

    /// x ← exp(x − log Z) · d.
    struct Softmax<'a, E>(&'a mut [E], E, E);

    impl<E: Real> WithSimd for Softmax<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(row, log_z, d) = self;
            for x in row {
                *x = (*x - log_z).fast_exp() * d;
            }
        }
    }

    fn forward_of<E: Real>(logits: &FlexTensor, targets: &[usize]) -> FlexTensor {
        let vocabulary = flex::width(logits);
        let mut out = vec![E::zero(); 2 * targets.len()];
        let per_task = rows_per_task(vocabulary);
        let tasks = (slice::<E>(logits).chunks(per_task * vocabulary))
            .zip(targets.chunks(per_task))
            .zip(out.chunks_mut(2 * per_task))
            .collect();
        each(
            tasks,
            targets.len() * vocabulary,
            |((rows, targets), out)| {
                let rows = rows.chunks(vocabulary).zip(targets);
                for ((row, &target), out) in rows.zip(out.chunks_mut(2)) {
                    out[0] = simd(LogSumExp(row));
                    out[1] = row[target];
                }
            },
        );
        FlexTensor::from_data(TensorData::new(out, [targets.len(), 2]))
    }

    /// d logits = softmax · d log Z + one-hot(target) · d target's logit.
    fn backward_of<E: Real>(kept: Kept, d: &FlexTensor) -> FlexTensor {
        let Kept {
            mut logits,
            targets,
            log_z,
        } = kept;
        let vocabulary = flex::width(&logits);
        let (log_z, d) = (slice::<E>(&log_z), slice::<E>(d));
        let per_task = rows_per_task(vocabulary);
        // In place if nothing else holds the logits.
        let tasks = (logits.storage_mut::<E>())
            .chunks_mut(per_task * vocabulary)
            .zip(log_z.chunks(per_task * 2))
            .zip(d.chunks(per_task * 2))
            .zip(targets.chunks(per_task))
            .collect();
        each(
            tasks,
            targets.len() * vocabulary,
            |(((rows, log_z), d), targets)| {
                let of_rows = rows.chunks_mut(vocabulary).zip(targets);
                let of_rows = of_rows.zip(log_z.chunks(2).zip(d.chunks(2)));
                for ((row, &target), (log_z, d)) in of_rows {
                    simd(Softmax(&mut *row, log_z[0], d[0]));
                    row[target] = row[target] + d[1];
                }
            },
        );
        logits
    }

    // A generic function is compiled in the crate that calls it, with the optimisations of that crate. The two
    // functions below are not generic, so they are compiled here.

    fn forward(logits: &FlexTensor, targets: &[usize]) -> FlexTensor {
        with_real!(logits, forward_of(logits, targets))
    }

    fn backward(kept: Kept, d: &FlexTensor) -> FlexTensor {
        with_real!(d, backward_of(kept, d))
    }

    impl<B: Backend> Op<Flex, 1> for LogZ<B> {
        type Kept = Kept;

        fn takes(&self, inputs: &[FlexTensor; 1]) -> bool {
            real(inputs)
        }

        fn forward(&self, [logits]: [FlexTensor; 1]) -> (FlexTensor, Kept) {
            let logits = flex::contiguous(logits);
            let targets: FlexTensor = same(self.targets.clone());
            let targets = targets.into_data();
            let targets: Vec<usize> = targets.iter::<i64>().map(|t| t as usize).collect();
            let log_z = forward(&logits, &targets);
            let kept = Kept {
                logits,
                targets: Arc::new(targets),
                log_z: log_z.clone(),
            };
            (log_z, kept)
        }

        fn backward(&self, kept: Kept, grad: FlexTensor) -> [FlexTensor; 1] {
            [backward(kept, &flex::contiguous(grad))]
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn::tensor::backend::Backend;
    use burn_tch::TchTensor;
    use tch::{Kind, Tensor};

    use super::LogZ;
    use crate::cuda::{Arg, Grid, empty, launch};
    use crate::libtorch::{contiguous, is_cuda};
    use crate::op::{Op, same};

    /// The inputs of the backward pass.
    #[derive(Clone, Debug)]
    pub enum Kept {
        /// With our own kernels: the logits, the targets `[rows]`, and the result.
        Logits([TchTensor; 3]),
        /// With PyTorch's kernels: log softmax of the logits, the targets `[rows, 1]`, and the float type of the
        /// logits.
        LogSoftmax(TchTensor, TchTensor, Kind),
    }

    impl<B: Backend> Op<LibTorch, 1> for LogZ<B> {
        type Kept = Kept;

        fn takes(&self, _: &[TchTensor; 1]) -> bool {
            true
        }

        fn forward(&self, [logits]: [TchTensor; 1]) -> (TchTensor, Kept) {
            let targets: TchTensor = same(self.targets.clone());
            let targets = targets.tensor.to_kind(Kind::Int64);
            match has_kernel(&logits.tensor) {
                true => {
                    let targets = TchTensor::new(targets.contiguous());
                    let out = log_z(&logits.tensor, &targets.tensor);
                    (out.clone(), Kept::Logits([logits, targets, out]))
                }
                false => by_log_softmax(&logits.tensor, targets.unsqueeze(1)),
            }
        }

        fn backward(&self, kept: Kept, grad: TchTensor) -> [TchTensor; 1] {
            let d = match kept {
                Kept::Logits([logits, targets, out]) => {
                    let grad = contiguous(grad);
                    log_z_gradient(logits, [&targets, &out, &grad].map(|x| &x.tensor))
                }
                Kept::LogSoftmax(log_softmax, targets, kind) => {
                    let d =
                        by_log_softmax_gradient(&log_softmax.tensor, &targets.tensor, &grad.tensor);
                    TchTensor::new(d.to_kind(kind))
                }
            };
            [d]
        }
    }

    /// Whether our kernels take these logits.
    fn has_kernel(logits: &Tensor) -> bool {
        let kind = matches!(logits.kind(), Kind::Float | Kind::BFloat16);
        is_cuda(logits) && kind && logits.stride()[1] == 1
    }

    /// Returns the last arguments of both kernels: the width, the stride and the float type of the logits.
    fn layout(logits: &Tensor) -> [Arg<'_>; 3] {
        let (width, stride) = (logits.size()[1] as usize, logits.stride()[0] as usize);
        let bf16 = logits.kind() == Kind::BFloat16;
        [Arg::Int(width), Arg::Long(stride), Arg::Bool(bf16)]
    }

    fn log_z(logits: &Tensor, targets: &Tensor) -> TchTensor {
        let rows = logits.size()[0];
        let out = empty(&[rows, 2], Kind::Float, logits);
        let tensors = [Arg::Rows(logits), Arg::Of(targets), Arg::Of(&out)];
        let arguments = [tensors, layout(logits)].concat();
        launch(
            c"log_z",
            logits,
            Grid::wide_blocks(rows as usize, logits),
            &arguments,
        );
        TchTensor::new(out)
    }

    /// Writes the gradient over the logits if nothing else holds them.
    fn log_z_gradient(logits: TchTensor, [targets, out, d]: [&Tensor; 3]) -> TchTensor {
        let grad = match logits.can_mut() {
            true => logits.clone(),
            // The gradient has the same gaps between its rows as the logits.
            false => {
                let (sizes, stride) = (logits.tensor.size(), logits.tensor.stride()[0]);
                let all = empty(&[sizes[0], stride.max(sizes[1])], logits.tensor.kind(), out);
                TchTensor::new(all.narrow(1, 0, sizes[1]))
            }
        };
        let rows = logits.tensor.size()[0] as usize;
        let tensors = [
            Arg::Rows(&logits.tensor),
            Arg::Of(targets),
            Arg::Of(out),
            Arg::Of(d),
            Arg::Rows(&grad.tensor),
        ];
        let arguments = [&tensors[..], &layout(&logits.tensor)].concat();
        launch(
            c"log_z_gradient",
            out,
            Grid::wide_blocks(rows, out),
            &arguments,
        );
        drop(logits);
        grad
    }

    /// log Z = x_t − log softmax(x)_t for the target t. The kernel of log softmax reads the logits once or twice, and
    /// `logsumexp` five times.
    fn by_log_softmax(logits: &Tensor, targets: Tensor) -> (TchTensor, Kept) {
        let kind = logits.kind();
        let logits = match kind {
            Kind::BFloat16 => logits.to_kind(Kind::Float),
            _ => logits.shallow_clone(),
        };
        let log_softmax = logits.log_softmax(1, None::<Kind>);
        let of_target = logits.gather(1, &targets, false);
        let log_z = &of_target - log_softmax.gather(1, &targets, false);
        let result = Tensor::cat(&[&log_z, &of_target], 1);
        let [targets, log_softmax] = [targets, log_softmax].map(TchTensor::new);
        (
            TchTensor::new(result),
            Kept::LogSoftmax(log_softmax, targets, kind),
        )
    }

    /// d logits = softmax · d log Z + one-hot(t) · d x_t. The kernel for the gradient g of log softmax returns
    /// g − softmax · Σ g, so g = −one-hot(t) · d log Z.
    fn by_log_softmax_gradient(log_softmax: &Tensor, targets: &Tensor, grad: &Tensor) -> Tensor {
        let (d_log_z, d_target) = (grad.narrow(1, 0, 1), grad.narrow(1, 1, 1));
        let mut g = log_softmax.zeros_like();
        let _ = g.scatter_(1, targets, &d_log_z.neg());
        let kind = log_softmax.kind();
        let mut d = Tensor::internal_log_softmax_backward_data(&g, log_softmax, 1, kind);
        d.scatter_add_(1, targets, &(d_log_z + d_target))
    }
}
