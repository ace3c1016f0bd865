//! Attention over depth, for attention residuals: a softmax mixture of the outputs of many layers, without a copy of
//! these outputs. Only the inputs are kept; the backward pass computes the weights again.

use burn::tensor::{Tensor, backend::Backend};

/// w and the x_j, which [`depth_attention`] returns where it has no kernel.
pub type Sources<B> = (Tensor<B, 1>, Vec<Tensor<B, 3>>);

/// Computes Σ_j p_j x_j with p = softmax_j(⟨w, x_j⟩ / √(mean square of x_j + ε)) for each position: `w` `[d]`, and J
/// tensors `x` `[batch, time, d]`.
///
/// # Errors
///
/// Returns `w` and `x` if there is no kernel for them.
pub fn depth_attention<B: Backend>(
    eps: f64,
    w: Tensor<B, 1>,
    x: Vec<Tensor<B, 3>>,
) -> Result<Tensor<B, 3>, Sources<B>> {
    #[cfg(feature = "flex")]
    {
        use burn::tensor::TensorPrimitive;

        fn of<B: Backend, const D: usize>(x: burn::tensor::ops::FloatTensor<B>) -> Tensor<B, D> {
            Tensor::from_primitive(TensorPrimitive::Float(x))
        }
        let x = x.into_iter().map(|x| x.into_primitive().tensor());
        let inputs = std::iter::once(w.into_primitive().tensor()).chain(x);
        let op = flex::DepthAttention { eps };
        let result = crate::joint::apply::<B, burn::backend::Flex, _>(&op, inputs.collect());
        match result.map(|results| results.into_iter().next()) {
            Ok(Some(h)) => Ok(of(h)),
            Ok(None) => unreachable!("it has one result"),
            Err(inputs) => {
                let mut inputs = inputs.into_iter();
                let w = inputs.next().map(of);
                let w = w.unwrap_or_else(|| unreachable!("w is the first input"));
                Err((w, inputs.map(of).collect()))
            }
        }
    }
    #[cfg(not(feature = "flex"))]
    {
        let _ = eps;
        Err((w, x))
    }
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::TensorMetadata as _;
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use crate::flex::{
        Real, add_up, contiguous, each, parts, real, rows_per_task, simd, slice, tensor_like,
        vector, width, with_real, zeros,
    };
    use crate::joint::Joint;
    use crate::mix::flex::add_scaled;

    /// The operation.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct DepthAttention {
        /// ε, added to the mean square.
        pub(super) eps: f64,
    }

    /// One position of one source: r = 1 / √(mean square + ε), the score s = r ⟨w, x⟩, and the weight p.
    #[derive(Clone, Copy)]
    struct Weight<E> {
        r: E,
        s: E,
        p: E,
    }

    /// The positions of a task.
    struct Task<'a, E> {
        eps: E,
        /// The first position.
        first: usize,
        w: &'a [E],
        x: &'a [&'a [E]],
    }

    impl<E: Real> Task<'_, E> {
        /// Returns the x_j of position `i` of the task.
        #[inline(always)]
        fn rows(&self, i: usize) -> impl Iterator<Item = &[E]> {
            let (d, p) = (self.w.len(), self.first + i);
            self.x.iter().map(move |x| &x[p * d..(p + 1) * d])
        }

        /// Computes the weights of the x_j of position `i` of the task.
        #[inline(always)]
        fn weigh<S: Simd>(&self, simd: S, i: usize, weights: &mut [Weight<E>]) {
            let d = E::of(self.w.len() as f64);
            let mut most = E::neg_infinity();
            for (weight, x) in weights.iter_mut().zip(self.rows(i)) {
                weight.r = (E::dot(simd, x, x) / d + self.eps).sqrt().recip();
                weight.s = weight.r * E::dot(simd, self.w, x);
                most = most.max(weight.s);
            }
            let mut sum = E::zero();
            for weight in weights.iter_mut() {
                weight.p = (weight.s - most).fast_exp();
                sum = sum + weight.p;
            }
            for weight in weights {
                weight.p = weight.p / sum;
            }
        }

        /// Returns room for the weights of a position.
        fn room(&self) -> Vec<Weight<E>> {
            let [r, s, p] = [E::zero(); 3];
            vec![Weight { r, s, p }; self.x.len()]
        }
    }

    /// h += Σ_j p_j x_j.
    struct Forward<'a, E> {
        task: Task<'a, E>,
        h: &'a mut [E],
    }

    impl<E: Real> WithSimd for Forward<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self { task, h } = self;
            let mut weights = task.room();
            for (i, h) in h.chunks_exact_mut(task.w.len()).enumerate() {
                task.weigh(simd, i, &mut weights);
                for (weight, x) in weights.iter().zip(task.rows(i)) {
                    add_scaled(h, weight.p, x);
                }
            }
        }
    }

    /// Computes dx_j = p_j dh + ds_j ∂s_j/∂x_j and dw = Σ ds_j r_j x_j over all positions, with ds_j = p_j (⟨dh, x_j⟩ −
    /// Σ_k p_k ⟨dh, x_k⟩) and ∂s/∂x = r w − s r² x / d.
    struct Backward<'a, E> {
        task: Task<'a, E>,
        dh: &'a [E],
        dx: Vec<&'a mut [E]>,
    }

    impl<E: Real> WithSimd for Backward<'_, E> {
        type Output = Vec<E>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<E> {
            let Self { task, dh, mut dx } = self;
            let d = task.w.len();
            let mut weights = task.room();
            let mut dp = vec![E::zero(); weights.len()];
            let mut dw = vec![E::zero(); d];
            for (i, dh) in dh.chunks_exact(d).enumerate() {
                task.weigh(simd, i, &mut weights);
                let mut mean = E::zero();
                for ((dp, weight), x) in dp.iter_mut().zip(&weights).zip(task.rows(i)) {
                    *dp = E::dot(simd, dh, x);
                    mean = mean + weight.p * *dp;
                }
                let rows = weights.iter().zip(&dp).zip(task.rows(i)).zip(&mut dx);
                for (((&Weight { r, s, p }, &dp), x), dx) in rows {
                    let ds = p * (dp - mean);
                    let (of_w, of_x) = (ds * r, ds * s * r * r / E::of(d as f64));
                    let dx = &mut dx[i * d..(i + 1) * d];
                    for (((dx, &dh), &w), &x) in dx.iter_mut().zip(dh).zip(task.w).zip(x) {
                        *dx = p * dh + of_w * w - of_x * x;
                    }
                    add_scaled(&mut dw, of_w, x);
                }
            }
            dw
        }
    }

    /// Returns the number of positions per task.
    fn rows(x: &[FlexTensor]) -> usize {
        rows_per_task(x.len() * width(&x[0]))
    }

    fn forward<E: Real>(op: DepthAttention, w: &FlexTensor, x: &[FlexTensor]) -> FlexTensor {
        let (like, d, rows) = (&x[0], width(w), rows(x));
        let w = slice::<E>(w);
        let x: Vec<&[E]> = x.iter().map(slice).collect();
        let mut h = zeros(x[0].len());
        let tasks = h.chunks_mut(rows * d).enumerate().collect();
        each(tasks, x.len() * x[0].len(), |(task, h)| {
            let task = Task {
                eps: E::of(op.eps),
                first: task * rows,
                w,
                x: &x,
            };
            simd(Forward { task, h });
        });
        tensor_like(h, like)
    }

    /// Returns the gradients of w and of each x_j.
    fn backward<E: Real>(
        op: DepthAttention,
        w: &FlexTensor,
        x: &[FlexTensor],
        dh: &FlexTensor,
    ) -> Vec<FlexTensor> {
        let (like, d, rows) = (&x[0], width(w), rows(x));
        let (w, dh) = (slice::<E>(w), slice::<E>(dh));
        let x: Vec<&[E]> = x.iter().map(slice).collect();
        let mut dx: Vec<Vec<E>> = x.iter().map(|x| zeros(x.len())).collect();
        let tasks = parts(&mut dx, rows * d);
        let tasks = tasks.into_iter().zip(dh.chunks(rows * d)).enumerate();
        let dw = each(tasks.collect(), x.len() * dh.len(), |(task, (dx, dh))| {
            let task = Task {
                eps: E::of(op.eps),
                first: task * rows,
                w,
                x: &x,
            };
            simd(Backward { task, dh, dx })
        });
        let dw = vector(add_up(dw, d));
        let dx = dx.into_iter().map(|dx| tensor_like(dx, like));
        std::iter::once(dw).chain(dx).collect()
    }

    impl Joint<Flex> for DepthAttention {
        fn takes(&self, inputs: &[FlexTensor]) -> bool {
            let Some((w, x)) = inputs.split_first().filter(|(_, x)| !x.is_empty()) else {
                return false;
            };
            let alike = x.iter().all(|other| other.shape() == x[0].shape());
            real(inputs) && alike && width(w) == width(&x[0]) && width(w) > 0
        }

        fn forward(&self, inputs: &[FlexTensor]) -> Vec<FlexTensor> {
            let inputs: Vec<_> = inputs.iter().cloned().map(contiguous).collect();
            vec![with_real!(
                &inputs[0],
                forward(*self, &inputs[0], &inputs[1..])
            )]
        }

        fn backward(
            &self,
            inputs: &[FlexTensor],
            grads: Vec<Option<FlexTensor>>,
        ) -> Vec<FlexTensor> {
            let inputs: Vec<_> = inputs.iter().cloned().map(contiguous).collect();
            // The operation runs back only if the loss uses its one result.
            let Some(dh) = grads.into_iter().flatten().next().map(contiguous) else {
                return vec![];
            };
            with_real!(&inputs[0], backward(*self, &inputs[0], &inputs[1..], &dh))
        }
    }
}
