//! Mixtures of the outputs of many layers, for MUDD (multiway dynamic dense) connections: y_c = Σ_j w[c, j] x_j,
//! without a copy of the x_j.

use burn::tensor::{Tensor, backend::Backend};

/// w and the x_j, which [`mixtures`] returns where it has no kernel.
pub type Factors<B> = (Tensor<B, 4>, Vec<Tensor<B, 3>>);

/// Computes the mixtures of each position: `w` `[batch, time, C, J]`, or `[1, 1, C, J]` for all positions, and J
/// tensors `x` `[batch, time, d]` to C tensors `[batch, time, d]`.
///
/// # Errors
///
/// Returns `w` and `x` if there is no kernel for them.
pub fn mixtures<B: Backend>(
    w: Tensor<B, 4>,
    x: Vec<Tensor<B, 3>>,
) -> Result<Vec<Tensor<B, 3>>, Factors<B>> {
    #[cfg(feature = "flex")]
    {
        use burn::tensor::TensorPrimitive;

        fn of<B: Backend, const D: usize>(x: burn::tensor::ops::FloatTensor<B>) -> Tensor<B, D> {
            Tensor::from_primitive(TensorPrimitive::Float(x))
        }
        let x = x.into_iter().map(|x| x.into_primitive().tensor());
        let inputs = std::iter::once(w.into_primitive().tensor()).chain(x);
        match crate::joint::apply::<B, burn::backend::Flex, _>(&flex::Mixtures, inputs.collect()) {
            Ok(results) => Ok(results.into_iter().map(of).collect()),
            Err(inputs) => {
                let mut inputs = inputs.into_iter();
                let w = inputs.next().map(of);
                let w = w.unwrap_or_else(|| unreachable!("w is the first input"));
                Err((w, inputs.map(of).collect()))
            }
        }
    }
    #[cfg(not(feature = "flex"))]
    Err((w, x))
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::{TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use crate::flex::{
        Real, add_up, contiguous, each, parts, real, rows_per_task, simd, slice, tensor_like,
        with_real, zeros,
    };
    use crate::joint::Joint;
    use crate::mix::flex::add_scaled;

    /// The operation.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Mixtures;

    /// The sizes of a call.
    #[derive(Clone, Copy)]
    struct Sizes {
        /// Whether all positions have the same weights.
        shared: bool,
        /// C, the number of mixtures.
        mixtures: usize,
        /// J, the number of sources.
        sources: usize,
        d: usize,
        /// Number of positions per task.
        rows: usize,
    }

    impl Sizes {
        fn of(w: &FlexTensor, x: &FlexTensor) -> Self {
            let [rows, columns, mixtures, sources]: [usize; 4] = w.shape().dims();
            let [batch, time, d]: [usize; 3] = x.shape().dims();
            Self {
                shared: rows * columns == 1 && batch * time != 1,
                mixtures,
                sources,
                d,
                rows: rows_per_task(mixtures.max(sources) * d),
            }
        }

        /// Returns the weights of position `p`.
        fn weights<'a, E>(&self, w: &'a [E], p: usize) -> &'a [E] {
            let size = self.mixtures * self.sources;
            let p = if self.shared { 0 } else { p };
            &w[p * size..(p + 1) * size]
        }

        /// Returns the number of elements of each tensor per task.
        fn part(&self) -> usize {
            self.rows * self.d
        }
    }

    /// y_c += Σ_j w[c, j] x_j for the positions from `first`.
    struct Sums<'a, E> {
        sizes: Sizes,
        first: usize,
        w: &'a [E],
        x: &'a [&'a [E]],
        y: Vec<&'a mut [E]>,
    }

    impl<E: Real> WithSimd for Sums<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Sizes { sources, d, .. } = self.sizes;
            for (c, y) in self.y.into_iter().enumerate() {
                for (p, y) in (self.first..).zip(y.chunks_exact_mut(d)) {
                    let w = self.sizes.weights(self.w, p);
                    for (x, &w) in self.x.iter().zip(&w[c * sources..]) {
                        add_scaled(y, w, &x[p * d..(p + 1) * d]);
                    }
                }
            }
        }
    }

    /// dx_j += Σ_c w[c, j] dy_c, and dw[c, j] += ⟨dy_c, x_j⟩, for the positions from `first`.
    struct Grads<'a, E> {
        sizes: Sizes,
        first: usize,
        w: &'a [E],
        x: &'a [&'a [E]],
        /// The index and the gradient of each mixture that has a gradient.
        dy: &'a [(usize, &'a [E])],
        dx: Vec<&'a mut [E]>,
        dw: &'a mut [E],
    }

    impl<E: Real> WithSimd for Grads<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Sizes {
                shared,
                mixtures,
                sources,
                d,
                ..
            } = self.sizes;
            for (j, dx) in self.dx.into_iter().enumerate() {
                for (i, dx) in dx.chunks_exact_mut(d).enumerate() {
                    let p = self.first + i;
                    let w = self.sizes.weights(self.w, p);
                    let dw = if shared { 0 } else { i * mixtures * sources };
                    let row = p * d..(p + 1) * d;
                    for &(c, dy) in self.dy {
                        let at = c * sources + j;
                        let dy = &dy[row.clone()];
                        add_scaled(dx, w[at], dy);
                        self.dw[dw + at] =
                            self.dw[dw + at] + E::dot(simd, dy, &self.x[j][row.clone()]);
                    }
                }
            }
        }
    }

    fn forward<E: Real>(w: &FlexTensor, x: &[FlexTensor]) -> Vec<FlexTensor> {
        let sizes = Sizes::of(w, &x[0]);
        let (like, w) = (&x[0], slice::<E>(w));
        let x: Vec<&[E]> = x.iter().map(slice).collect();
        let mut y: Vec<Vec<E>> = (0..sizes.mixtures).map(|_| zeros(x[0].len())).collect();
        let tasks = parts(&mut y, sizes.part())
            .into_iter()
            .enumerate()
            .collect();
        each(tasks, x.len() * x[0].len(), |(task, y)| {
            simd(Sums {
                sizes,
                first: task * sizes.rows,
                w,
                x: &x,
                y,
            });
        });
        y.into_iter().map(|y| tensor_like(y, like)).collect()
    }

    fn backward<E: Real>(
        w: &FlexTensor,
        x: &[FlexTensor],
        dy: &[Option<FlexTensor>],
    ) -> Vec<FlexTensor> {
        let sizes = Sizes::of(w, &x[0]);
        let (like, shape, w) = (&x[0], w.shape(), slice::<E>(w));
        let x: Vec<&[E]> = x.iter().map(slice).collect();
        let dy = dy.iter().enumerate();
        let dy: Vec<_> = dy
            .filter_map(|(c, dy)| Some((c, slice::<E>(dy.as_ref()?))))
            .collect();
        let mut dx: Vec<Vec<E>> = x.iter().map(|x| zeros(x.len())).collect();
        let tasks = parts(&mut dx, sizes.part())
            .into_iter()
            .enumerate()
            .collect();
        let size = sizes.mixtures * sizes.sources;
        let dw = each(tasks, x.len() * x[0].len(), |(task, dx)| {
            let positions = if sizes.shared {
                1
            } else {
                dx[0].len() / sizes.d
            };
            let mut dw = vec![E::zero(); positions * size];
            let sum = &mut dw;
            simd(Grads {
                sizes,
                first: task * sizes.rows,
                w,
                x: &x,
                dy: &dy,
                dx,
                dw: sum,
            });
            dw
        });
        let dw = match sizes.shared {
            true => add_up(dw, size),
            false => dw.concat(),
        };
        let dw = FlexTensor::from_data(TensorData::new(dw, shape));
        let dx = dx.into_iter().map(|dx| tensor_like(dx, like));
        std::iter::once(dw).chain(dx).collect()
    }

    impl Joint<Flex> for Mixtures {
        fn takes(&self, inputs: &[FlexTensor]) -> bool {
            let Some((w, x)) = inputs.split_first().filter(|(_, x)| !x.is_empty()) else {
                return false;
            };
            let [batch, time, _]: [usize; 3] = x[0].shape().dims();
            let [rows, columns, _, sources]: [usize; 4] = w.shape().dims();
            let of_positions = [[1, 1], [batch, time]].contains(&[rows, columns]);
            let alike = x.iter().all(|other| other.shape() == x[0].shape());
            real(inputs) && of_positions && alike && sources == x.len()
        }

        fn forward(&self, inputs: &[FlexTensor]) -> Vec<FlexTensor> {
            let inputs: Vec<_> = inputs.iter().cloned().map(contiguous).collect();
            with_real!(&inputs[0], forward(&inputs[0], &inputs[1..]))
        }

        fn backward(
            &self,
            inputs: &[FlexTensor],
            grads: Vec<Option<FlexTensor>>,
        ) -> Vec<FlexTensor> {
            let inputs: Vec<_> = inputs.iter().cloned().map(contiguous).collect();
            let grads: Vec<_> = grads.into_iter().map(|dy| dy.map(contiguous)).collect();
            with_real!(&inputs[0], backward(&inputs[0], &inputs[1..], &grads))
        }
    }
}
