//! Running statistics: parameters without a gradient that each training pass updates, such as the mean and variance of
//! a batch norm.
//!
//! A module [notes](note) an update during the pass. The trainer takes the update from the
//! [`Recording`](crate::recompute::Recording) of the pass and [applies](apply) it after the step. So statistics behave
//! like weights: a skipped step leaves them unchanged, checkpoints contain them, and recomputation does not update them
//! twice.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};

use crate::recompute;

/// One update of a running statistic.
#[derive(Clone, Debug)]
pub struct Statistic<B: Backend> {
    /// The id of the parameter.
    pub id: ParamId,
    /// The statistic of the batch, in the shape of the parameter.
    pub value: Tensor<B, 1>,
    /// m in running ← (1 − m) · running + m · value.
    pub momentum: f64,
}

/// Notes that this pass updates `running` with `value`, weighted by `momentum`. Without a recording of the pass,
/// nothing is updated.
pub fn note<B: Backend>(running: &Param<Tensor<B, 1>>, value: Tensor<B, 1>, momentum: f64) {
    recompute::note(Statistic {
        id: running.id,
        value: value.detach(),
        momentum,
    });
}

/// Updates the statistics of `model`, in the order in which the updates were noted.
pub fn apply<B: Backend, M: Module<B>>(model: M, noted: Vec<Statistic<B>>) -> M {
    if noted.is_empty() {
        return model;
    }
    let mut of = HashMap::<ParamId, Vec<Statistic<B>>>::new();
    for statistic in noted {
        of.entry(statistic.id).or_default().push(statistic);
    }
    model.map(&mut Apply { of })
}

struct Apply<B: Backend> {
    of: HashMap<ParamId, Vec<Statistic<B>>>,
}

impl<B: Backend> ModuleMapper<B> for Apply<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(noted) = self.of.remove(&param.id) else {
            return param;
        };
        param.map(|running| {
            let moved = noted.into_iter().fold(running, |running, statistic| {
                let Statistic {
                    value, momentum, ..
                } = statistic;
                let value = value.reshape(running.shape());
                running * (1.0 - momentum) + value * momentum
            });
            moved.detach().set_require_grad(false)
        })
    }
}
