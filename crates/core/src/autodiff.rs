//! Collects the gradients of a model, and removes autodiff from a model.
//!
//! Burn's `AutodiffModule` does both. Code that is generic over backend and model cannot require `AutodiffModule` of
//! every model, so these functions walk the parameters.

use std::collections::VecDeque;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorPrimitive};

use crate::ops::precision::widen;

/// Adds the gradients of the parameters of `model` to `sum`.
pub fn add_gradients<B: AutodiffBackend, M: Module<B>>(
    gradients: B::Gradients,
    model: &M,
    sum: &mut GradientsParams,
) {
    model.visit(&mut AddGradients::<B> { gradients, sum });
}

struct AddGradients<'a, B: AutodiffBackend> {
    gradients: B::Gradients,
    sum: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for AddGradients<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(new) = param.val().grad_remove(&mut self.gradients) {
            add::<B, D>(self.sum, param, widen(new));
        }
    }
}

/// Adds `gradients` of the parameters of `model` to `sum`.
pub(crate) fn merge_gradients<B: AutodiffBackend, M: Module<B>>(
    gradients: GradientsParams,
    model: &M,
    sum: &mut GradientsParams,
) {
    model.visit(&mut MergeGradients { gradients, sum });
}

struct MergeGradients<'a> {
    gradients: GradientsParams,
    sum: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for MergeGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(new) = self.gradients.remove::<B::InnerBackend, D>(param.id) {
            add::<B, D>(self.sum, param, new);
        }
    }
}

/// Adds the gradient `new` of a parameter to `sum`.
fn add<B: AutodiffBackend, const D: usize>(
    sum: &mut GradientsParams,
    param: &Param<Tensor<B, D>>,
    new: Tensor<B::InnerBackend, D>,
) {
    let sum_of = match sum.remove::<B::InnerBackend, D>(param.id) {
        Some(sum) => sum + new,
        None => new,
    };
    sum.register(param.id, sum_of);
}

/// Puts an identity operation after each parameter of `module`, for a module that is used many times in one graph.
///
/// When Burn 0.21 merges two graphs, it forgets the first node of one of them (`GraphLocator::merge_two`). A parameter
/// is the first node of its graph. After two merges, each use of the parameter therefore merges the whole graph again.
/// The time is then quadratic in the number of uses. Burn does not forget the results of operations.
pub fn with_identities<B: Backend, M: Module<B>>(module: M) -> M {
    module.map(&mut Identities)
}

struct Identities;

impl<B: Backend> ModuleMapper<B> for Identities {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let x = param.val();
        let shape = x.shape();
        Param::initialized(param.id, x.reshape(shape))
    }
}

/// Gives the parameters of `from` to `to`, the same model without autodiff. Both models share the values, which get no
/// gradient in `to`.
///
/// # Panics
///
/// Panics if the two models have different parameters.
pub fn without_autodiff<B, M, N>(from: &M, to: N) -> N
where
    B: AutodiffBackend,
    M: Module<B>,
    N: Module<B::InnerBackend>,
{
    let mut parameters = Parameters::<B::InnerBackend>(VecDeque::new());
    from.visit(&mut parameters);
    let model = to.map(&mut parameters);
    assert!(
        parameters.0.is_empty(),
        "a model has other parameters without autodiff"
    );
    model
}

/// Parameters in the order of a model's fields.
struct Parameters<B: Backend>(VecDeque<TensorPrimitive<B>>);

impl<B: AutodiffBackend> ModuleVisitor<B> for Parameters<B::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.push_back(param.val().inner().into_primitive());
    }
}

impl<B: Backend> ModuleMapper<B> for Parameters<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let value = self.0.pop_front().map(Tensor::from_primitive);
        let value = value.filter(|value: &Tensor<B, D>| value.shape() == param.lazy_shape());
        match value {
            Some(value) => Param::initialized(param.id, value),
            None => panic!("a model has other parameters without autodiff"),
        }
    }
}
