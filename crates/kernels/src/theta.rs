//! Θ of TokenFormer's Pattention (Wang et al. 2024, eq. 5 and Table 4). Only the scores and τ are kept for the backward
//! pass. On Flex, the forward and the backward pass go over memory once each.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::activation::Activation;
use crate::op::apply;

/// Θ over the last axis. φ is the activation, and ε is added to a norm. A row with norm 0 gives 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Theta {
    /// The order of φ and the norm.
    pub form: Form,
    /// φ, the activation.
    pub activation: Activation,
    /// ε, added to the norm.
    pub eps: f64,
}

/// A form of Θ for scores a and a factor τ: a row of TokenFormer's Table 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// Applies Θ to the scores `a`, with the factor τ, `[1]`.
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

    use super::{Form, Theta};
    use crate::activation::flex::{Function, with_function};
    use crate::flex::{
        self, Real, each, real, rows_per_task, simd, slice, tensor_like, vector, with_real,
    };
    use crate::op::Op;

    /// Computes 1 / (norm + ε) and its derivative with respect to the norm; both are 0 for a row with norm 0.
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
        f: F,
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
                            *y = self.f.value(a * factor);
                        }
                    }
                    Form::ActivationThenL2 | Form::ActivationThenL1 => {
                        for (y, &a) in y.iter_mut().zip(a) {
                            *y = self.f.value(a);
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

    /// Turns dy into da, and returns dτ of the rows.
    struct Backward<'a, E, F> {
        theta: Theta,
        f: F,
        tau: E,
        width: usize,
        a: &'a [E],
        dy: &'a mut [E],
    }

    impl<E: Real, F: Function> WithSimd for Backward<'_, E, F> {
        type Output = E;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> E {
            let (tau, eps) = (self.tau, E::of(self.theta.eps));
            let width = self.width;
            let rows = self.a.chunks_exact(width);
            let mut d_tau = E::zero();
            // Intermediate values of a row, for its gradient.
            let mut g = vec![E::zero(); width];
            for (a, d) in rows.zip(self.dy.chunks_exact_mut(width)) {
                match self.theta.form {
                    Form::NormThenActivation => {
                        let norm = E::dot(simd, a, a).sqrt();
                        let (inverse, slope) = inverse(norm, eps);
                        let factor = tau * inverse;
                        for (d, &a) in d.iter_mut().zip(a) {
                            *d = self.f.slope(a * factor) * *d;
                        }
                        // d(factor) = Σ a d(a factor); the norm's gradient is a / norm.
                        let d_factor = E::dot(simd, d, a);
                        let by_norm = match norm == E::zero() {
                            true => E::zero(),
                            false => d_factor * tau * slope / norm,
                        };
                        for (d, &a) in d.iter_mut().zip(a) {
                            *d = *d * factor + by_norm * a;
                        }
                        d_tau = d_tau + d_factor * inverse;
                    }
                    Form::ActivationThenL2 | Form::ActivationThenL1 => {
                        for (g, &a) in g.iter_mut().zip(a) {
                            *g = self.f.value(a);
                        }
                        let l1 = self.theta.form == Form::ActivationThenL1;
                        let norm = match l1 {
                            true => g.iter().fold(E::zero(), |n, g| n + g.abs()),
                            false => E::dot(simd, &g, &g).sqrt(),
                        };
                        let (inverse, slope) = inverse(norm, eps);
                        let factor = tau * inverse;
                        let d_factor = E::dot(simd, d, &g);
                        let by_norm = match l1 || norm == E::zero() {
                            true => d_factor * tau * slope,
                            false => d_factor * tau * slope / norm,
                        };
                        for ((d, &a), &g) in d.iter_mut().zip(a).zip(&g) {
                            let of_norm = match l1 {
                                true if g == E::zero() => E::zero(),
                                true => by_norm * g.signum(),
                                false => by_norm * g,
                            };
                            *d = (*d * factor + of_norm) * self.f.slope(a);
                        }
                        d_tau = d_tau + d_factor * inverse;
                    }
                    Form::Softmax => {
                        let max = E::largest(simd, a);
                        for (g, &a) in g.iter_mut().zip(a) {
                            *g = (a - max).fast_exp();
                        }
                        let inverse = E::total(simd, &g).recip();
                        let mean = E::dot(simd, d, &g) * inverse;
                        for (d, &g) in d.iter_mut().zip(&g) {
                            *d = tau * inverse * g * (*d - mean);
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
        let mut y = flex::zeros(from.len());
        let size = rows_per_task(width) * width;
        let tasks = from.chunks(size).zip(y.chunks_mut(size)).collect();
        each(tasks, from.len(), |(a, y): (&[E], &mut [E])| {
            with_function!(theta.activation, |f| simd(Forward {
                theta,
                f,
                tau,
                width,
                a,
                y,
            }))
        });
        tensor_like(y, a)
    }

    /// Turns dy into da, and returns dτ too.
    fn backward<E: Real>(
        theta: Theta,
        [a, of_tau]: &[FlexTensor; 2],
        mut dy: FlexTensor,
    ) -> [FlexTensor; 2] {
        let (width, tau) = (flex::width(a), tau::<E>(of_tau));
        let from = slice::<E>(a);
        let size = rows_per_task(width) * width;
        let tasks = from
            .chunks(size)
            .zip(dy.storage_mut::<E>().chunks_mut(size));
        let d_tau = each(tasks.collect(), from.len(), |(a, dy): (&[E], &mut [E])| {
            with_function!(theta.activation, |f| simd(Backward {
                theta,
                f,
                tau,
                width,
                a,
                dy,
            }))
        });
        let d_tau = d_tau.into_iter().fold(E::zero(), |sum, d| sum + d);
        [dy, vector(vec![d_tau])]
    }

    impl Op<Flex, 2> for Theta {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 2]) -> bool {
            real(inputs)
        }

        fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            let inputs = inputs.map(flex::contiguous);
            let y = with_real!(&inputs[0], forward(*self, &inputs[0], &inputs[1]));
            (y, inputs)
        }

        fn backward(&self, kept: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 2] {
            with_real!(&kept[0], backward(*self, &kept, flex::contiguous(grad)))
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::{Kind, Tensor};

    use super::{Form, Theta};
    use crate::activation::Activation;
    use crate::cuda::{Arg, Grid, empty, launch, rows};
    use crate::libtorch::{contiguous, in_f32, is_cuda};
    use crate::op::Op;
    use crate::product::libtorch::to_kind;

    /// Computes 1 / (norm + ε) and its derivative with respect to the norm; both are 0 for a row with norm 0.
    fn inverse(norm: &Tensor, eps: f64) -> [Tensor; 2] {
        let is_zero = norm.eq(0.0);
        let inverse = (norm + eps).reciprocal();
        let slope = -inverse.square();
        [inverse, slope].map(|x| x.masked_fill(&is_zero, 0.0))
    }

    /// Converts a norm to a divisor. Zeros become 1, because a row with norm 0 has only zeros to divide.
    fn divisor(norm: &Tensor) -> Tensor {
        norm.masked_fill(&norm.eq(0.0), 1.0)
    }

    /// Returns the norm of each row, `[…, 1]`.
    fn norm(x: &Tensor, order: i64) -> Tensor {
        x.norm_scalaropt_dim(order, [-1i64].as_slice(), true)
    }

    /// Computes Σ a · b over each row, `[…, 1]`.
    fn dot(a: &Tensor, b: &Tensor) -> Tensor {
        in_f32(|| Tensor::linalg_vecdot(a, b, -1)).unsqueeze(-1)
    }

    impl Op<LibTorch, 2> for Theta {
        type Kept = [TchTensor; 2];

        fn takes(&self, _: &[TchTensor; 2]) -> bool {
            true
        }

        fn forward(&self, [a, tau]: [TchTensor; 2]) -> (TchTensor, [TchTensor; 2]) {
            if self.has_kernel(&a.tensor) {
                let a = contiguous(a);
                let y = self.launch_forward(&a.tensor, &tau.tensor);
                return (TchTensor::new(y), [a, tau]);
            }
            let a = to_kind(a, tau.tensor.kind());
            let (x, f) = (&a.tensor, self.activation);
            let factor = |norm: &Tensor| &inverse(norm, self.eps)[0] * &tau.tensor;
            let y = match self.form {
                Form::NormThenActivation => f.value(&(x * factor(&norm(x, 2)))),
                Form::ActivationThenL2 | Form::ActivationThenL1 => {
                    let mut h = f.value(x);
                    let factor = factor(&norm(&h, self.order()));
                    h.g_mul_(&factor)
                }
                Form::Softmax => x.softmax(-1, x.kind()).g_mul_(&tau.tensor),
            };
            (TchTensor::new(y), [a, tau])
        }

        /// Uses the same derivatives as the kernel for Flex.
        fn backward(&self, [a, tau]: [TchTensor; 2], grad: TchTensor) -> [TchTensor; 2] {
            if self.has_kernel(&a.tensor) {
                let grad = contiguous(grad);
                return self.launch_backward(&a.tensor, &tau.tensor, &grad.tensor);
            }
            let (x, tau, f) = (&a.tensor, &tau.tensor, self.activation);
            let dy = grad.tensor.to_kind(x.kind());
            let (dx, d_tau) = match self.form {
                Form::NormThenActivation => {
                    let norm = norm(x, 2);
                    let [inverse, slope] = inverse(&norm, self.eps);
                    let factor = &inverse * tau;
                    let mut d = f.gradient(&(x * &factor), &dy);
                    let d_factor = dot(&d, x);
                    let by_norm = &d_factor * slope * tau / divisor(&norm);
                    let d = d.g_mul_(&factor).addcmul_(x, &by_norm);
                    (d, d_factor * inverse)
                }
                Form::ActivationThenL2 | Form::ActivationThenL1 => {
                    let h = f.value(x);
                    let norm = norm(&h, self.order());
                    let [inverse, slope] = inverse(&norm, self.eps);
                    let d_factor = dot(&dy, &h);
                    let by_norm = &d_factor * slope * tau;
                    let mut d = &dy * (&inverse * tau);
                    let d = match self.form {
                        Form::ActivationThenL1 => d.addcmul_(&h.sign(), &by_norm),
                        _ => d.addcmul_(&h, &(by_norm / divisor(&norm))),
                    };
                    (f.gradient(x, &d), d_factor * inverse)
                }
                Form::Softmax => {
                    let p = x.softmax(-1, x.kind());
                    let d = Tensor::internal_softmax_backward_data(&dy, &p, -1, x.kind());
                    (d * tau, dot(&dy, &p))
                }
            };
            [dx, d_tau.sum(x.kind()).reshape([1])].map(TchTensor::new)
        }
    }

    impl Theta {
        /// Whether one CUDA kernel computes Θ of these scores.
        fn has_kernel(&self, a: &Tensor) -> bool {
            let kind = matches!(a.kind(), Kind::Float | Kind::BFloat16);
            is_cuda(a) && kind && self.form != Form::Softmax && self.code().is_some()
        }

        /// Returns the last arguments of both kernels.
        fn constants(&self) -> [Arg<'static>; 3] {
            let form = match self.form {
                Form::NormThenActivation => 0,
                Form::ActivationThenL2 => 1,
                Form::ActivationThenL1 => 2,
                Form::Softmax => unreachable!("it has no kernel"),
            };
            let Some(activation) = self.code() else {
                unreachable!("it has no kernel");
            };
            [Arg::Int(form), Arg::Int(activation), Arg::Float(self.eps)]
        }

        /// Returns the number that stands for the activation in the kernels; `None` if they lack the activation.
        fn code(&self) -> Option<usize> {
            match self.activation {
                Activation::GeluTanh => Some(0),
                Activation::GeluErf => Some(1),
                Activation::Relu => Some(2),
                Activation::SquaredRelu | Activation::Silu | Activation::Tanh => None,
            }
        }

        fn launch_forward(&self, a: &Tensor, tau: &Tensor) -> Tensor {
            let [rows, width] = rows(a);
            let y = a.empty_like();
            let bf16 = Arg::Bool(a.kind() == Kind::BFloat16);
            let own = [Arg::Of(a), Arg::Of(tau), Arg::Of(&y), Arg::Int(width), bf16];
            launch(
                c"theta",
                a,
                Grid::blocks(rows, a),
                &[&own[..], &self.constants()].concat(),
            );
            y
        }

        fn launch_backward(&self, a: &Tensor, tau: &Tensor, dy: &Tensor) -> [TchTensor; 2] {
            let [rows, width] = rows(a);
            let (da, d_tau) = (a.empty_like(), empty(&[rows as i64], Kind::Float, a));
            let tensors = [a, tau, dy, &da, &d_tau].map(Arg::Of);
            let kinds = [a, dy].map(|x| Arg::Bool(x.kind() == Kind::BFloat16));
            let arguments = [&tensors[..], &[Arg::Int(width)], &kinds, &self.constants()].concat();
            launch(c"theta_gradient", a, Grid::blocks(rows, a), &arguments);
            [da, d_tau.sum(Kind::Float).reshape([1])].map(TchTensor::new)
        }

        /// Returns the order of the norm of φ(a).
        fn order(&self) -> i64 {
            match self.form {
                Form::ActivationThenL1 => 1,
                _ => 2,
            }
        }
    }
}
