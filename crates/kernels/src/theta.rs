//! Θ of TokenFormer's Pattention (Wang et al. 2024, eq. 5 and Table 4): one pass forward, one backward,
//! and only the scores are kept.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// Θ over the last axis. φ is the activation, ε is added to a norm, and a row with norm 0 gives 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Theta {
    /// The order of φ and the norm.
    pub form: Form,
    /// φ.
    pub activation: Curve,
    /// ε.
    pub eps: f64,
}

/// The rows of Table 4, for scores a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// φ(a τ / (‖a‖₂ + ε)).
    NormThenActivation,
    /// φ(a) τ / (‖φ(a)‖₂ + ε).
    ActivationThenL2,
    /// φ(a) τ / (‖φ(a)‖₁ + ε).
    ActivationThenL1,
    /// softmax(a) τ.
    Softmax,
}

/// φ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
    /// max(x, 0).
    Relu,
}

/// Θ of the scores `a`, with τ `[1]`.
///
/// # Errors
///
/// Returns `a` if there is no kernel for it.
pub fn theta<B: Backend, const D: usize>(
    theta: Theta,
    a: Tensor<B, D>,
    tau: Tensor<B, 1>,
) -> Result<Tensor<B, D>, Tensor<B, D>> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [a.into_primitive().tensor(), tau.into_primitive().tensor()];
    let result = apply::<B, _, 2>(&theta, inputs);
    result.map(of).map_err(|[a, _]| of(a))
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::{Curve, Form, Theta};
    use crate::flex::{
        self, Real, each, real, rows_per_task, simd, slice, tensor_like, vector, with_real,
    };
    use crate::gelu::flex::{self as curves, Curve as Function};
    use crate::op::Op;

    /// 1 / (norm + ε) and its derivative by the norm; 0 for a row without norm.
    #[inline(always)]
    fn inverse<E: Real>(norm: E, eps: E) -> (E, E) {
        if norm == E::zero() {
            return (E::zero(), E::zero());
        }
        let inverse = (norm + eps).recip();
        (inverse, -inverse * inverse)
    }

    struct Forward<'a, E, F> {
        theta: Theta,
        curve: F,
        tau: E,
        width: usize,
        a: &'a [E],
        y: &'a mut [E],
    }

    impl<E: Real, F: Function> WithSimd for Forward<'_, E, F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (tau, eps) = (self.tau, E::of(self.theta.eps));
            let width = self.width;
            let rows = self
                .a
                .chunks_exact(width)
                .zip(self.y.chunks_exact_mut(width));
            for (a, y) in rows {
                match self.theta.form {
                    Form::NormThenActivation => {
                        let factor = tau * inverse(E::dot(simd, a, a).sqrt(), eps).0;
                        for (y, &a) in y.iter_mut().zip(a) {
                            *y = self.curve.value(a * factor);
                        }
                    }
                    Form::ActivationThenL2 | Form::ActivationThenL1 => {
                        for (y, &a) in y.iter_mut().zip(a) {
                            *y = self.curve.value(a);
                        }
                        let norm = match self.theta.form {
                            Form::ActivationThenL1 => y.iter().fold(E::zero(), |n, y| n + y.abs()),
                            _ => E::dot(simd, y, y).sqrt(),
                        };
                        let factor = tau * inverse(norm, eps).0;
                        for y in y {
                            *y = *y * factor;
                        }
                    }
                    Form::Softmax => {
                        let max = E::largest(simd, a);
                        for (y, &a) in y.iter_mut().zip(a) {
                            *y = (a - max).fast_exp();
                        }
                        let factor = tau / E::total(simd, y);
                        for y in y {
                            *y = *y * factor;
                        }
                    }
                }
            }
        }
    }

    /// da, and dτ of the rows.
    struct Backward<'a, E, F> {
        theta: Theta,
        curve: F,
        tau: E,
        width: usize,
        a: &'a [E],
        dy: &'a [E],
        da: &'a mut [E],
    }

    impl<E: Real, F: Function> WithSimd for Backward<'_, E, F> {
        type Output = E;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> E {
            let (tau, eps) = (self.tau, E::of(self.theta.eps));
            let width = self.width;
            let rows = self.a.chunks_exact(width).zip(self.dy.chunks_exact(width));
            let mut d_tau = E::zero();
            // The values of a row that its gradient needs.
            let mut g = vec![E::zero(); width];
            for ((a, dy), da) in rows.zip(self.da.chunks_exact_mut(width)) {
                match self.theta.form {
                    Form::NormThenActivation => {
                        let norm = E::dot(simd, a, a).sqrt();
                        let (inverse, slope) = inverse(norm, eps);
                        let factor = tau * inverse;
                        for ((da, &a), &dy) in da.iter_mut().zip(a).zip(dy) {
                            *da = self.curve.slope(a * factor) * dy;
                        }
                        // d(factor) = Σ a d(a factor); the norm's gradient is a / norm.
                        let d_factor = E::dot(simd, da, a);
                        let by_norm = match norm == E::zero() {
                            true => E::zero(),
                            false => d_factor * tau * slope / norm,
                        };
                        for (da, &a) in da.iter_mut().zip(a) {
                            *da = *da * factor + by_norm * a;
                        }
                        d_tau = d_tau + d_factor * inverse;
                    }
                    Form::ActivationThenL2 | Form::ActivationThenL1 => {
                        for (g, &a) in g.iter_mut().zip(a) {
                            *g = self.curve.value(a);
                        }
                        let l1 = self.theta.form == Form::ActivationThenL1;
                        let norm = match l1 {
                            true => g.iter().fold(E::zero(), |n, g| n + g.abs()),
                            false => E::dot(simd, &g, &g).sqrt(),
                        };
                        let (inverse, slope) = inverse(norm, eps);
                        let factor = tau * inverse;
                        let d_factor = E::dot(simd, dy, &g);
                        let by_norm = match l1 || norm == E::zero() {
                            true => d_factor * tau * slope,
                            false => d_factor * tau * slope / norm,
                        };
                        for (((da, &a), &dy), &g) in da.iter_mut().zip(a).zip(dy).zip(&g) {
                            let of_norm = match l1 {
                                true if g == E::zero() => E::zero(),
                                true => by_norm * g.signum(),
                                false => by_norm * g,
                            };
                            *da = (dy * factor + of_norm) * self.curve.slope(a);
                        }
                        d_tau = d_tau + d_factor * inverse;
                    }
                    Form::Softmax => {
                        let max = E::largest(simd, a);
                        for (g, &a) in g.iter_mut().zip(a) {
                            *g = (a - max).fast_exp();
                        }
                        let inverse = E::total(simd, &g).recip();
                        let mean = E::dot(simd, dy, &g) * inverse;
                        for ((da, &dy), &g) in da.iter_mut().zip(dy).zip(&g) {
                            *da = tau * inverse * g * (dy - mean);
                        }
                        d_tau = d_tau + mean;
                    }
                }
            }
            d_tau
        }
    }

    fn tau<E: Real>(tau: &FlexTensor) -> E {
        slice::<E>(tau)[0]
    }

    fn forward<E: Real>(theta: Theta, a: &FlexTensor, of_tau: &FlexTensor) -> FlexTensor {
        let (width, tau) = (flex::width(a), tau::<E>(of_tau));
        let from = slice::<E>(a);
        let mut y = vec![E::zero(); from.len()];
        let size = rows_per_task(width) * width;
        let tasks = from.chunks(size).zip(y.chunks_mut(size)).collect();
        each(tasks, from.len(), |(a, y)| {
            macro_rules! run {
                ($curve:expr) => {
                    simd(Forward {
                        theta,
                        curve: $curve,
                        tau,
                        width,
                        a,
                        y,
                    })
                };
            }
            match theta.activation {
                Curve::GeluTanh => run!(curves::Tanh),
                Curve::GeluErf => run!(curves::Erf),
                Curve::Relu => run!(curves::Relu),
            }
        });
        tensor_like(y, a)
    }

    fn backward<E: Real>(
        theta: Theta,
        [a, of_tau]: &[FlexTensor; 2],
        dy: &FlexTensor,
    ) -> [FlexTensor; 2] {
        let (width, tau) = (flex::width(a), tau::<E>(of_tau));
        let (from, dy) = (slice::<E>(a), slice::<E>(dy));
        let mut da = vec![E::zero(); from.len()];
        let size = rows_per_task(width) * width;
        let tasks = from
            .chunks(size)
            .zip(dy.chunks(size))
            .zip(da.chunks_mut(size));
        let d_tau = each(tasks.collect(), from.len(), |((a, dy), da)| {
            macro_rules! run {
                ($curve:expr) => {
                    simd(Backward {
                        theta,
                        curve: $curve,
                        tau,
                        width,
                        a,
                        dy,
                        da,
                    })
                };
            }
            match theta.activation {
                Curve::GeluTanh => run!(curves::Tanh),
                Curve::GeluErf => run!(curves::Erf),
                Curve::Relu => run!(curves::Relu),
            }
        });
        let d_tau = d_tau.into_iter().fold(E::zero(), |sum, d| sum + d);
        [tensor_like(da, a), vector(vec![d_tau])]
    }

    impl Op<Flex, 2> for Theta {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 2]) -> bool {
            real(inputs)
        }

        fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            let inputs = inputs.map(|x| x.to_contiguous());
            let y = with_real!(&inputs[0], forward(*self, &inputs[0], &inputs[1]));
            (y, inputs)
        }

        fn backward(&self, kept: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 2] {
            let grad = grad.to_contiguous();
            with_real!(&grad, backward(*self, &kept, &grad))
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;

    use super::Theta;
    use crate::op::Op;

    /// PyTorch has no such kernel.
    impl Op<LibTorch, 2> for Theta {
        type Kept = ();

        fn takes(&self, _: &[TchTensor; 2]) -> bool {
            false
        }

        fn forward(&self, _: [TchTensor; 2]) -> (TchTensor, ()) {
            unreachable!("it takes no inputs")
        }

        fn backward(&self, (): (), _: TchTensor) -> [TchTensor; 2] {
            unreachable!("it takes no inputs")
        }
    }
}
