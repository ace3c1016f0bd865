//! The element-wise part of optimizer steps, in one pass over memory. It has no gradient.

use burn::tensor::{Tensor, backend::Backend};

/// Constants of a step of AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2,
/// with the decay multiplied by the learning rate, as in PyTorch).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Factor of the first moment.
    pub beta_1: f64,
    /// Factor of the second moment.
    pub beta_2: f64,
    /// ε, added to the root of the second moment.
    pub eps: f64,
    /// Weight decay; the step multiplies it by the learning rate.
    pub weight_decay: f64,
    /// Factor of the gradient, for clipping.
    pub scale: f64,
    /// Number of this step, from 1.
    pub time: usize,
}

/// Takes a step: returns the parameter and its two moments, from those before the step and the gradient, `[count]`
/// each.
///
/// # Errors
///
/// Returns the inputs if there is no kernel for them.
pub fn adamw<B: Backend>(
    step: AdamW,
    [x, m, v, grad]: [Tensor<B, 1>; 4],
) -> Result<[Tensor<B, 1>; 3], [Tensor<B, 1>; 4]> {
    let inputs = [x, m, v, grad];
    #[cfg(feature = "flex")]
    let inputs = match crate::flex::on_flex(inputs, |inputs| flex::adamw(step, inputs)) {
        Ok(outputs) => return Ok(outputs),
        Err(inputs) => inputs,
    };
    let _ = step;
    Err(inputs)
}

/// Σ x_i² of `x` `[count]`, as `[1]`.
///
/// # Errors
///
/// Returns `x` if there is no kernel for it.
pub fn sum_of_squares<B: Backend>(x: Tensor<B, 1>) -> Result<Tensor<B, 1>, Tensor<B, 1>> {
    let inputs = [x];
    #[cfg(feature = "flex")]
    let inputs = match crate::flex::on_flex(inputs, |[x]| [flex::sum_of_squares(x)]) {
        Ok([sum]) => return Ok(sum),
        Err(inputs) => inputs,
    };
    let [x] = inputs;
    Err(x)
}

#[cfg(feature = "flex")]
mod flex {
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::AdamW;
    use crate::flex::{Real, TASK, each, simd, slice, vector, with_real};

    /// Takes the step for some elements.
    struct Step<'a, E> {
        constants: AdamW,
        x: &'a mut [E],
        m: &'a mut [E],
        v: &'a mut [E],
        grad: &'a [E],
    }

    impl<E: Real> WithSimd for Step<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let AdamW {
                lr,
                beta_1,
                beta_2,
                eps,
                weight_decay,
                scale,
                time,
            } = self.constants;
            // Factors that correct the moments for their zero initialisation.
            let correction = |beta: f64| E::of(1.0 / (1.0 - beta.powf(time as f64)));
            let (of_m, of_v) = (correction(beta_1), correction(beta_2));
            let [new_1, new_2, beta_1, beta_2] =
                [1.0 - beta_1, 1.0 - beta_2, beta_1, beta_2].map(E::of);
            let [scale, lr, eps, keep] = [scale, lr, eps, 1.0 - lr * weight_decay].map(E::of);
            let moments = self.m.iter_mut().zip(self.v);
            for ((x, (m, v)), &grad) in self.x.iter_mut().zip(moments).zip(self.grad) {
                let grad = grad * scale;
                *m = *m * beta_1 + grad * new_1;
                *v = *v * beta_2 + grad * grad * new_2;
                *x = *x * keep - lr * (*m * of_m) / ((*v * of_v).sqrt() + eps);
            }
        }
    }

    fn adamw_of<E: Real>(constants: AdamW, tensors: &mut [FlexTensor; 4]) {
        let [x, m, v, grad] = tensors;
        let count = slice::<E>(grad).len();
        let tasks = (x.storage_mut::<E>().chunks_mut(TASK))
            .zip(m.storage_mut::<E>().chunks_mut(TASK))
            .zip(v.storage_mut::<E>().chunks_mut(TASK))
            .zip(slice::<E>(grad).chunks(TASK));
        each(tasks.collect(), count, |(((x, m), v), grad)| {
            simd(Step {
                constants,
                x,
                m,
                v,
                grad,
            });
        });
    }

    pub fn adamw(step: AdamW, mut tensors: [FlexTensor; 4]) -> [FlexTensor; 3] {
        with_real!(&tensors[0], adamw_of(step, &mut tensors));
        let [x, m, v, _] = tensors;
        [x, m, v]
    }

    /// Σ x_i².
    struct Squares<'a, E>(&'a [E]);

    impl<E: Real> WithSimd for Squares<'_, E> {
        type Output = E;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> E {
            E::dot(simd, self.0, self.0)
        }
    }

    fn sum_of<E: Real>(x: &FlexTensor) -> FlexTensor {
        let x = slice::<E>(x);
        let parts = each(x.chunks(TASK).collect(), x.len(), |x| simd(Squares(x)));
        let sum: f64 = parts.into_iter().map(E::wide).sum();
        vector(vec![E::of(sum)])
    }

    pub fn sum_of_squares(x: FlexTensor) -> FlexTensor {
        with_real!(&x, sum_of(&x))
    }
}
