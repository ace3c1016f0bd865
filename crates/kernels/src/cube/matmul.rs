//! Matrix products by cubek, Burn's kernel library.
//!
//! Without the feature `autotune`, Burn itself takes the same kernel for every product. If the device has tensor cores,
//! this kernel uses them, and they round f32 factors to TF32. In this module, the precision of the run decides whether
//! factors keep all bits.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorMetadata as _, TensorPrimitive};
use burn_cubecl::kernel::matmul::{MatmulStrategy, init_matmul_output};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::ir::SemanticType;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems, MatmulSetupError};
use cubek::matmul::launch::{Strategy, launch_ref};
use cubek::std::InputBinding;

use super::to_dtype;
use crate::matmul::{Candidate, Matmul};
use crate::op::{Op, cast, same};

/// Whether products of f32 numbers may round their factors to TF32.
static TF32: AtomicBool = AtomicBool::new(true);

/// Sets whether products of f32 numbers may round their factors to TF32, on devices with tensor cores. By default,
/// rounding is allowed.
pub(crate) fn allow_tf32(allow: bool) {
    TF32.store(allow, Relaxed);
}

/// Computes a · b in f32. The sums are f32 for any float type of the factors.
pub(super) fn matmul<R: CubeRuntime>(a: CubeTensor<R>, b: CubeTensor<R>) -> CubeTensor<R> {
    // Burn's tuned products may be in TF32, on CUDA only.
    let is_exact = a.dtype == DType::F32 && !TF32.load(Relaxed) && R::name(&a.client) == "cuda";
    let result = if cfg!(feature = "autotune") && !is_exact {
        burn_cubecl::kernel::matmul::matmul(a, b, None, MatmulStrategy::default(), DType::F32)
    } else {
        let strategy = strategy(&a, &b);
        let other = if is_exact {
            Strategy::Naive
        } else {
            Strategy::Auto
        };
        by(&strategy, a.clone(), b.clone()).or_else(|_| by(&other, a, b))
    };
    result.unwrap_or_else(|error| panic!("a matrix product: {error:?}"))
}

/// Smallest side of factors for which [`strategy`] takes a kernel with large tiles.
const LARGE: usize = 256;

/// Chooses the kernel for a · b.
fn strategy<R: CubeRuntime>(a: &CubeTensor<R>, b: &CubeTensor<R>) -> Strategy {
    if a.dtype == DType::F32 && !TF32.load(Relaxed) {
        // Without tensor cores.
        return Strategy::SimpleUnit(Default::default());
    }
    let [m, k] = sides(a);
    let [_, n] = sides(b);
    // `DoubleTmaMma` gives wrong sums if k has an odd number of tiles of length 32 (burn#5626). On an H100, it
    // multiplies 8192 × 768 by 768 × 3072 in half the time of `Auto`.
    let has_tma = a
        .client
        .properties()
        .features
        .supports_type(SemanticType::TensorMap);
    let is_safe = has_tma && k.is_multiple_of(64) && is_aligned(a) && is_aligned(b);
    match is_safe && m.min(k).min(n) >= LARGE {
        true => Strategy::DoubleTmaMma(Default::default()),
        false => Strategy::Auto,
    }
}

/// Returns the last two sides of x.
fn sides<R: CubeRuntime>(x: &CubeTensor<R>) -> [usize; 2] {
    let shape = x.meta.shape();
    [shape[shape.len() - 2], shape[shape.len() - 1]]
}

/// Whether a GPU's tensor memory accelerator can copy tiles of x. Rows or columns must begin at multiples of 16 bytes.
/// The leading axes must be equivalent to one axis, because cubek joins them with the stride of the last leading axis.
fn is_aligned<R: CubeRuntime>(x: &CubeTensor<R>) -> bool {
    let strides = x.meta.strides();
    let (leading, own) = strides.split_at(strides.len() - 2);
    let [small, large] = [own[0].min(own[1]), own[0].max(own[1])];
    let bytes = |elements: usize| elements * x.dtype.size();
    let starts = leading.iter().copied().chain([large]).map(bytes);
    let offset = x.handle.offset_start.unwrap_or(0) as usize;
    let shape = x.meta.shape();
    let is_one = (1..leading.len()).all(|i| leading[i - 1] == leading[i] * shape[i]);
    is_one && small == 1 && starts.chain([offset]).all(|at| at.is_multiple_of(16))
}

/// Computes a · b in f32, by a kernel of cubek.
pub(super) fn by<R: CubeRuntime>(
    strategy: &Strategy,
    a: CubeTensor<R>,
    b: CubeTensor<R>,
) -> Result<CubeTensor<R>, MatmulSetupError> {
    let out = init_matmul_output(&a, &b, DType::F32);
    let (client, dtype) = (out.client.clone(), a.dtype.into());
    let global = MatmulGlobalElems {
        lhs: dtype,
        rhs: dtype,
        out: DType::F32.into(),
    };
    let [a, b] = [a, b].map(|x| InputBinding::new(x.binding(), dtype));
    let mut types = MatmulElems::from_globals(&global);
    launch_ref(strategy, &client, a, b, out.clone().binding(), &mut types)?;
    Ok(out)
}

/// Returns the kernels that may be the fastest on some device. Kernels with one stage come first, because cubek 0.2
/// gives wrong sums for some lengths with two stages (burn#5626).
fn candidates() -> [Strategy; 12] {
    [
        Strategy::SimpleUnit(Default::default()),
        Strategy::SimpleCyclicCmma(Default::default()),
        Strategy::SimpleCyclicMma(Default::default()),
        Strategy::SimpleTmaMma(Default::default()),
        Strategy::DoubleUnit(Default::default()),
        Strategy::DoubleCyclicCmma(Default::default()),
        Strategy::DoubleCyclicMma(Default::default()),
        Strategy::DoubleTmaMma(Default::default()),
        Strategy::DoubleAsyncCyclicMma(Default::default()),
        Strategy::OrderedDoubleMma(Default::default()),
        Strategy::SpecializedCyclicMma(Default::default()),
        Strategy::SpecializedTmaMma(Default::default()),
    ]
}

/// The implementation of [`matmul_candidates`](crate::matmul_candidates) on the runtime `R`.
pub(crate) fn candidates_on<B: Backend, R: CubeRuntime>(
    a: &Tensor<B, 2>,
    b: &Tensor<B, 2>,
) -> Vec<Candidate<B>> {
    let factors = [a, b].map(|x| x.clone().into_primitive().tensor());
    let Ok(factors) = cast::<_, [CubeTensor<R>; 2]>(factors) else {
        return Vec::new();
    };
    let of = |strategy: Strategy| {
        let (name, factors) = (strategy.to_string(), factors.clone());
        let run = move || {
            let [a, b] = factors.clone();
            let result = by(&strategy, a, b).map_err(|error| format!("{error:?}"))?;
            Ok(Tensor::from_primitive(TensorPrimitive::Float(same(result))))
        };
        Candidate {
            name,
            run: Box::new(run),
        }
    };
    candidates().map(of).into()
}

/// Swaps the last two axes.
pub(super) fn transposed<R: CubeRuntime>(mut x: CubeTensor<R>) -> CubeTensor<R> {
    let last = x.meta.rank() - 1;
    x.meta.swap(last - 1, last);
    x
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 2> for Matmul
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = ([CubeTensor<R>; 2], [DType; 2]);

    fn takes(&self, inputs: &[CubeTensor<R>; 2]) -> bool {
        let [a, b] = inputs;
        // Large tensors fit too, because cubek indexes them with 64 bits.
        let has_elements = |x: &CubeTensor<R>| x.meta.num_elements() > 0;
        let leading = |x: &CubeTensor<R>| x.meta.shape()[..x.meta.rank() - 2].to_vec();
        let fits = |x: &CubeTensor<R>| x.dtype == DType::F32 || self.bf16 && x.dtype == DType::BF16;
        leading(a) == leading(b) && inputs.iter().all(|x| fits(x) && has_elements(x))
    }

    fn forward(&self, inputs: [CubeTensor<R>; 2]) -> (CubeTensor<R>, Self::Kept) {
        let dtypes = inputs.each_ref().map(|x| x.dtype());
        let dtype = if self.bf16 { DType::BF16 } else { DType::F32 };
        let [a, b] = inputs.map(|x| to_dtype(x, dtype));
        (matmul(a.clone(), b.clone()), ([a, b], dtypes))
    }

    fn backward(&self, ([a, b], dtypes): Self::Kept, grad: CubeTensor<R>) -> [CubeTensor<R>; 2] {
        let grad = to_dtype(grad, a.dtype);
        let of_a = matmul(grad.clone(), transposed(b));
        let of_b = matmul(transposed(a), grad);
        [to_dtype(of_a, dtypes[0]), to_dtype(of_b, dtypes[1])]
    }
}
