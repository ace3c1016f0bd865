//! Operations with their own kernel and gradient.

use std::any::Any;
use std::fmt::Debug;
use std::sync::OnceLock;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

/// An operation on `N` tensors that has kernels for the backend `K`.
pub trait Op<K: Backend, const N: usize>: Clone + Debug + Send + 'static {
    /// The inputs of the backward pass.
    type Kept: Clone + Debug + Send + 'static;

    /// Whether there is a kernel for these inputs.
    fn takes(&self, inputs: &[FloatTensor<K>; N]) -> bool;

    /// Returns the result, and the inputs of the backward pass.
    fn forward(&self, inputs: [FloatTensor<K>; N]) -> (FloatTensor<K>, Self::Kept);

    /// Returns the gradients of the inputs, from the gradient of the result.
    fn backward(&self, kept: Self::Kept, grad: FloatTensor<K>) -> [FloatTensor<K>; N];
}

/// An operation that implements [`Op`] for every compiled backend that can have kernels.
pub trait Kernels<const N: usize>:
    OnFlex<N> + OnLibTorch<N> + OnCuda<N> + OnVulkan<N> + OnWgpu<N>
{
}
impl<O, const N: usize> Kernels<N> for O where
    O: OnFlex<N> + OnLibTorch<N> + OnCuda<N> + OnVulkan<N> + OnWgpu<N>
{
}

/// Declares a trait that requires [`Op`] on a backend if the backend is compiled in, and is empty otherwise.
macro_rules! on {
    ($name:ident, $feature:literal, $backend:ty) => {
        #[doc = concat!("[`Op`] on the backend of the feature `", $feature, "`, if it is compiled in.")]
        #[cfg(feature = $feature)]
        pub trait $name<const N: usize>: Op<$backend, N> {}
        #[cfg(feature = $feature)]
        impl<O: Op<$backend, N>, const N: usize> $name<N> for O {}

        #[doc = concat!("[`Op`] on the backend of the feature `", $feature, "`, if it is compiled in.")]
        #[cfg(not(feature = $feature))]
        pub trait $name<const N: usize> {}
        #[cfg(not(feature = $feature))]
        impl<O, const N: usize> $name<N> for O {}
    };
}

on!(OnFlex, "flex", burn::backend::Flex);
on!(OnLibTorch, "tch", burn::backend::LibTorch);
on!(OnCuda, "cuda", crate::cube::Cuda);
on!(OnVulkan, "vulkan", crate::cube::Vulkan);
on!(OnWgpu, "wgpu", crate::cube::Wgpu);

/// Applies `op` with the kernels of `B`, with or without autodiff. Returns the inputs if there are no kernels for them,
/// or if the environment variable `RESIDUAL_ZOO_OPS` is `plain`.
pub(crate) fn apply<B: Backend, O: Kernels<N>, const N: usize>(
    op: &O,
    inputs: [FloatTensor<B>; N],
) -> Result<FloatTensor<B>, [FloatTensor<B>; N]> {
    if plain_only() {
        return Err(inputs);
    }
    #[cfg(feature = "flex")]
    let inputs = match apply_on::<B, burn::backend::Flex, O, N>(op, inputs) {
        Ok(result) => return Ok(result),
        Err(inputs) => inputs,
    };
    #[cfg(feature = "tch")]
    let inputs = match apply_on::<B, burn::backend::LibTorch, O, N>(op, inputs) {
        Ok(result) => return Ok(result),
        Err(inputs) => inputs,
    };
    #[cfg(feature = "cuda")]
    let inputs = match apply_on::<B, crate::cube::Cuda, O, N>(op, inputs) {
        Ok(result) => return Ok(result),
        Err(inputs) => inputs,
    };
    #[cfg(feature = "vulkan")]
    let inputs = match apply_on::<B, crate::cube::Vulkan, O, N>(op, inputs) {
        Ok(result) => return Ok(result),
        Err(inputs) => inputs,
    };
    #[cfg(feature = "wgpu")]
    let inputs = match apply_on::<B, crate::cube::Wgpu, O, N>(op, inputs) {
        Ok(result) => return Ok(result),
        Err(inputs) => inputs,
    };
    let _ = op;
    Err(inputs)
}

/// Whether the user asks for the plain forms with `RESIDUAL_ZOO_OPS=plain`.
pub fn plain_only() -> bool {
    static PLAIN: OnceLock<bool> = OnceLock::new();
    *PLAIN.get_or_init(|| std::env::var_os("RESIDUAL_ZOO_OPS").is_some_and(|v| v == "plain"))
}

/// Sets whether products of f32 numbers round their factors to TF32, on CUDA devices; on LibTorch, this includes
/// convolutions. The setting holds for the whole process. Without a call, Burn's CUDA backend rounds, and LibTorch
/// rounds only in convolutions.
pub fn allow_tf32(allow: bool) {
    #[cfg(feature = "cube")]
    crate::cube::matmul::allow_tf32(allow);
    #[cfg(feature = "tch")]
    crate::libtorch::allow_tf32(allow);
    let _ = allow;
}

/// Sets whether LibTorch uses only deterministic kernels. An operation without such a kernel then fails. The setting
/// holds for the whole process. Call this function before the first product on a GPU.
pub fn deterministic(on: bool) {
    #[cfg(feature = "tch")]
    crate::libtorch::deterministic(on);
    let _ = on;
}

/// Runs `work`, and writes a trace of LibTorch's operations and the GPU's kernels to `path`, for the viewers of Chrome
/// and Perfetto.
///
/// # Errors
///
/// Returns an error if LibTorch is not compiled in, if the recording cannot start, or if the file cannot be written.
pub fn profile<T>(path: &std::path::Path, work: impl FnOnce() -> T) -> Result<T, String> {
    #[cfg(feature = "tch")]
    {
        crate::libtorch::start_profile()?;
        let done = work();
        crate::libtorch::end_profile(path)?;
        Ok(done)
    }
    #[cfg(not(feature = "tch"))]
    {
        let _ = (path, work);
        Err("records only LibTorch; add `--features tch` to the cargo command".into())
    }
}

#[cfg(any(feature = "flex", feature = "tch", feature = "cube"))]
fn apply_on<B: Backend, K: Backend, O: Op<K, N>, const N: usize>(
    op: &O,
    inputs: [FloatTensor<B>; N],
) -> Result<FloatTensor<B>, [FloatTensor<B>; N]> {
    let inputs = match cast::<_, [FloatTensor<K>; N]>(inputs) {
        Ok(inputs) if op.takes(&inputs) => return Ok(same(op.forward(inputs).0)),
        Ok(inputs) => return Err(same(inputs)),
        Err(inputs) => inputs,
    };
    let inputs = cast::<_, [FloatTensor<Autodiff<K>>; N]>(inputs)?;
    let nodes = inputs.each_ref().map(|x| x.node.clone());
    let primitives = inputs.each_ref().map(|x| x.primitive.clone());
    if !op.takes(&primitives) {
        return Err(same(inputs));
    }
    let differentiable = Differentiable::<K, O>(op.clone(), std::marker::PhantomData);
    let result = match differentiable
        .prepare::<NoCheckpointing>(nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(node) => {
            let (result, kept) = op.forward(primitives);
            node.finish(kept, result)
        }
        OpsKind::UnTracked(node) => node.finish(op.forward(primitives).0),
    };
    // If the inputs of a node are dropped before the node is registered, Burn forgets them.
    drop(inputs);
    Ok(same(result))
}

/// Converts `value` to `To`, which names the same type.
pub(crate) fn same<From: 'static, To: 'static>(value: From) -> To {
    cast(value).unwrap_or_else(|_| unreachable!("both are the type of one backend's tensors"))
}

/// Converts `value` to `To`, if `To` is its type.
pub(crate) fn cast<From: 'static, To: 'static>(value: From) -> Result<To, From> {
    let mut slot = Some(value);
    if let Some(found) = (&mut slot as &mut dyn Any).downcast_mut::<Option<To>>()
        && let Some(found) = found.take()
    {
        return Ok(found);
    }
    Err(slot.unwrap_or_else(|| unreachable!("only a value of type `To` is taken")))
}

/// Burn's interface to [`Op`].
#[cfg(any(feature = "flex", feature = "tch", feature = "cube"))]
struct Differentiable<K, O>(O, std::marker::PhantomData<K>);

#[cfg(any(feature = "flex", feature = "tch", feature = "cube"))]
impl<K, O: Debug> Debug for Differentiable<K, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(any(feature = "flex", feature = "tch", feature = "cube"))]
impl<K: Backend, O: Op<K, N>, const N: usize> Backward<K, N> for Differentiable<K, O> {
    type State = O::Kept;

    fn backward(self, ops: Ops<O::Kept, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<K>(&ops.node);
        let of_inputs = self.0.backward(ops.state, grad);
        for (parent, grad) in ops.parents.into_iter().zip(of_inputs) {
            if let Some(parent) = parent {
                grads.register::<K>(parent.id, grad);
            }
        }
    }
}

/// Declares that a backend has no kernel for an operation on this number of tensors.
#[cfg(any(feature = "flex", feature = "tch", feature = "cube"))]
macro_rules! no_kernel {
    ([$($parameters:tt)*] $op:ty, $inputs:literal, $backend:ty, $tensor:ty) => {
        impl<$($parameters)*> crate::op::Op<$backend, $inputs> for $op {
            type Kept = ();

            fn takes(&self, _: &[$tensor; $inputs]) -> bool {
                false
            }

            fn forward(&self, _: [$tensor; $inputs]) -> ($tensor, ()) {
                unreachable!("it takes no inputs")
            }

            fn backward(&self, (): (), _: $tensor) -> [$tensor; $inputs] {
                unreachable!("it takes no inputs")
            }
        }
    };
    // The backends of `crate::cube`.
    ($op:ty, $inputs:literal, cube) => {
        crate::op::no_kernel!(
            [
                R: burn_cubecl::CubeRuntime,
                F: burn_cubecl::FloatElement,
                I: burn_cubecl::IntElement,
                BT: burn_cubecl::BoolElement,
            ]
            $op, $inputs, burn_cubecl::CubeBackend<R, F, I, BT>, burn_cubecl::tensor::CubeTensor<R>
        );
    };
    ($op:ty, $inputs:literal, $backend:ty, $tensor:ty) => {
        crate::op::no_kernel!([] $op, $inputs, $backend, $tensor);
    };
}
#[cfg(any(feature = "flex", feature = "tch", feature = "cube"))]
pub(crate) use no_kernel;
