//! Averages the weights of a model over the steps of a run.

use std::collections::VecDeque;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

/// Returns c e + (1 − c) w, where e is `average`, w are the weights of `model`, and c is `share`. The average is a copy
/// of the model without autodiff.
///
/// # Panics
///
/// Panics if the two models have different parameters.
pub(crate) fn averaged<B, M, N>(average: N, model: &M, share: f64) -> N
where
    B: AutodiffBackend,
    M: Module<B>,
    N: Module<B::InnerBackend>,
{
    let mut weights = Weights::<B>(VecDeque::new());
    model.visit(&mut weights);
    average.map(&mut Average {
        weights: weights.0,
        share,
    })
}

/// The flattened weights of a model, `[count]` each, in the order of the model's fields.
struct Weights<B: AutodiffBackend>(VecDeque<Tensor<B::InnerBackend, 1>>);

impl<B: AutodiffBackend> ModuleVisitor<B> for Weights<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let weight = param.val().inner();
        let count = weight.shape().num_elements();
        self.0.push_back(weight.reshape([count]));
    }
}

/// Updates an average with `weights`.
struct Average<B: Backend> {
    weights: VecDeque<Tensor<B, 1>>,
    share: f64,
}

impl<B: Backend> ModuleMapper<B> for Average<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let weight = self.weights.pop_front();
        let weight = weight.unwrap_or_else(|| unreachable!("both models have the same parameters"));
        param.map(|e| {
            let shape = e.shape();
            e * self.share + weight.reshape(shape) * (1.0 - self.share)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
