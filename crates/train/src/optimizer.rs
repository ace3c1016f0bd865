//! AdamW by parameter role, and clipping of the global gradient norm.

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{
    AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, GradientsParams, SimpleOptimizer,
};
use burn::tensor::{Tensor, TensorData, backend::AutodiffBackend};
use residual_zoo_core::params::{self, ImportError, ParamInfo, Role};
use residual_zoo_runs::TrainConfig;

/// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019). Weight decay applies
/// only to parameters with [`Role::Weight`].
///
/// Burn's AdamW makes the steps. It has no parameter groups and stores its state by parameter id. This
/// type adds the groups, and export and import of the state by parameter name.
pub struct Optimizer<B: AutodiffBackend> {
    decaying: AdamW,
    plain: AdamW,
    /// Moments of the flattened parameters, `[count]`.
    moments: HashMap<ParamId, AdamWState<B::InnerBackend, 1>>,
}

/// The moments of a parameter on the host, in the shape of the parameter.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Moving average of the gradient.
    pub first: TensorData,
    /// Moving average of the squared gradient.
    pub second: TensorData,
    /// Number of steps in both averages.
    pub steps: usize,
}

impl<B: AutodiffBackend> Optimizer<B> {
    /// An optimizer without moments.
    pub fn new(config: &TrainConfig) -> Self {
        let adamw = AdamWConfig::new()
            .with_beta_1(config.beta_1 as f32)
            .with_beta_2(config.beta_2 as f32)
            .with_epsilon(config.eps as f32);
        Self {
            decaying: adamw
                .clone()
                .with_weight_decay(config.weight_decay as f32)
                .build(),
            plain: adamw.with_weight_decay(0.0).build(),
            moments: HashMap::new(),
        }
    }

    /// Makes one step with the gradients `grads` times `scale` at learning rate `lr`, and returns the
    /// updated model. `scale` has shape `[1]` and is on the device.
    pub fn step<M: Module<B>>(
        &mut self,
        model: M,
        grads: GradientsParams,
        scale: Option<Tensor<B::InnerBackend, 1>>,
        lr: f64,
    ) -> M {
        let decays = params::list::<B, M>(&model).into_iter();
        let decays = decays
            .filter(|p| p.role == Role::Weight)
            .map(|p| p.id)
            .collect();
        model.map(&mut Step {
            optimizer: self,
            decays,
            grads,
            scale,
            lr,
        })
    }

    /// Copies the state to the host, by parameter name.
    pub fn export<M: Module<B>>(&self, model: &M) -> BTreeMap<String, Moments> {
        let state = params::list::<B, M>(model).into_iter().filter_map(|p| {
            let momentum = &self.moments.get(&p.id)?.momentum;
            let data = |moment: &Tensor<B::InnerBackend, 1>| {
                let mut data = moment.to_data();
                data.shape = p.shape.clone().into();
                data
            };
            let (first, second) = (data(&momentum.moment_1), data(&momentum.moment_2));
            Some((
                p.name,
                Moments {
                    first,
                    second,
                    steps: momentum.time,
                },
            ))
        });
        state.collect()
    }

    /// Restores the state from [`export`](Self::export).
    ///
    /// A parameter without a state starts without moments; it was never part of a loss. The state of a
    /// parameter that is not trained any more is dropped.
    ///
    /// # Errors
    ///
    /// When a state has another shape than its parameter, or belongs to no parameter of `model`. The
    /// optimizer is then unchanged.
    pub fn import<M: Module<B>>(
        &mut self,
        model: &M,
        mut state: BTreeMap<String, Moments>,
        device: &B::Device,
    ) -> Result<(), ImportError> {
        let mut moments = HashMap::new();
        for ParamInfo {
            name,
            id,
            shape,
            trainable,
            ..
        } in params::list::<B, M>(model)
        {
            let found = state.remove(&name).filter(|_| trainable);
            let Some(Moments {
                first,
                second,
                steps,
            }) = found
            else {
                continue;
            };
            let mut flat = Vec::new();
            for mut data in [first, second] {
                if *data.shape != *shape {
                    let found = data.shape.to_vec();
                    return Err(ImportError::Shape {
                        name,
                        expected: shape,
                        found,
                    });
                }
                data.shape = [shape.iter().product::<usize>()].into();
                flat.push(Tensor::from_data(data, device));
            }
            let (second, first) = (flat.pop(), flat.pop());
            if let (Some(first), Some(second)) = (first, second) {
                let mut momentum = AdaptiveMomentumState::new(steps, first, second);
                momentum.time = steps;
                moments.insert(id, AdamWState::new(momentum));
            }
        }
        if let Some(name) = state.into_keys().next() {
            return Err(ImportError::Unexpected(name));
        }
        self.moments = moments;
        Ok(())
    }
}

struct Step<'a, B: AutodiffBackend> {
    optimizer: &'a mut Optimizer<B>,
    decays: Vec<ParamId>,
    grads: GradientsParams,
    scale: Option<Tensor<B::InnerBackend, 1>>,
    lr: f64,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Step<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(grad) = self.grads.remove::<B::InnerBackend, D>(param.id) else {
            return param;
        };
        let id = param.id;
        let adamw = match self.decays.contains(&id) {
            true => &self.optimizer.decaying,
            false => &self.optimizer.plain,
        };
        let moments = &mut self.optimizer.moments;
        param.map(|x| {
            let shape = x.shape();
            let count = shape.num_elements();
            let x = x.inner().reshape([count]);
            let mut grad = grad.reshape([count]);
            if let Some(scale) = &self.scale {
                grad = grad * scale.clone();
            }
            let (x, state) = adamw.step(self.lr, x, grad, moments.remove(&id));
            if let Some(state) = state {
                moments.insert(id, state);
            }
            Tensor::from_inner(x.reshape(shape)).require_grad()
        })
    }
}

/// The global norm of all gradients, `[1]`, on the device.
pub fn global_norm<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    grads: &GradientsParams,
    device: &B::Device,
) -> Tensor<B::InnerBackend, 1> {
    let mut squares = Squares::<B> {
        grads,
        sum: Tensor::zeros([1], device),
    };
    model.visit(&mut squares);
    squares.sum.sqrt()
}

struct Squares<'a, B: AutodiffBackend> {
    grads: &'a GradientsParams,
    sum: Tensor<B::InnerBackend, 1>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Squares<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.grads.get::<B::InnerBackend, D>(param.id) {
            self.sum = self.sum.clone() + grad.square().sum();
        }
    }
}

/// The names of the parameters whose gradient is not finite, in the order of the model's fields.
pub fn not_finite<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    grads: &GradientsParams,
) -> Vec<String> {
    let mut search = NotFinite {
        grads,
        found: HashSet::new(),
    };
    model.visit(&mut search);
    let all = params::list::<B, M>(model).into_iter();
    all.filter(|p| search.found.contains(&p.id))
        .map(|p| p.name)
        .collect()
}

struct NotFinite<'a> {
    grads: &'a GradientsParams,
    found: HashSet<ParamId>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for NotFinite<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let grad = self.grads.get::<B::InnerBackend, D>(param.id);
        if grad.is_some_and(|grad| !grad.into_data().iter::<f64>().all(f64::is_finite)) {
            self.found.insert(param.id);
        }
    }
}

/// The factor, `[1]`, that reduces gradients of norm `norm`, `[1]`, to norm `limit` if they exceed it
/// (Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, algorithm 1).
pub fn clip_scale<B: burn::tensor::backend::Backend>(
    norm: &Tensor<B, 1>,
    limit: f64,
) -> Tensor<B, 1> {
    (norm.clone() + 1e-6)
        .recip()
        .mul_scalar(limit)
        .clamp_max(1.0)
}
