//! The number format of matrix products and attention.
//!
//! A bf16 pass rounds the inputs of its matrix products and of attention to bf16, and computes the sums in f32. The
//! results of matrix products and attention are rounded to bf16 too, except products by the zoo's kernels on CUDA,
//! Vulkan and WGPU, whose results are f32. Everything else is f32: weights and their moments, sums of gradients, norms,
//! softmax statistics, the stream and the loss (Micikevicius et al., "Mixed precision training", 2018). On LibTorch, a
//! result stays in bf16 until an operation needs f32, because conversions would take the time that the products save.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use burn::tensor::{DType, FloatDType, Tensor, TensorData, backend::Backend};
use residual_zoo_kernels as kernels;
use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// The number format of matrix products and attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precision {
    /// 32-bit floating point.
    #[default]
    F32,
    /// `F32`, with the factors of products rounded to 11 bits, on NVIDIA GPUs with tensor cores.
    Tf32,
    /// bfloat16, which has the range of `F32` and 8 bits of precision. Weights, moments, sums of gradients, norms,
    /// softmax statistics, the loss and checkpoints stay `F32`. Validation and the samples that the trainer generates
    /// are in `F32` too, or in `Tf32` on `cuda` without the zoo's kernels.
    Bf16,
}

thread_local! {
    /// The precision of the pass on this thread.
    static NOW: Cell<Precision> = const { Cell::new(Precision::F32) };
}

/// Writes `f32`, `TF32` or `bf16`.
impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Tf32 => "TF32",
            Self::Bf16 => "bf16",
        })
    }
}

/// Reads a name in upper or lower case.
impl FromStr for Precision {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::F32, Self::Tf32, Self::Bf16];
        let named = all
            .into_iter()
            .find(|it| it.to_string().eq_ignore_ascii_case(text));
        named.ok_or("it must be F32, Tf32 or Bf16")
    }
}

impl Precision {
    /// Returns the default precision of products on this device: TF32 on Burn's CUDA backend, f32 elsewhere.
    pub fn usual<B: Backend>(device: &B::Device) -> Self {
        Self::usual_of(&B::name(device))
    }

    /// Returns the default precision of the backend that Burn calls `name`.
    fn usual_of(name: &str) -> Self {
        match name.contains("cubecl<cuda>") {
            true => Self::Tf32,
            false => Self::F32,
        }
    }

    /// Returns the precision of the pass on this thread.
    pub fn now() -> Self {
        NOW.get()
    }

    /// Runs `pass` in this precision.
    pub fn during<T>(self, pass: impl FnOnce() -> T) -> T {
        /// Restores the precision of the surrounding pass, even after a panic.
        struct Around(Precision);
        impl Drop for Around {
            fn drop(&mut self) {
                NOW.set(self.0);
            }
        }
        let _around = Around(NOW.replace(self));
        pass()
    }

    /// Sets whether f32 products of this process round their factors to TF32, on backends that support f32 and TF32.
    pub fn set_up(self) {
        kernels::allow_tf32(self == Self::Tf32);
    }

    /// Checks that the backend can compute products in this precision.
    ///
    /// # Errors
    ///
    /// Returns an error with the reason if the backend cannot compute in this precision, or would gain nothing from it.
    /// Flex, for example, would gain nothing from bf16.
    pub fn check<B: Backend>(self, device: &B::Device) -> Result<(), ConfigError> {
        let name = B::name(device);
        let inner = name.strip_prefix("autodiff<");
        let inner = inner.and_then(|inner| inner.strip_suffix('>'));
        let name = inner.unwrap_or(&name);
        let problem = match self {
            Self::F32 if Self::usual_of(name) != Self::F32 && !has_product_kernels::<B>(device) => {
                format!(
                    "Burn's products on the backend {name} round their factors to TF32, and the zoo's kernels are off; \
                     set Tf32 or leave it out, or turn the kernels on: no RESIDUAL_ZOO_OPS=plain, no cargo feature \
                     `fusion`"
                )
            }
            Self::Bf16 if name.contains("flex") => {
                "the backend Flex would convert every number to f32 and gain nothing; use F32, or another backend \
                 (--backend tch, cuda or vulkan)"
                    .to_owned()
            }
            Self::Tf32 if !name.contains("cuda") => {
                format!("the device of the backend {name} has no products in TF32; use F32")
            }
            Self::Bf16 if !B::supports_dtype(device, DType::BF16) => {
                format!(
                    "the device of the backend {name} has no arithmetic in bf16; use F32, or --backend tch"
                )
            }
            _ => return Ok(()),
        };
        let problem = format!("is {self:?}, but {problem}");
        Err(ConfigError::new("precision", problem))
    }
}

/// Computes a · b in the precision of this pass: `[…, n, k]` by `[…, k, m]` to `[…, n, m]`, with equal leading axes.
pub fn matmul<B: Backend, const D: usize>(a: Tensor<B, D>, b: Tensor<B, D>) -> Tensor<B, D> {
    match Precision::now() {
        Precision::F32 | Precision::Tf32 => matmul_f32(a, b),
        Precision::Bf16 => kernels::matmul(kernels::Matmul { bf16: true }, a, b)
            .unwrap_or_else(|[a, b]| widen(narrow(a).matmul(narrow(b)))),
    }
}

/// Computes a · b as an f32 or TF32 pass does, whatever the precision of this pass: `[…, n, k]` by `[…, k, m]` to
/// `[…, n, m]`, with equal leading axes.
pub fn matmul_f32<B: Backend, const D: usize>(a: Tensor<B, D>, b: Tensor<B, D>) -> Tensor<B, D> {
    kernels::matmul(kernels::Matmul { bf16: false }, a, b).unwrap_or_else(|[a, b]| a.matmul(b))
}

/// Whether the zoo's kernels multiply f32 numbers on this device.
fn has_product_kernels<B: Backend>(device: &B::Device) -> bool {
    let one = || Tensor::<B, 2>::ones([1, 1], device);
    kernels::matmul(kernels::Matmul { bf16: false }, one(), one()).is_ok()
}

/// Returns the unit roundoff with which f32 products on this device round their factors: the largest relative error of
/// rounding to nearest. The unit roundoff is 2⁻²⁴ if factors keep all bits, and 2⁻¹¹ in TF32. Measures the rounding of
/// the left factor in one small product. Kernels for other shapes may round differently.
pub fn product_roundoff<B: Backend>(device: &B::Device) -> f64 {
    // Multiplies a diagonal matrix, with an entry 1 + 2⁻ⁱ for each bit i, by the identity. The matrix is large enough
    // for tensor cores.
    const SIDE: usize = 32;
    const BITS: usize = 23;
    let bit = |i: usize| 0.5_f32.powi(i as i32 + 1);
    let mut diagonal = vec![0.0; SIDE * SIDE];
    for i in 0..BITS {
        diagonal[i * (SIDE + 1)] = 1.0 + bit(i);
    }
    let diagonal = Tensor::<B, 2>::from_data(TensorData::new(diagonal, [SIDE, SIDE]), device);
    let product = matmul_f32(diagonal, Tensor::eye(SIDE, device)).into_data();
    let product: Vec<f32> = product.iter().collect();
    let is_kept = |i: &usize| product[i * (SIDE + 1)] == 1.0 + bit(*i);
    let kept = (0..BITS).take_while(is_kept).count();
    0.5_f64.powi(kept as i32 + 1)
}

/// Converts x to the precision of this pass, for products and attention.
pub fn narrow<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    match Precision::now() {
        Precision::F32 | Precision::Tf32 => x,
        Precision::Bf16 => x.cast(FloatDType::BF16),
    }
}

/// Converts x from bf16 to f32. Returns x unchanged if it has another float type.
pub fn widen<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    match x.dtype() {
        DType::BF16 => x.cast(FloatDType::F32),
        _ => x,
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_others_are_refused() {
        for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
            for name in [format!("{precision}"), format!("{precision:?}")] {
                assert_eq!(name.parse(), Ok(precision));
                assert_eq!(name.to_lowercase().parse(), Ok(precision));
            }
        }
        for other in ["", "f16", "fp32", "32"] {
            assert!(other.parse::<Precision>().is_err(), "{other}");
        }
    }

    #[test]
    fn only_burns_backend_for_cuda_has_products_in_tf32_unasked() {
        for (name, usual) in [
            ("autodiff<fusion<cubecl<cuda>>>", Precision::Tf32),
            ("autodiff<libtorch<cuda>>", Precision::F32),
            ("autodiff<libtorch<cpu>>", Precision::F32),
            ("autodiff<flex>", Precision::F32),
            ("autodiff<fusion<cubecl<wgpu<spirv>>>>", Precision::F32),
        ] {
            assert_eq!(Precision::usual_of(name), usual, "{name}");
        }
    }

    #[test]
    fn the_roundoff_of_products_on_flex_is_that_of_f32() {
        assert_eq!(
            product_roundoff::<Flex>(&Default::default()),
            0.5_f64.powi(24)
        );
    }
}
