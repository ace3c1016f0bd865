//! GELU: one pass forward, one pass backward, and only the input is kept.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The form of GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    Tanh,
    /// ½ x (1 + erf(x / √2)).
    Erf,
}

/// GELU of every element, or `x` if there is no kernel for it.
///
/// # Errors
///
/// Returns `x` if there is no kernel for it.
pub fn gelu<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    form: Gelu,
) -> Result<Tensor<B, D>, Tensor<B, D>> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let result = apply::<B, _, 1>(&form, [x.into_primitive().tensor()]);
    result.map(of).map_err(|[x]| of(x))
}

#[cfg(feature = "flex")]
pub(crate) mod flex {
    use burn::backend::Flex;
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::Gelu;
    use crate::flex::{self, Real, slice, tensor_like, with_real};
    use crate::op::Op;

    /// A function of one variable and its derivative.
    pub(crate) trait Curve: Copy + Send + Sync {
        fn value<E: Real>(self, x: E) -> E;
        fn slope<E: Real>(self, x: E) -> E;
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Tanh;
    #[derive(Clone, Copy)]
    pub(crate) struct Erf;
    #[derive(Clone, Copy)]
    pub(crate) struct Relu;

    impl Tanh {
        /// 2u and its derivative, u = √(2/π) (x + 0.044715 x³).
        #[inline(always)]
        fn two_u<E: Real>(x: E) -> (E, E) {
            let c = E::of(2.0 * (2.0 / std::f64::consts::PI).sqrt());
            let cube = E::of(0.044715) * x * x;
            (
                c * x * (E::one() + cube),
                c * (E::one() + E::of(3.0) * cube),
            )
        }

        /// σ(2u) = ½ (1 + tanh u).
        #[inline(always)]
        fn gate<E: Real>(two_u: E) -> E {
            E::one() / (E::one() + (-two_u).fast_exp())
        }
    }

    impl Curve for Tanh {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            x * Self::gate(Self::two_u(x).0)
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            let (two_u, d) = Self::two_u(x);
            let gate = Self::gate(two_u);
            gate + x * gate * (E::one() - gate) * d
        }
    }

    impl Erf {
        #[inline(always)]
        fn gate<E: Real>(x: E) -> E {
            let half = E::of(0.5);
            half + half * (x * E::of(std::f64::consts::FRAC_1_SQRT_2)).fast_erf()
        }
    }

    impl Curve for Erf {
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

    impl Curve for Relu {
        #[inline(always)]
        fn value<E: Real>(self, x: E) -> E {
            if x < E::zero() { E::zero() } else { x }
        }

        #[inline(always)]
        fn slope<E: Real>(self, x: E) -> E {
            if x > E::zero() { E::one() } else { E::zero() }
        }
    }

    /// y = f(x).
    struct Forward<'a, E, C>(&'a mut [E], &'a [E], C);

    impl<E: Real, C: Curve> WithSimd for Forward<'_, E, C> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(y, x, f) = self;
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f.value(x);
            }
        }
    }

    /// dx = f'(x) dy.
    struct Backward<'a, E, C>(&'a mut [E], &'a [E], &'a [E], C);

    impl<E: Real, C: Curve> WithSimd for Backward<'_, E, C> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Self(dx, x, dy, f) = self;
            for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                *dx = f.slope(x) * dy;
            }
        }
    }

    const CHUNK: usize = 1 << 13;

    fn forward<E: Real>(form: Gelu, x: &FlexTensor) -> FlexTensor {
        let from = slice::<E>(x);
        let mut y = vec![E::zero(); from.len()];
        let tasks = y.chunks_mut(CHUNK).zip(from.chunks(CHUNK)).collect();
        flex::each(tasks, from.len(), |(y, x)| match form {
            Gelu::Tanh => flex::simd(Forward(y, x, Tanh)),
            Gelu::Erf => flex::simd(Forward(y, x, Erf)),
        });
        tensor_like(y, x)
    }

    fn backward<E: Real>(form: Gelu, x: &FlexTensor, dy: &FlexTensor) -> FlexTensor {
        let (from, dy) = (slice::<E>(x), slice::<E>(dy));
        let mut dx = vec![E::zero(); from.len()];
        let tasks = dx
            .chunks_mut(CHUNK)
            .zip(from.chunks(CHUNK))
            .zip(dy.chunks(CHUNK));
        flex::each(tasks.collect(), from.len(), |((dx, x), dy)| match form {
            Gelu::Tanh => flex::simd(Backward(dx, x, dy, Tanh)),
            Gelu::Erf => flex::simd(Backward(dx, x, dy, Erf)),
        });
        tensor_like(dx, x)
    }

    impl Op<Flex, 1> for Gelu {
        type Kept = FlexTensor;

        fn takes(&self, inputs: &[FlexTensor; 1]) -> bool {
            flex::real(inputs)
        }

        fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
            let x = x.to_contiguous();
            (with_real!(&x, forward(*self, &x)), x)
        }

        fn backward(&self, x: FlexTensor, grad: FlexTensor) -> [FlexTensor; 1] {
            [with_real!(&x, backward(*self, &x, &grad.to_contiguous()))]
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;

    use super::Gelu;
    use crate::op::Op;

    impl Gelu {
        fn name(self) -> &'static str {
            match self {
                Self::Tanh => "tanh",
                Self::Erf => "none",
            }
        }
    }

    impl Op<LibTorch, 1> for Gelu {
        type Kept = TchTensor;

        fn takes(&self, _: &[TchTensor; 1]) -> bool {
            true
        }

        fn forward(&self, [x]: [TchTensor; 1]) -> (TchTensor, TchTensor) {
            (TchTensor::new(x.tensor.gelu(self.name())), x)
        }

        fn backward(&self, x: TchTensor, grad: TchTensor) -> [TchTensor; 1] {
            [TchTensor::new(
                x.tensor.gelu_backward(&grad.tensor, self.name()),
            )]
        }
    }
}
