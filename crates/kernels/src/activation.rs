//! Activations in one forward and one backward pass over memory. Only the input is kept.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    GeluTanh,
    /// ½ x (1 + erf(x / √2)).
    GeluErf,
    /// max(x, 0).
    Relu,
    /// max(x, 0)².
    SquaredRelu,
    /// x σ(x).
    Silu,
    /// tanh x.
    Tanh,
}

/// Applies the activation to every element.
///
/// # Errors
///
/// Returns `x` if there is no kernel for it.
pub fn activation<B: Backend, const D: usize>(
    activation: Activation,
    x: Tensor<B, D>,
) -> Result<Tensor<B, D>, Tensor<B, D>> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let result = apply::<B, _, 1>(&activation, [x.into_primitive().tensor()]);
    result.map(of).map_err(|[x]| of(x))
}

#[cfg(feature = "flex")]
pub(crate) mod flex {
    use burn::backend::Flex;
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::Activation;
    use crate::flex::{self, Real, TASK, slice, tensor_like, with_real};
    use crate::op::Op;

    /// A function of one variable and its derivative.
    pub(crate) trait Function: Copy + Send + Sync {
        fn value<E: Real>(self, x: E) -> E;
        fn slope<E: Real>(self, x: E) -> E;
    }

    #[derive(Clone, Copy)]
    pub(crate) struct GeluTanh;
    #[derive(Clone, Copy)]
    pub(crate) struct GeluErf;
    #[derive(Clone, Copy)]
    pub(crate) struct Relu;
    #[derive(Clone, Copy)]
    pub(crate) struct SquaredRelu;
    #[derive(Clone, Copy)]
    pub(crate) struct Silu;
    #[derive(Clone, Copy)]
    pub(crate) struct Tanh;

    impl GeluTanh {
        /// Computes 2u and its derivative, u = √(2/π) (x + 0.044715 x³).
        #[inline(always)]
        fn two_u<E: Real>(x: E) -> (E, E) {
            let c = E::of(2.0 * (2.0 / std::f64::consts::PI).sqrt());
            let cube = E::of(0.044715) * x * x;
            (
                c * x * (E::one() + cube),
                c * (E::one() + E::of(3.0) * cube),
            )
        }

        /// Computes σ(2u) = ½ (1 + tanh u).
        #[inline(always)]
        fn gate<E: Real>(two_u: E) -> E {
            E::one() / (E::one() + (-two_u).fast_exp())
        }
    }

    impl Function for GeluTanh {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            x * Self::gate(Self::two_u(x).0)
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            // Beyond ±30, the slope is constant and x³ could be infinite.
            let far = E::of(30.0);
            let x = if x > far { far } else { x };
            let x = if x < -far { -far } else { x };
            let (two_u, d) = Self::two_u(x);
            let gate = Self::gate(two_u);
            gate + x * gate * (E::one() - gate) * d
        }
    }

    impl GeluErf {
        #[inline(always)]
        fn gate<E: Real>(x: E) -> E {
            let half = E::of(0.5);
            half + half * (x * E::of(std::f64::consts::FRAC_1_SQRT_2)).fast_erf()
        }
    }

    impl Function for GeluErf {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            x * Self::gate(x)
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            let density =
                E::of(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
            Self::gate(x) + x * density * (E::of(-0.5) * x * x).fast_exp()
        }
    }

    impl Function for Relu {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            if x < E::zero() { E::zero() } else { x }
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            if x > E::zero() { E::one() } else { E::zero() }
        }
    }

    impl Function for SquaredRelu {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            let x = Relu.value(x);
            x * x
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            E::of(2.0) * Relu.value(x)
        }
    }

    impl Silu {
        /// Computes σ(x).
        #[inline(always)]
        fn gate<E: Real>(x: E) -> E {
            E::one() / (E::one() + (-x).fast_exp())
        }
    }

    impl Function for Silu {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            x * Self::gate(x)
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            let gate = Self::gate(x);
            gate + x * gate * (E::one() - gate)
        }
    }

    impl Function for Tanh {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            x.fast_tanh()
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            let y = x.fast_tanh();
            E::one() - y * y
        }
    }

    /// y = f(x).
    struct Forward<'a, E, F>(&'a mut [E], &'a [E], F);

    impl<E: Real, F: Function> WithSimd for Forward<'_, E, F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(y, x, f) = self;
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f.value(x);
            }
        }
    }

    /// dy ← f'(x) dy.
    struct Backward<'a, E, F>(&'a mut [E], &'a [E], F);

    impl<E: Real, F: Function> WithSimd for Backward<'_, E, F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(dy, x, f) = self;
            for (dy, &x) in dy.iter_mut().zip(x) {
                *dy = f.slope(x) * *dy;
            }
        }
    }

    /// Evaluates `$body` with the [`Function`] of an activation as `$f`.
    macro_rules! with_function {
        ($activation:expr, |$f:ident| $body:expr) => {{
            use crate::activation::flex::{GeluErf, GeluTanh, Relu, Silu, SquaredRelu, Tanh};
            match $activation {
                crate::Activation::GeluTanh => {
                    let $f = GeluTanh;
                    $body
                }
                crate::Activation::GeluErf => {
                    let $f = GeluErf;
                    $body
                }
                crate::Activation::Relu => {
                    let $f = Relu;
                    $body
                }
                crate::Activation::SquaredRelu => {
                    let $f = SquaredRelu;
                    $body
                }
                crate::Activation::Silu => {
                    let $f = Silu;
                    $body
                }
                crate::Activation::Tanh => {
                    let $f = Tanh;
                    $body
                }
            }
        }};
    }
    pub(crate) use with_function;

    fn forward<E: Real>(activation: Activation, x: &FlexTensor) -> FlexTensor {
        let from = slice::<E>(x);
        let mut y = flex::zeros(from.len());
        let tasks = y.chunks_mut(TASK).zip(from.chunks(TASK)).collect();
        flex::each(tasks, from.len(), |(y, x): (&mut [E], &[E])| {
            with_function!(activation, |f| flex::simd(Forward(y, x, f)))
        });
        tensor_like(y, x)
    }

    /// Turns dy into dx.
    fn backward<E: Real>(activation: Activation, x: &FlexTensor, mut dy: FlexTensor) -> FlexTensor {
        let x = slice::<E>(x);
        let tasks = dy.storage_mut::<E>().chunks_mut(TASK).zip(x.chunks(TASK));
        flex::each(tasks.collect(), x.len(), |(dy, x): (&mut [E], &[E])| {
            with_function!(activation, |f| flex::simd(Backward(dy, x, f)))
        });
        dy
    }

    impl Op<Flex, 1> for Activation {
        type Kept = FlexTensor;

        fn takes(&self, inputs: &[FlexTensor; 1]) -> bool {
            flex::real(inputs)
        }

        fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
            let x = flex::contiguous(x);
            (with_real!(&x, forward(*self, &x)), x)
        }

        fn backward(&self, x: FlexTensor, grad: FlexTensor) -> [FlexTensor; 1] {
            [with_real!(&x, backward(*self, &x, flex::contiguous(grad)))]
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::Tensor;

    use super::Activation;
    use crate::op::Op;

    impl Activation {
        /// Returns PyTorch's name for this form of GELU.
        fn form(self) -> &'static str {
            match self {
                Self::GeluTanh => "tanh",
                _ => "none",
            }
        }

        pub(crate) fn value(self, x: &Tensor) -> Tensor {
            match self {
                Self::Relu => x.relu(),
                Self::SquaredRelu => x.relu().square(),
                Self::Silu => x.silu(),
                Self::Tanh => x.tanh(),
                Self::GeluTanh | Self::GeluErf => x.gelu(self.form()),
            }
        }

        /// Returns the gradient of x, from the gradient of the value.
        pub(crate) fn gradient(self, x: &Tensor, grad: &Tensor) -> Tensor {
            match self {
                Self::Relu => x.threshold_backward(grad, 0.0),
                Self::SquaredRelu => x.relu() * grad * 2.0,
                Self::Silu => x.silu_backward(grad),
                Self::Tanh => Tensor::tanh_backward(grad, &x.tanh()),
                Self::GeluTanh | Self::GeluErf => x.gelu_backward(grad, self.form()),
            }
        }
    }

    impl Op<LibTorch, 1> for Activation {
        type Kept = TchTensor;

        fn takes(&self, _: &[TchTensor; 1]) -> bool {
            true
        }

        fn forward(&self, [x]: [TchTensor; 1]) -> (TchTensor, TchTensor) {
            (TchTensor::new(self.value(&x.tensor)), x)
        }

        fn backward(&self, x: TchTensor, grad: TchTensor) -> [TchTensor; 1] {
            let grad = grad.tensor.to_kind(x.tensor.kind());
            [TchTensor::new(self.gradient(&x.tensor, &grad))]
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::flex::{Function, GeluErf, GeluTanh, Silu, Tanh};

    #[test]
    fn activations_are_flat_far_from_zero() {
        for x in [1e3_f32, 1e12, 1e15, 1e30] {
            for (value, slope) in [
                (GeluTanh.value(-x), GeluTanh.slope(-x)),
                (0.0, GeluErf.slope(-x)),
                (0.0, Tanh.slope(x)),
                (Silu.value(-x), Silu.slope(-x)),
                (Silu.value(x) - x, Silu.slope(x) - 1.0),
                (GeluTanh.value(x) - x, GeluTanh.slope(x) - 1.0),
                (GeluErf.value(x) - x, GeluErf.slope(x) - 1.0),
            ] {
                assert!(
                    value.abs() <= x * 1e-6 && slope.abs() < 1e-6,
                    "{x}: {value}, {slope}"
                );
            }
        }
    }
}
