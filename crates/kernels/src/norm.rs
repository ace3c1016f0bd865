//! Layer norm and RMS norm over the last axis. The backward pass needs the input and two numbers per row.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::{Kernels, apply};

/// The kind and the ε of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Whether the mean is subtracted (layer norm) or not (RMS norm).
    pub centred: bool,
    /// ε, added to the variance or the mean square.
    pub eps: f64,
}

/// Normalises `x`, with the scale `gamma` and the shift `beta`, each `[width]`.
///
/// # Errors
///
/// Returns `x` if there is no kernel for it. No kernel has a shift without a scale.
pub fn norm<B: Backend, const D: usize>(
    norm: Norm,
    x: Tensor<B, D>,
    gamma: Option<Tensor<B, 1>>,
    beta: Option<Tensor<B, 1>>,
) -> Result<Tensor<B, D>, Tensor<B, D>> {
    let params = [gamma, beta];
    match params {
        [Some(gamma), Some(beta)] => go(norm, x, [gamma, beta], |x, [g, b]| [x, g, b]),
        [Some(gamma), None] => go(norm, x, [gamma], |x, [g]| [x, g]),
        [None, None] => go(norm, x, [], |x, []| [x]),
        [None, Some(_)] => Err(x),
    }
}

fn go<B: Backend, const D: usize, const P: usize, const N: usize>(
    norm: Norm,
    x: Tensor<B, D>,
    params: [Tensor<B, 1>; P],
    join: impl Fn(Float<B>, [Float<B>; P]) -> [Float<B>; N],
) -> Result<Tensor<B, D>, Tensor<B, D>>
where
    Norm: Kernels<N>,
{
    let params = params.map(|p| p.into_primitive().tensor());
    let inputs = join(x.into_primitive().tensor(), params);
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let result = apply::<B, _, N>(&norm, inputs);
    // The first input is x.
    result.map(of).map_err(|inputs| of(first(inputs)))
}

type Float<B> = <B as burn::tensor::backend::BackendTypes>::FloatTensorPrimitive;

fn first<T, const N: usize>(all: [T; N]) -> T {
    let mut all = all.into_iter();
    all.next()
        .unwrap_or_else(|| unreachable!("a norm has an input"))
}

#[cfg(feature = "flex")]
pub(crate) mod flex {
    use std::sync::Arc;

    use burn::backend::Flex;
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::Norm;
    use crate::flex::{self, Real, add_up, rows_per_task, slice, tensor_like, vector, with_real};
    use crate::op::Op;

    /// The inputs of the backward pass: the inputs of the norm, and the mean and 1 / √(variance + ε) of each row.
    #[derive(Clone, Debug)]
    pub struct Kept<const N: usize> {
        inputs: [FlexTensor; N],
        rows: Arc<Vec<[f64; 2]>>,
    }

    /// y = (x − mean) / √(variance + ε) · γ + β for some rows.
    pub(crate) struct Forward<'a, E> {
        pub(crate) norm: Norm,
        pub(crate) x: &'a [E],
        pub(crate) gamma: Option<&'a [E]>,
        pub(crate) beta: Option<&'a [E]>,
        pub(crate) width: usize,
        pub(crate) y: &'a mut [E],
        /// The mean and 1 / √(variance + ε) of each row.
        pub(crate) rows: &'a mut [[f64; 2]],
    }

    impl<E: Real> WithSimd for Forward<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let width = self.width;
            let n = E::of(width as f64);
            let rows = self.x.chunks_exact(width);
            let rows = rows.zip(self.y.chunks_exact_mut(width));
            for ((x, y), kept) in rows.zip(self.rows) {
                let mean = match self.norm.centred {
                    true => E::total(simd, x) / n,
                    false => E::zero(),
                };
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = x - mean;
                }
                let variance = E::dot(simd, y, y) / n;
                let factor = (variance + E::of(self.norm.eps)).sqrt().recip();
                *kept = [mean, factor].map(E::wide);
                match (self.gamma, self.beta) {
                    (Some(gamma), Some(beta)) => {
                        for ((y, &g), &b) in y.iter_mut().zip(gamma).zip(beta) {
                            *y = *y * factor * g + b;
                        }
                    }
                    (Some(gamma), None) => {
                        for (y, &g) in y.iter_mut().zip(gamma) {
                            *y = *y * factor * g;
                        }
                    }
                    _ => {
                        for y in y {
                            *y = *y * factor;
                        }
                    }
                }
            }
        }
    }

    /// Gradients of some rows. With factor = 1 / √(variance + ε), x̂ = (x − mean) · factor and g = dy · γ:
    ///
    /// ```text
    /// dx = factor · (g − mean(g) − x̂ · mean(g · x̂)),  dγ = Σ dy · x̂,  dβ = Σ dy
    /// ```
    ///
    /// RMS norm has no mean(g).
    pub(crate) struct Backward<'a, E> {
        pub(crate) centred: bool,
        pub(crate) x: &'a [E],
        pub(crate) gamma: &'a [E],
        pub(crate) rows: &'a [[f64; 2]],
        /// dy, which becomes dx.
        pub(crate) d: &'a mut [E],
        pub(crate) d_gamma: &'a mut [E],
        pub(crate) d_beta: &'a mut [E],
    }

    impl<E: Real> WithSimd for Backward<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let gamma = self.gamma;
            let width = gamma.len();
            let n = E::of(width as f64);
            let rows = self.x.chunks_exact(width).zip(self.rows);
            // x̂.
            let mut normal = vec![E::zero(); width];
            for ((x, &kept), d) in rows.zip(self.d.chunks_exact_mut(width)) {
                let [mean, factor] = kept.map(E::of);
                for (normal, &x) in normal.iter_mut().zip(x) {
                    *normal = (x - mean) * factor;
                }
                for ((sum, &x), &dy) in self.d_gamma.iter_mut().zip(&normal).zip(&*d) {
                    *sum = *sum + dy * x;
                }
                for (sum, &dy) in self.d_beta.iter_mut().zip(&*d) {
                    *sum = *sum + dy;
                }
                for (d, &gamma) in d.iter_mut().zip(gamma) {
                    *d = *d * gamma;
                }
                let of_mean = match self.centred {
                    true => E::total(simd, d) / n,
                    false => E::zero(),
                };
                let of_scale = E::dot(simd, d, &normal) / n;
                for (d, &x) in d.iter_mut().zip(&normal) {
                    *d = factor * (*d - of_mean - x * of_scale);
                }
            }
        }
    }

    fn forward_of<E: Real>(norm: Norm, inputs: &[FlexTensor]) -> (FlexTensor, Vec<[f64; 2]>) {
        let width = flex::width(&inputs[0]);
        let x = slice::<E>(&inputs[0]);
        let param = |i: usize| inputs.get(i).map(slice::<E>);
        let per_task = rows_per_task(width);
        let mut y = flex::zeros(x.len());
        let mut rows = vec![[0.0; 2]; x.len() / width.max(1)];
        let tasks = (x.chunks(per_task * width))
            .zip(y.chunks_mut(per_task * width))
            .zip(rows.chunks_mut(per_task))
            .collect();
        flex::each(tasks, x.len(), |((x, y), rows)| {
            flex::simd(Forward {
                norm,
                x,
                gamma: param(1),
                beta: param(2),
                width,
                y,
                rows,
            });
        });
        (tensor_like(y, &inputs[0]), rows)
    }

    /// Turns dy into dx, and returns dγ and dβ too.
    fn backward_of<E: Real>(
        norm: Norm,
        inputs: &[FlexTensor],
        rows: &[[f64; 2]],
        mut dy: FlexTensor,
    ) -> [FlexTensor; 3] {
        let width = flex::width(&inputs[0]);
        let x = slice::<E>(&inputs[0]);
        let ones = vec![E::one(); width];
        let gamma = inputs.get(1).map_or(&ones[..], slice::<E>);
        // The more rows a task has, the fewer parts of dγ and dβ there are to add.
        let per_task = 4 * rows_per_task(width);
        let tasks = (x.chunks(per_task * width))
            .zip(dy.storage_mut::<E>().chunks_mut(per_task * width))
            .zip(rows.chunks(per_task))
            .collect();
        let of_params = flex::each(tasks, x.len(), |((x, d), rows)| {
            let [mut d_gamma, mut d_beta] = [(); 2].map(|()| vec![E::zero(); width]);
            flex::simd(Backward {
                centred: norm.centred,
                x,
                gamma,
                rows,
                d,
                d_gamma: &mut d_gamma,
                d_beta: &mut d_beta,
            });
            (d_gamma, d_beta)
        });
        let (d_gamma, d_beta): (Vec<_>, Vec<_>) = of_params.into_iter().unzip();
        let [d_gamma, d_beta] = [d_gamma, d_beta].map(|d| vector(add_up(d, width)));
        [dy, d_gamma, d_beta]
    }

    // A generic function is compiled in the crate that calls it, with the optimisations of that crate. The two
    // functions below are not generic, so they are compiled here.

    fn forward(norm: Norm, inputs: &[FlexTensor]) -> (FlexTensor, Vec<[f64; 2]>) {
        with_real!(&inputs[0], forward_of(norm, inputs))
    }

    fn backward(
        norm: Norm,
        inputs: &[FlexTensor],
        rows: &[[f64; 2]],
        dy: FlexTensor,
    ) -> [FlexTensor; 3] {
        with_real!(&inputs[0], backward_of(norm, inputs, rows, dy))
    }

    impl<const N: usize> Op<Flex, N> for Norm {
        type Kept = Kept<N>;

        fn takes(&self, inputs: &[FlexTensor; N]) -> bool {
            flex::real(inputs)
        }

        fn forward(&self, inputs: [FlexTensor; N]) -> (FlexTensor, Kept<N>) {
            let inputs = inputs.map(flex::contiguous);
            let (y, rows) = forward(*self, &inputs);
            let rows = Arc::new(rows);
            (y, Kept { inputs, rows })
        }

        fn backward(&self, kept: Kept<N>, grad: FlexTensor) -> [FlexTensor; N] {
            let all = backward(*self, &kept.inputs, &kept.rows, flex::contiguous(grad));
            let mut all = all.into_iter();
            [(); N].map(|()| {
                all.next()
                    .unwrap_or_else(|| unreachable!("at most 3 inputs"))
            })
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::{Kind, Tensor};

    use super::Norm;
    use crate::cuda::{Arg, Grid, empty, launch, rows};
    use crate::libtorch::{self, LayerNorm, contiguous, is_cuda};
    use crate::op::Op;

    /// Returns the RMS norm of x with the scale γ, if there is one, and 1 / √(mean square + ε) of each row.
    fn rms_norm(eps: f64, inputs: &[TchTensor]) -> (Tensor, Tensor) {
        let x = &inputs[0].tensor;
        let [rows, width] = rows(x);
        let (y, factors) = (x.empty_like(), empty(&[rows as i64], Kind::Float, x));
        let gamma = inputs
            .get(1)
            .map_or(Arg::Null, |gamma| Arg::Of(&gamma.tensor));
        let arguments = [
            Arg::Of(x),
            gamma,
            Arg::Of(&y),
            Arg::Of(&factors),
            Arg::Int(width),
            Arg::Float(eps),
        ];
        launch(c"rms_norm", x, Grid::blocks(rows, x), &arguments);
        (y, factors)
    }

    /// Returns the gradients of x and, if there is one, of γ.
    fn rms_norm_backward<const N: usize>(kept: &Kept<N>, dy: &Tensor) -> [TchTensor; N] {
        let (x, factors) = (&kept.inputs[0].tensor, &kept.rows[1].tensor);
        let [rows, width] = rows(x);
        let dx = x.empty_like();
        let gamma = kept
            .inputs
            .get(1)
            .map_or(Arg::Null, |gamma| Arg::Of(&gamma.tensor));
        let tensors = [Arg::Of(dy), Arg::Of(factors), Arg::Of(&dx), Arg::Int(width)];
        let arguments = [&[Arg::Of(x), gamma][..], &tensors].concat();
        launch(c"rms_norm_gradient", x, Grid::blocks(rows, x), &arguments);
        std::array::from_fn(|i| match i {
            0 => TchTensor::new(dx.shallow_clone()),
            _ => {
                // Sums parts of the rows, then adds up these sums.
                let parts = rows.div_ceil(64).clamp(1, 256);
                let sums = empty(&[parts as i64, width as i64], Kind::Float, x);
                let grid = Grid {
                    rows: parts,
                    ..Grid::threads(width)
                };
                let numbers = [
                    Arg::Long(rows),
                    Arg::Int(width),
                    Arg::Int(rows.div_ceil(parts)),
                ];
                let tensors = [x, dy, factors, &sums].map(Arg::Of);
                launch(
                    c"rms_norm_gamma",
                    x,
                    grid,
                    &[&tensors[..], &numbers].concat(),
                );
                let sum = sums.sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
                TchTensor::new(sum)
            }
        })
    }

    /// The inputs of the backward pass: the inputs of the norm, and the mean and 1 / √(variance + ε) of each row. RMS
    /// norm has no mean, so its factor is stored in both places.
    #[derive(Clone, Debug)]
    pub struct Kept<const N: usize> {
        inputs: [TchTensor; N],
        rows: [TchTensor; 2],
    }

    impl<const N: usize> Op<LibTorch, N> for Norm {
        type Kept = Kept<N>;

        /// Takes layer norms everywhere, and f32 RMS norms without a shift on CUDA.
        fn takes(&self, inputs: &[TchTensor; N]) -> bool {
            let is_f32 = inputs.iter().all(|x| x.tensor.kind() == Kind::Float);
            self.centred || (N < 3 && is_cuda(&inputs[0].tensor) && is_f32)
        }

        fn forward(&self, inputs: [TchTensor; N]) -> (TchTensor, Kept<N>) {
            if !self.centred {
                let inputs = inputs.map(contiguous);
                let (y, factor) = rms_norm(self.eps, &inputs);
                let factor = TchTensor::new(factor);
                let rows = [factor.clone(), factor];
                return (TchTensor::new(y), Kept { inputs, rows });
            }
            let [x, gamma, beta] = [0, 1, 2].map(|i| inputs.get(i).map(|x| &x.tensor));
            let x = x.unwrap_or_else(|| unreachable!("a norm has an input"));
            let width = x.size().last().copied().unwrap_or(1);
            let (y, mean, factor) = Tensor::native_layer_norm(x, [width], gamma, beta, self.eps);
            let rows = [mean, factor].map(TchTensor::new);
            (TchTensor::new(y), Kept { inputs, rows })
        }

        fn backward(&self, kept: Kept<N>, grad: TchTensor) -> [TchTensor; N] {
            if !self.centred {
                return rms_norm_backward(&kept, &contiguous(grad).tensor);
            }
            let [x, gamma, beta] = [0, 1, 2].map(|i| kept.inputs.get(i).map(|x| &x.tensor));
            let x = x.unwrap_or_else(|| unreachable!("a norm has an input"));
            let [mean, factor] = kept.rows.each_ref().map(|x| &x.tensor);
            let grad = grad.tensor.to_kind(x.kind());
            let norm = LayerNorm {
                x,
                gamma,
                beta,
                mean,
                factor,
            };
            libtorch::layer_norm_backward::<N>(&norm, &grad).map(TchTensor::new)
        }
    }
}
