//! Causal sums over positions, channel by channel: y_t = Σ_j w_j ⊙ z_{t−K+1+j}. On Flex, no term is stored.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct CausalSum;

/// Computes Σ_j w_j ⊙ z_{t−K+1+j} for whole sequences z `[rows, time, channels]` and w `[channels, K]`. Positions before
/// the first one are zero.
///
/// # Errors
///
/// Returns z and w if there is no kernel for them.
pub fn causal_sum<B: Backend>(
    z: Tensor<B, 3>,
    w: Tensor<B, 2>,
) -> Result<Tensor<B, 3>, (Tensor<B, 3>, Tensor<B, 2>)> {
    fn of<B: Backend, const D: usize>(x: burn::tensor::ops::FloatTensor<B>) -> Tensor<B, D> {
        Tensor::from_primitive(TensorPrimitive::Float(x))
    }
    let inputs = [z.into_primitive().tensor(), w.into_primitive().tensor()];
    let result = apply::<B, _, 2>(&CausalSum, inputs);
    result.map(of).map_err(|[z, w]| (of(z), of(w)))
}

#[cfg(feature = "cube")]
crate::op::no_kernel!(CausalSum, 2, cube);
#[cfg(feature = "tch")]
crate::op::no_kernel!(CausalSum, 2, burn::backend::LibTorch, burn_tch::TchTensor);

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::{TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::CausalSum;
    use crate::flex::{
        Real, add_up, contiguous, each, real, rows_per_task, simd, slice, tensor_like, with_real,
        zeros,
    };
    use crate::op::Op;

    /// The sizes of a call.
    #[derive(Clone, Copy)]
    struct Sizes {
        time: usize,
        channels: usize,
        /// K, the number of taps.
        taps: usize,
    }

    impl Sizes {
        fn of(z: &FlexTensor, w: &FlexTensor) -> Self {
            let [_, time, channels]: [usize; 3] = z.shape().dims();
            let [_, taps]: [usize; 2] = w.shape().dims();
            Self {
                time,
                channels,
                taps,
            }
        }

        /// Number of positions per task. A task's gradient of w then has at most an eighth of the elements of its z.
        fn positions(&self) -> usize {
            rows_per_task(self.channels).max(8 * self.taps)
        }

        /// Returns the channels of position `p`, counted over all sequences.
        fn at<'a, E>(&self, x: &'a [E], p: usize) -> &'a [E] {
            &x[p * self.channels..(p + 1) * self.channels]
        }
    }

    /// Swaps the axes of `w` `[rows, columns]`.
    fn transposed<E: Real>(w: &[E], [rows, columns]: [usize; 2]) -> Vec<E> {
        let at = |i: usize| w[i % rows * columns + i / rows];
        (0..w.len()).map(at).collect()
    }

    /// y_t += Σ_j w_j ⊙ z_{t−K+1+j} for the positions from `first`.
    struct Sums<'a, E> {
        sizes: Sizes,
        first: usize,
        w: &'a [E],
        z: &'a [E],
        y: &'a mut [E],
    }

    impl<E: Real> WithSimd for Sums<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Sizes {
                time,
                channels,
                taps,
            } = self.sizes;
            for (p, y) in (self.first..).zip(self.y.chunks_exact_mut(channels)) {
                let t = p % time;
                for back in (0..taps.min(t + 1)).rev() {
                    let w = self.sizes.at(self.w, taps - 1 - back);
                    let z = self.sizes.at(self.z, p - back);
                    for ((y, &w), &z) in y.iter_mut().zip(w).zip(z) {
                        *y = *y + w * z;
                    }
                }
            }
        }
    }

    /// dz_t += Σ_j w_j ⊙ dy_{t+K−1−j}, and dw_j += Σ_t z_t ⊙ dy_{t+K−1−j}, for the positions from `first`.
    struct Grads<'a, E> {
        sizes: Sizes,
        first: usize,
        w: &'a [E],
        z: &'a [E],
        dy: &'a [E],
        dz: &'a mut [E],
        dw: &'a mut [E],
    }

    impl<E: Real> WithSimd for Grads<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Sizes {
                time,
                channels,
                taps,
            } = self.sizes;
            for (p, dz) in (self.first..).zip(self.dz.chunks_exact_mut(channels)) {
                let z = self.sizes.at(self.z, p);
                let after = time - p % time;
                for ahead in 0..taps.min(after) {
                    let j = taps - 1 - ahead;
                    let w = self.sizes.at(self.w, j);
                    let dy = self.sizes.at(self.dy, p + ahead);
                    for ((dz, &w), &dy) in dz.iter_mut().zip(w).zip(dy) {
                        *dz = *dz + w * dy;
                    }
                    let dw = &mut self.dw[j * channels..(j + 1) * channels];
                    for ((dw, &z), &dy) in dw.iter_mut().zip(z).zip(dy) {
                        *dw = *dw + z * dy;
                    }
                }
            }
        }
    }

    fn forward<E: Real>(z: &FlexTensor, w: &FlexTensor) -> FlexTensor {
        let sizes = Sizes::of(z, w);
        // The channels of a tap side by side.
        let w = transposed(slice::<E>(w), [sizes.channels, sizes.taps]);
        let from = slice::<E>(z);
        let mut y = zeros(from.len());
        let tasks = y.chunks_mut(sizes.positions() * sizes.channels);
        let tasks = tasks.enumerate().collect();
        each(tasks, sizes.taps * from.len(), |(task, y)| {
            simd(Sums {
                sizes,
                first: task * sizes.positions(),
                w: &w,
                z: from,
                y,
            });
        });
        tensor_like(y, z)
    }

    fn backward<E: Real>(z: &FlexTensor, w: &FlexTensor, dy: &FlexTensor) -> [FlexTensor; 2] {
        let sizes = Sizes::of(z, w);
        let rows = transposed(slice::<E>(w), [sizes.channels, sizes.taps]);
        let (from, dy) = (slice::<E>(z), slice::<E>(dy));
        let mut dz = zeros(from.len());
        let tasks = dz.chunks_mut(sizes.positions() * sizes.channels);
        let tasks = tasks.enumerate().collect();
        let dw = each(tasks, 2 * sizes.taps * from.len(), |(task, dz)| {
            let mut dw = vec![E::zero(); rows.len()];
            simd(Grads {
                sizes,
                first: task * sizes.positions(),
                w: &rows,
                z: from,
                dy,
                dz,
                dw: &mut dw,
            });
            dw
        });
        let dw = add_up(dw, rows.len());
        let dw = transposed(&dw, [sizes.taps, sizes.channels]);
        let dw = FlexTensor::from_data(TensorData::new(dw, w.shape()));
        [tensor_like(dz, z), dw]
    }

    impl Op<Flex, 2> for CausalSum {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 2]) -> bool {
            let [z, w] = inputs.each_ref().map(|x| x.shape());
            real(inputs) && z[2] == w[0] && w[1] > 0 && z.num_elements() > 0
        }

        fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            let [z, w] = inputs.map(contiguous);
            (with_real!(&z, forward(&z, &w)), [z, w])
        }

        fn backward(&self, [z, w]: [FlexTensor; 2], dy: FlexTensor) -> [FlexTensor; 2] {
            let dy = contiguous(dy);
            with_real!(&z, backward(&z, &w, &dy))
        }
    }
}
