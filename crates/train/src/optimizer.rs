//! AdamW and SGD by parameter role, and clipping of the global gradient norm.

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Shape, Tensor, TensorData, backend::AutodiffBackend};
use residual_zoo_core::ops::optimizer::{AdamW, adamw, sgd, sum_of_squares};
use residual_zoo_core::params::{self, ImportError, ParamInfo, Role};
use residual_zoo_runs::{OptimizerKind, TrainConfig};

/// AdamW or SGD. The weight decay of AdamW is multiplied by the learning rate, as in PyTorch. Weight decay applies only
/// to parameters with [`Role::Weight`].
///
/// Parameters can have learning rates of their own, as with μP. Weight decay does not follow them.
pub struct Optimizer<B: AutodiffBackend> {
    kind: OptimizerKind,
    /// The constants of all steps. SGD uses only the scale, the learning rate and the weight decay.
    constants: AdamW,
    /// The learning-rate factors that differ from 1, by parameter name.
    rates: BTreeMap<String, f64>,
    states: HashMap<ParamId, State<B>>,
    /// The parameters that other processes update.
    of_others: HashSet<ParamId>,
}

/// The moments of a flattened parameter, `[count]`.
struct State<B: AutodiffBackend> {
    first: Tensor<B::InnerBackend, 1>,
    /// `None` for SGD.
    second: Option<Tensor<B::InnerBackend, 1>>,
    steps: usize,
}

/// The moments of a parameter on the host, in the shape of the parameter.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Moving average of the gradient; with SGD, the sum of the gradients, each weighted with a power of the momentum.
    pub first: TensorData,
    /// Moving average of the squared gradient, with AdamW.
    pub second: Option<TensorData>,
    /// Number of steps in both averages.
    pub steps: usize,
}

impl<B: AutodiffBackend> Optimizer<B> {
    /// An optimizer without moments. `rates` holds the learning-rate factors that differ from 1, by parameter name.
    pub fn new(config: &TrainConfig, rates: BTreeMap<String, f64>) -> Self {
        Self {
            kind: config.optimizer,
            rates,
            constants: AdamW {
                lr: 0.0,
                beta_1: config.beta_1,
                beta_2: config.beta_2,
                eps: config.eps,
                weight_decay: config.weight_decay,
                scale: 1.0,
                time: 0,
            },
            states: HashMap::new(),
            of_others: HashSet::new(),
        }
    }

    /// Leaves these parameters and their moments to other processes.
    pub(crate) fn leave(&mut self, parameters: HashSet<ParamId>) {
        self.states.retain(|id, _| !parameters.contains(id));
        self.of_others = parameters;
    }

    /// Performs one step at learning rate `lr` with the gradients `grads` times `scale`. Returns the updated model.
    pub fn step<M: Module<B>>(
        &mut self,
        model: M,
        grads: GradientsParams,
        scale: f64,
        lr: f64,
    ) -> M {
        self.constants = AdamW {
            scale,
            lr,
            ..self.constants
        };
        let constants = params::list::<B, M>(&model).into_iter().map(|p| {
            let rate = self.rates.get(&p.name).copied().unwrap_or(1.0);
            let decay = match p.role {
                Role::Weight => self.constants.weight_decay / rate,
                _ => 0.0,
            };
            let constants = AdamW {
                lr: lr * rate,
                weight_decay: decay,
                ..self.constants
            };
            (p.id, constants)
        });
        let constants = constants.collect();
        let mut take = Take {
            optimizer: self,
            constants,
            grads,
            taken: Vec::new(),
        };
        let model = model.map(&mut take);
        let taken = take.taken;
        let after = self.step_of(taken);
        model.map(&mut Put::<B>(after))
    }

    /// Performs one step on the `taken` parameters, and keeps their moments. Returns the parameters.
    fn step_of(&mut self, taken: Vec<Taken<B>>) -> Stepped<B> {
        let places: Vec<_> = taken
            .iter()
            .map(|t| (t.id, t.shape.clone(), t.step.time))
            .collect();
        let after: Vec<_> = match self.kind {
            OptimizerKind::Sgd { momentum } => {
                let after = taken.into_iter().map(|t| {
                    let [x, first] = sgd(t.step, momentum, [t.x, t.state.first, t.grad]);
                    (x, first, None)
                });
                after.collect()
            }
            OptimizerKind::AdamW => {
                let steps = taken.into_iter().map(|t| {
                    let State { first, second, .. } = t.state;
                    let second = second.unwrap_or_else(|| first.zeros_like());
                    (t.step, [t.x, first, second, t.grad])
                });
                let after = adamw(steps.collect()).into_iter();
                after.map(|[x, m, v]| (x, m, Some(v))).collect()
            }
        };
        let after = places.into_iter().zip(after);
        let after = after.map(|((id, shape, steps), (x, first, second))| {
            let state = State {
                first,
                second,
                steps,
            };
            self.states.insert(id, state);
            (id, (shape, x))
        });
        after.collect()
    }

    /// Copies the state to the host, by parameter name.
    pub fn export<M: Module<B>>(&self, model: &M) -> BTreeMap<String, Moments> {
        let state = params::list::<B, M>(model).into_iter().filter_map(|p| {
            let state = self.states.get(&p.id)?;
            let data = |moment: &Tensor<B::InnerBackend, 1>| {
                let mut data = moment.to_data();
                data.shape = p.shape.clone().into();
                data
            };
            let moments = Moments {
                first: data(&state.first),
                second: state.second.as_ref().map(data),
                steps: state.steps,
            };
            Some((p.name, moments))
        });
        state.collect()
    }

    /// Restores the state from [`export`](Self::export).
    ///
    /// A parameter without a state starts without moments; it was never part of a loss. States of parameters that are
    /// no longer trained are dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the shape of a state differs from its parameter's, or if a state belongs to no parameter of
    /// `model`. The optimizer is then unchanged.
    pub fn import<M: Module<B>>(
        &mut self,
        model: &M,
        mut state: BTreeMap<String, Moments>,
        device: &B::Device,
    ) -> Result<(), ImportError> {
        let mut states = HashMap::new();
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
            let flat = |mut data: TensorData| {
                if *data.shape != *shape {
                    return Err(ImportError::Shape {
                        name: name.clone(),
                        expected: shape.clone(),
                        found: data.shape.to_vec(),
                    });
                }
                data.shape = [shape.iter().product::<usize>()].into();
                Ok(Tensor::from_data(data, device))
            };
            let second = match (self.kind, second) {
                (OptimizerKind::AdamW, None) => {
                    return Err(ImportError::Missing(format!("{name}.second")));
                }
                (OptimizerKind::Sgd { .. }, Some(_)) => {
                    return Err(ImportError::Unexpected(format!("{name}.second")));
                }
                (_, second) => second.map(&flat).transpose()?,
            };
            let first = flat(first)?;
            let state = State {
                first,
                second,
                steps,
            };
            states.insert(id, state);
        }
        if let Some(name) = state.into_keys().next() {
            return Err(ImportError::Unexpected(name));
        }
        self.states = states;
        Ok(())
    }
}

/// A flattened parameter, `[count]`, before its step.
struct Taken<B: AutodiffBackend> {
    id: ParamId,
    shape: Shape,
    step: AdamW,
    x: Tensor<B::InnerBackend, 1>,
    state: State<B>,
    grad: Tensor<B::InnerBackend, 1>,
}

/// Takes the parameters that have a gradient out of a model, so that a step can change them in place. In the model,
/// tensors of one element take their place.
struct Take<'a, B: AutodiffBackend> {
    optimizer: &'a mut Optimizer<B>,
    /// The constants of each parameter.
    constants: HashMap<ParamId, AdamW>,
    grads: GradientsParams,
    taken: Vec<Taken<B>>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Take<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let id = param.id;
        let Some(grad) = self.grads.remove::<B::InnerBackend, D>(id) else {
            return param;
        };
        if self.optimizer.of_others.contains(&id) {
            return param;
        }
        let Some(mut step) = self.constants.remove(&id) else {
            return param;
        };
        let (kind, states) = (self.optimizer.kind, &mut self.optimizer.states);
        param.map(|x| {
            let shape = x.shape();
            let count = shape.num_elements();
            let device = grad.device();
            let zeros = || Tensor::zeros([count], &device);
            let state = states.remove(&id).unwrap_or_else(|| State {
                first: zeros(),
                second: (kind == OptimizerKind::AdamW).then(zeros),
                steps: 0,
            });
            step.time = state.steps + 1;
            let [x, grad] = [x.inner(), grad].map(|x| x.reshape([count]));
            self.taken.push(Taken {
                id,
                shape,
                step,
                x,
                state,
                grad,
            });
            Tensor::from_inner(Tensor::empty([1; D], &device))
        })
    }
}

/// The shapes of parameters, and the parameters after a step, `[count]`.
type Stepped<B> = HashMap<ParamId, (Shape, Tensor<<B as AutodiffBackend>::InnerBackend, 1>)>;

/// Puts parameters back into their model.
struct Put<B: AutodiffBackend>(Stepped<B>);

impl<B: AutodiffBackend> ModuleMapper<B> for Put<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        match self.0.remove(&param.id) {
            Some((shape, x)) => param.map(|_| Tensor::from_inner(x.reshape(shape)).require_grad()),
            None => param,
        }
    }
}

/// The global norm of all gradients, `[1]`, on the device.
pub fn global_norm<B: AutodiffBackend, M: Module<B>>(
    model: &M,
    grads: &GradientsParams,
    device: &B::Device,
) -> Tensor<B::InnerBackend, 1> {
    let mut all = Flat::<B> {
        grads,
        parts: Vec::new(),
    };
    model.visit(&mut all);
    sum_of_squares(all.parts, device).sqrt()
}

/// Collects the flattened gradients, `[count]` each.
struct Flat<'a, B: AutodiffBackend> {
    grads: &'a GradientsParams,
    parts: Vec<Tensor<B::InnerBackend, 1>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Flat<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.grads.get::<B::InnerBackend, D>(param.id) {
            let count = grad.shape().num_elements();
            self.parts.push(grad.reshape([count]));
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

/// The factor that reduces gradients of norm `norm` to norm `limit` if they exceed it (Pascanu et al., "On
/// the difficulty of training recurrent neural networks", 2013, algorithm 1; 1e-6 as in PyTorch).
pub fn clip_scale(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}
