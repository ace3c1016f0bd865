//! The element-wise part of optimizer steps, in one pass over memory, and sums of squares. Neither has a gradient.

use burn::tensor::{Tensor, backend::Backend};

/// Constants of an AdamW step (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2). As
/// in PyTorch, the decay is multiplied by the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay rate of the first moment.
    pub beta_1: f64,
    /// Decay rate of the second moment.
    pub beta_2: f64,
    /// ε, added to the root of the second moment.
    pub eps: f64,
    /// Weight decay; the step multiplies it by the learning rate.
    pub weight_decay: f64,
    /// Multiplier of the gradient, for clipping.
    pub scale: f64,
    /// Number of this step, from 1.
    pub time: usize,
}

/// A parameter x, its moments m and v, and its gradient, `[count]` each.
pub type State<B> = [Tensor<B, 1>; 4];

/// The constants of a step, and the state of the parameter that the step updates.
pub type Due<B> = (AdamW, State<B>);

/// Takes a step of each parameter. Returns x, m and v after the step.
///
/// # Errors
///
/// Returns the inputs if there is no kernel for them.
pub fn adamw<B: Backend>(steps: Vec<Due<B>>) -> Result<Vec<[Tensor<B, 1>; 3]>, Vec<Due<B>>> {
    #[cfg(feature = "flex")]
    let steps = match each(steps, |(step, state)| {
        crate::flex::on_flex(state, |state| flex::adamw(step, state)).map_err(|state| (step, state))
    }) {
        Ok(outputs) => return Ok(outputs),
        Err(steps) => steps,
    };
    #[cfg(feature = "cube")]
    let steps = match cube::adamw(steps) {
        Ok(outputs) => return Ok(outputs),
        Err(steps) => steps,
    };
    #[cfg(feature = "tch")]
    let steps = match libtorch::adamw(steps) {
        Ok(outputs) => return Ok(outputs),
        Err(steps) => steps,
    };
    Err(steps)
}

/// Computes Σ x_i² over all elements of all `parts` `[count]`, as `[1]`.
///
/// # Errors
///
/// Returns `parts` if there is no kernel for them.
pub fn sum_of_squares<B: Backend>(
    parts: Vec<Tensor<B, 1>>,
) -> Result<Tensor<B, 1>, Vec<Tensor<B, 1>>> {
    #[cfg(feature = "flex")]
    let parts = match each(parts, |x| {
        crate::flex::on_flex([x], |[x]| [flex::sum_of_squares(x)]).map_err(|[x]| x)
    }) {
        Ok(sums) => {
            let sums = sums.into_iter().map(|[sum]| sum);
            return sums.reduce(|a, b| a + b).ok_or(Vec::new());
        }
        Err(parts) => parts,
    };
    #[cfg(feature = "cube")]
    let parts = match cube::sum_of_squares(parts) {
        Ok(sum) => return Ok(sum),
        Err(parts) => parts,
    };
    #[cfg(feature = "tch")]
    let parts = match libtorch::sum_of_squares(parts) {
        Ok(sum) => return Ok(sum),
        Err(parts) => parts,
    };
    Err(parts)
}

/// Applies `kernel` to every input. Returns the inputs if the kernel does not take the first input.
#[cfg(any(feature = "flex", feature = "cube"))]
fn each<I, O>(inputs: Vec<I>, kernel: impl Fn(I) -> Result<O, I>) -> Result<Vec<O>, Vec<I>> {
    let mut inputs = inputs.into_iter();
    let Some(first) = inputs.next() else {
        return Ok(Vec::new());
    };
    match kernel(first) {
        Err(first) => Err(std::iter::once(first).chain(inputs).collect()),
        Ok(first) => {
            let rest = inputs.map(|input| {
                let output = kernel(input);
                output.unwrap_or_else(|_| unreachable!("all parameters have one backend and type"))
            });
            Ok(std::iter::once(first).chain(rest).collect())
        }
    }
}

#[cfg(feature = "cube")]
mod cube {
    use burn::tensor::{Tensor, backend::Backend};
    use burn_cubecl::CubeRuntime;

    use super::{Due, each};
    use crate::cube::{on_cube, optimizer};

    /// Calls `$kernel` with the runtime of each GPU backend that is compiled in, until one takes the inputs.
    macro_rules! any_runtime {
        ($kernel:ident, $inputs:ident) => {{
            #[cfg(feature = "cuda")]
            let $inputs = match $kernel::<B, cubecl::cuda::CudaRuntime>($inputs) {
                Ok(outputs) => return Ok(outputs),
                Err(inputs) => inputs,
            };
            #[cfg(any(feature = "vulkan", feature = "wgpu"))]
            let $inputs = match $kernel::<B, cubecl::wgpu::WgpuRuntime>($inputs) {
                Ok(outputs) => return Ok(outputs),
                Err(inputs) => inputs,
            };
            Err($inputs)
        }};
    }

    pub fn adamw<B: Backend>(steps: Vec<Due<B>>) -> Result<Vec<[Tensor<B, 1>; 3]>, Vec<Due<B>>> {
        fn on<B: Backend, R: CubeRuntime>(
            steps: Vec<Due<B>>,
        ) -> Result<Vec<[Tensor<B, 1>; 3]>, Vec<Due<B>>> {
            // An empty parameter, for instance, has no kernel.
            let fits = |(_, state): &Due<B>| state.iter().all(|x| crate::cube::fits_on::<B, R>(x));
            if !steps.iter().all(fits) {
                return Err(steps);
            }
            each(steps, |(step, state)| {
                on_cube::<B, R, 1, 4, 3>(state, |state| optimizer::adamw(step, state))
                    .map_err(|state| (step, state))
            })
        }
        any_runtime!(on, steps)
    }

    pub fn sum_of_squares<B: Backend>(
        parts: Vec<Tensor<B, 1>>,
    ) -> Result<Tensor<B, 1>, Vec<Tensor<B, 1>>> {
        use optimizer::sum_of_squares;
        any_runtime!(sum_of_squares, parts)
    }
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

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn::tensor::backend::Backend;
    use burn::tensor::{Tensor, TensorPrimitive};
    use burn_tch::TchTensor;

    use super::{AdamW, Due};
    use crate::libtorch;
    use crate::op::{plain_only, same};

    fn of<B: Backend>(x: TchTensor) -> Tensor<B, 1> {
        Tensor::from_primitive(TensorPrimitive::Float(same(x)))
    }

    fn tch<B: Backend>(x: Tensor<B, 1>) -> TchTensor {
        same(x.into_primitive().tensor())
    }

    /// Whether the backend `B` is LibTorch.
    fn is_libtorch<B: Backend>() -> bool {
        !plain_only() && std::any::TypeId::of::<B>() == std::any::TypeId::of::<LibTorch>()
    }

    /// Applies PyTorch's fused AdamW, in place. Parameters with the same constants share a launch.
    pub fn adamw<B: Backend>(steps: Vec<Due<B>>) -> Result<Vec<[Tensor<B, 1>; 3]>, Vec<Due<B>>> {
        if !is_libtorch::<B>() {
            return Err(steps);
        }
        // Copies a tensor that something else holds.
        let owned = |x: Tensor<B, 1>| {
            let x = tch(x);
            match x.can_mut() {
                true => x,
                false => TchTensor::new(x.tensor.copy()),
            }
        };
        let steps: Vec<_> = steps
            .into_iter()
            .map(|(step, state)| (step, state.map(owned)))
            .collect();
        let mut groups: Vec<(AdamW, Vec<[&tch::Tensor; 4]>)> = Vec::new();
        for (step, state) in &steps {
            let state = state.each_ref().map(|x| &x.tensor);
            match groups.iter_mut().find(|(of_group, _)| of_group == step) {
                Some((_, group)) => group.push(state),
                None => groups.push((*step, vec![state])),
            }
        }
        for (step, group) in groups {
            libtorch::adamw(step, &group);
        }
        let after = steps.into_iter().map(|(_, [x, m, v, _])| [x, m, v].map(of));
        Ok(after.collect())
    }

    pub fn sum_of_squares<B: Backend>(
        parts: Vec<Tensor<B, 1>>,
    ) -> Result<Tensor<B, 1>, Vec<Tensor<B, 1>>> {
        if !is_libtorch::<B>() || parts.is_empty() {
            return Err(parts);
        }
        let parts: Vec<_> = parts.into_iter().map(tch).collect();
        let parts: Vec<_> = parts.iter().map(|x| &x.tensor).collect();
        Ok(of(TchTensor::new(libtorch::sum_of_squares(&parts))))
    }
}
