//! Matrices of unit vectors, as in nGPT: an optimizer step moves the vectors off the unit sphere, and
//! [`normalise`] sets their lengths back to 1.
//!
//! The config of a model with such matrices calls [`normalise`] in
//! [`ModelConfig::constrain`](crate::ModelConfig::constrain). If
//! [`Architecture::is_constrained`](crate::Architecture::is_constrained) returns true, every config that contains the
//! architecture does so. The matrices have the role [`Role::Unit`](crate::params::Role), so weight decay does not apply
//! to them.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, backend::Backend};

use crate::{init, project};

/// y = x · weight, where each column of `weight` has length 1. The columns are as wide as x.
#[derive(Module, Debug)]
pub struct UnitColumns<B: Backend> {
    /// `[d_in, d_out]`.
    pub weight: Param<Tensor<B, 2>>,
}

/// y = x · weight, where each row of `weight` has length 1. The rows are as wide as y. The weight can also be a table
/// of unit vectors.
#[derive(Module, Debug)]
pub struct UnitRows<B: Backend> {
    /// `[d_in, d_out]`.
    pub weight: Param<Tensor<B, 2>>,
}

/// The modules of unit vectors, with the axis of the vectors in `weight`.
const AXES: [(&str, usize); 2] = [("UnitColumns", 0), ("UnitRows", 1)];

/// Returns the axis of the unit vectors in parameters of the module type `owner`; `None` for other modules.
pub(crate) fn axis_of(owner: &str) -> Option<usize> {
    let found = AXES.iter().find(|(name, _)| *name == owner);
    found.map(|(_, axis)| *axis)
}

impl<B: Backend> UnitColumns<B> {
    /// Draws the weight from N(0, `std`²). The lengths are 1 after [`normalise`].
    pub fn new(d_in: usize, d_out: usize, std: f64, device: &B::Device) -> Self {
        Self {
            weight: init::normal([d_in, d_out], std, device),
        }
    }

    /// Maps `[batch, time, d_in]` to `[batch, time, d_out]`.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        project(x, self.weight.val())
    }
}

impl<B: Backend> UnitRows<B> {
    /// Draws the weight from N(0, `std`²). The lengths are 1 after [`normalise`].
    pub fn new(d_in: usize, d_out: usize, std: f64, device: &B::Device) -> Self {
        Self {
            weight: init::normal([d_in, d_out], std, device),
        }
    }

    /// Maps `[batch, time, d_in]` to `[batch, time, d_out]`.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        project(x, self.weight.val())
    }
}

/// Sets the length of every column of [`UnitColumns`] and of every row of [`UnitRows`] to 1. A zero vector stays zero.
///
/// Other parameters stay bit-identical. All parameters keep their ids and gradient requirements.
pub fn normalise<B: Backend, M: Module<B>>(model: M) -> M {
    model.map(&mut Normalise::default())
}

/// The walk of [`normalise`]. Holds the axis of the unit vectors for each open module.
#[derive(Default)]
struct Normalise(Vec<Option<usize>>);

impl<B: Backend> ModuleMapper<B> for Normalise {
    fn enter_module(&mut self, _: &str, container: &str) {
        let owner = container.rsplit(':').next().unwrap_or(container);
        self.0.push(axis_of(owner));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(&Some(axis)) = self.0.last() else {
            return param;
        };
        param.map(|w| {
            let is_trained = w.is_require_grad();
            // A detached tensor that requires a gradient would make the result part of a graph.
            let w = w.detach().set_require_grad(false);
            unit_along(w, axis).set_require_grad(is_trained)
        })
    }
}

/// Computes w / |w| along `axis`.
fn unit_along<B: Backend, const D: usize>(w: Tensor<B, D>, axis: usize) -> Tensor<B, D> {
    // The bound is above 0, so that a zero vector does not become NaN, and far below every other length.
    const LEAST: f64 = 1e-18;
    let length = (w.clone() * w.clone()).sum_dim(axis).sqrt();
    w / length.clamp_min(LEAST)
}
