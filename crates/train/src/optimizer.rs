//! AdamW, SGD and Muon by parameter role, and clipping of the global gradient norm.

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Shape, Tensor, TensorData, backend::AutodiffBackend};
use residual_zoo_core::ops::muon::{Hidden, muon};
use residual_zoo_core::ops::optimizer::{AdamW, adamw, sgd, sum_of_squares};
use residual_zoo_core::params::{self, ImportError, ParamInfo, Role};
use residual_zoo_core::{ConfigError, Matrices, Muon, Precision};
use residual_zoo_runs::{OptimizerKind, TrainConfig};

/// AdamW, SGD, or Muon with AdamW. The weight decay of AdamW and Muon is multiplied by the learning rate, as in
/// PyTorch. Weight decay applies only to parameters with [`Role::Weight`]. Muon takes the parameters that consist of
/// hidden [`Matrices`].
///
/// With AdamW and SGD, parameters can have learning rates of their own, as with μP. These learning rates do not change
/// the effect of weight decay.
pub struct Optimizer<B: AutodiffBackend> {
    kind: OptimizerKind,
    /// The constants of all steps. SGD uses only the scale, the learning rate and the weight decay.
    constants: AdamW,
    /// The learning rate of hidden matrices, divided by the learning rate of other parameters.
    hidden_rate: f64,
    /// The precision of Muon's products.
    precision: Precision,
    /// The learning-rate factors that differ from 1, by parameter name.
    rates: BTreeMap<String, f64>,
    states: HashMap<ParamId, State<B>>,
    /// The parameters that other processes update.
    of_others: HashSet<ParamId>,
}

/// The moments of a flattened parameter, `[count]`.
struct State<B: AutodiffBackend> {
    first: Tensor<B::InnerBackend, 1>,
    /// AdamW's second moment, or the running mean of squares that a form of Muon keeps. The number of squares can
    /// differ from `count`.
    second: Option<Tensor<B::InnerBackend, 1>>,
    steps: usize,
}

/// The moments of a parameter on the host. The first moment has the shape of the parameter.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Moving average of the gradient. With SGD, the sum of the gradients, including the weight decay, each weighted by
    /// a power of the momentum.
    pub first: TensorData,
    /// With AdamW, the moving average of the squared gradient, in the shape of the parameter. With
    /// [`MuonForm::Nanochat`](residual_zoo_core::MuonForm), the running mean of squares, in the shape that
    /// [`Muon::squares`] returns.
    pub second: Option<TensorData>,
    /// Number of steps that the moments contain.
    pub steps: usize,
}

impl<B: AutodiffBackend> Optimizer<B> {
    /// Makes an optimizer without moments. `rates` holds the learning-rate factors that differ from 1, by parameter
    /// name.
    pub fn new(config: &TrainConfig, rates: BTreeMap<String, f64>) -> Self {
        let others = config.learning_rate;
        let hidden = match config.optimizer {
            OptimizerKind::Muon(muon) => muon.learning_rate(others),
            _ => others,
        };
        Self {
            kind: config.optimizer,
            hidden_rate: hidden / others,
            precision: config.precision.unwrap_or_default(),
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

    /// Checks that the optimizer suits `model`.
    ///
    /// # Errors
    ///
    /// Returns an error if the optimizer is Muon and the model has no hidden matrices to train.
    pub fn check<M: Module<B>>(&self, model: &M) -> Result<(), ConfigError> {
        let OptimizerKind::Muon(_) = self.kind else {
            return Ok(());
        };
        let mut trained = params::list::<B, M>(model).into_iter();
        if !trained.any(|p| p.trainable && p.matrices.is_some()) {
            let problem =
                "is Muon, but the model trains no matrix between hidden features; use AdamW";
            return Err(ConfigError::new("train.optimizer", problem));
        }
        Ok(())
    }

    /// Returns the learning rate of the matrices that Muon trains, if other parameters have `lr`; `None` with another
    /// optimizer.
    pub fn muon_rate(&self, lr: f64) -> Option<f64> {
        matches!(self.kind, OptimizerKind::Muon(_)).then(|| lr * self.hidden_rate)
    }

    /// Makes the step of parameter `p` at learning rate `lr`, without the number of the step.
    fn step_of(&self, p: &ParamInfo, lr: f64) -> Step {
        let rate = self.rates.get(&p.name).copied().unwrap_or(1.0);
        let decay = match p.role {
            Role::Weight => self.constants.weight_decay / rate,
            _ => 0.0,
        };
        let lr = lr * rate;
        match (self.kind, p.matrices) {
            (OptimizerKind::Muon(muon), Some(matrices)) => Step::Muon {
                decay: match p.role {
                    Role::Weight => muon.weight_decay.unwrap_or(decay),
                    _ => 0.0,
                },
                lr: lr * self.hidden_rate,
                muon,
                matrices,
            },
            (OptimizerKind::Muon(_) | OptimizerKind::AdamW, _) => Step::AdamW(AdamW {
                lr,
                weight_decay: decay,
                ..self.constants
            }),
            (OptimizerKind::Sgd { momentum }, _) => Step::Sgd {
                momentum,
                lr,
                decay,
            },
        }
    }

    /// Returns the shape of the second moment of parameter `p`, if it has one.
    pub(crate) fn second_shape(&self, p: &ParamInfo) -> Option<Vec<usize>> {
        match (self.kind, p.matrices) {
            (OptimizerKind::Sgd { .. }, _) => None,
            (OptimizerKind::Muon(muon), Some(matrices)) => {
                Some(muon.squares(matrices.dims())?.into())
            }
            _ => Some(p.shape.clone()),
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
        let steps = params::list::<B, M>(&model).into_iter().map(|p| {
            let due = (self.step_of(&p, lr), self.second_shape(&p));
            (p.id, due)
        });
        let steps = steps.collect();
        let mut take = Take {
            optimizer: self,
            steps,
            grads,
            taken: Vec::new(),
        };
        let model = model.map(&mut take);
        let taken = take.taken;
        let after = self.perform(taken, scale);
        model.map(&mut Put::<B>(after))
    }

    /// Performs one step on the `taken` parameters with their gradients times `scale`, and keeps their moments. Returns
    /// the parameters.
    fn perform(&mut self, taken: Vec<Taken<B>>, scale: f64) -> Stepped<B> {
        let mut after = Stepped::<B>::new();
        let mut keep = |place: Place, x, first, second| {
            let state = State {
                first,
                second,
                steps: place.steps,
            };
            self.states.insert(place.id, state);
            after.insert(place.id, (place.shape, x));
        };
        // One kernel can perform the AdamW steps of all parameters.
        let (mut places, mut due) = (Vec::new(), Vec::new());
        for Taken {
            place,
            step,
            x,
            first,
            second,
            grad,
        } in taken
        {
            match step {
                Step::AdamW(step) => {
                    let time = place.steps;
                    places.push(place);
                    let second = second.unwrap_or_else(|| first.zeros_like());
                    due.push((
                        AdamW {
                            time,
                            scale,
                            ..step
                        },
                        [x, first, second, grad],
                    ));
                }
                Step::Sgd {
                    momentum,
                    lr,
                    decay,
                } => {
                    let g = grad * scale + x.clone() * decay;
                    let [x, first] = sgd(lr, momentum, [x, first, g]);
                    keep(place, x, first, None);
                }
                Step::Muon {
                    muon: settings,
                    lr,
                    decay,
                    matrices,
                } => {
                    let squares = settings.squares(matrices.dims()).zip(second);
                    let hidden = Hidden {
                        w: matrices.split(x),
                        b: matrices.split(first),
                        squares: squares.map(|(shape, squares)| squares.reshape(shape)),
                    };
                    let g = matrices.split(grad) * scale;
                    let after = self
                        .precision
                        .during(|| muon(&settings, [lr, decay], hidden, g));
                    let squares = after.squares.map(|squares| squares.flatten(0, 2));
                    keep(
                        place,
                        matrices.join(after.w),
                        matrices.join(after.b),
                        squares,
                    );
                }
            }
        }
        for (place, [x, m, v]) in places.into_iter().zip(adamw(due)) {
            keep(place, x, m, Some(v));
        }
        after
    }

    /// Copies the state to the host, by parameter name.
    pub fn export<M: Module<B>>(&self, model: &M) -> BTreeMap<String, Moments> {
        let state = params::list::<B, M>(model).into_iter().filter_map(|p| {
            let state = self.states.get(&p.id)?;
            let data = |moment: &Tensor<B::InnerBackend, 1>, shape: Vec<usize>| {
                let mut data = moment.to_data();
                data.shape = shape.into();
                data
            };
            let second = state.second.as_ref().zip(self.second_shape(&p));
            let moments = Moments {
                first: data(&state.first, p.shape.clone()),
                second: second.map(|(second, shape)| data(second, shape)),
                steps: state.steps,
            };
            Some((p.name, moments))
        });
        state.collect()
    }

    /// Restores the state from [`export`](Self::export).
    ///
    /// A parameter that was never part of a loss has no state, and starts without moments. States of parameters that
    /// are no longer trained are dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the shape of a moment does not fit its parameter, if a second moment is missing or
    /// unexpected, or if a state belongs to no parameter of `model`. The optimizer is then unchanged.
    pub fn import<M: Module<B>>(
        &mut self,
        model: &M,
        mut state: BTreeMap<String, Moments>,
        device: &B::Device,
    ) -> Result<(), ImportError> {
        let mut states = HashMap::new();
        for p in params::list::<B, M>(model) {
            let found = state.remove(&p.name).filter(|_| p.trainable);
            let Some(Moments {
                first,
                second,
                steps,
            }) = found
            else {
                continue;
            };
            let flat = |mut data: TensorData, shape: Vec<usize>| {
                if *data.shape != *shape {
                    return Err(ImportError::Shape {
                        name: p.name.clone(),
                        expected: shape,
                        found: data.shape.to_vec(),
                    });
                }
                data.shape = [shape.iter().product::<usize>()].into();
                Ok(Tensor::from_data(data, device))
            };
            let second = match (self.second_shape(&p), second) {
                (Some(_), None) => {
                    return Err(ImportError::Missing(format!("{}.second", p.name)));
                }
                (None, Some(_)) => {
                    return Err(ImportError::Unexpected(format!("{}.second", p.name)));
                }
                (None, None) => None,
                (Some(shape), Some(second)) => Some(flat(second, shape)?),
            };
            let first = flat(first, p.shape.clone())?;
            let state = State {
                first,
                second,
                steps,
            };
            states.insert(p.id, state);
        }
        if let Some(name) = state.into_keys().next() {
            return Err(ImportError::Unexpected(name));
        }
        self.states = states;
        Ok(())
    }
}

/// The step of a parameter.
#[derive(Clone, Copy)]
enum Step {
    /// The number of the step and the scale of the gradient are set when the step is performed.
    AdamW(AdamW),
    Sgd {
        momentum: f64,
        lr: f64,
        decay: f64,
    },
    Muon {
        muon: Muon,
        matrices: Matrices,
        lr: f64,
        decay: f64,
    },
}

/// A parameter in its model.
struct Place {
    id: ParamId,
    shape: Shape,
    /// Number of steps of the parameter, including the current step.
    steps: usize,
}

/// A flattened parameter, `[count]`, before its step.
struct Taken<B: AutodiffBackend> {
    place: Place,
    step: Step,
    x: Tensor<B::InnerBackend, 1>,
    first: Tensor<B::InnerBackend, 1>,
    second: Option<Tensor<B::InnerBackend, 1>>,
    grad: Tensor<B::InnerBackend, 1>,
}

/// Takes parameters out of a model, so that a step can change them in place: the parameters that have a gradient and
/// that this process updates. A tensor of one element replaces each of them in the model.
struct Take<'a, B: AutodiffBackend> {
    optimizer: &'a mut Optimizer<B>,
    /// The step of each parameter, and the shape of its second moment.
    steps: HashMap<ParamId, (Step, Option<Vec<usize>>)>,
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
        let Some((step, second_shape)) = self.steps.remove(&id) else {
            return param;
        };
        let states = &mut self.optimizer.states;
        param.map(|x| {
            let shape = x.shape();
            let count = shape.num_elements();
            let device = grad.device();
            let zeros = |count| Tensor::zeros([count], &device);
            let State {
                first,
                second,
                steps,
            } = states.remove(&id).unwrap_or_else(|| State {
                first: zeros(count),
                second: second_shape.map(|shape| zeros(shape.iter().product())),
                steps: 0,
            });
            let [x, grad] = [x.inner(), grad].map(|x| x.reshape([count]));
            self.taken.push(Taken {
                place: Place {
                    id,
                    shape,
                    steps: steps + 1,
                },
                step,
                x,
                first,
                second,
                grad,
            });
            Tensor::from_inner(Tensor::empty([1; D], &device))
        })
    }
}

/// The flattened parameters after a step, `[count]` each, with their shapes.
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

/// Returns the global norm of all gradients, `[1]`, on the device.
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

/// Returns the names of the parameters whose gradient is not finite, in the order of the model's fields.
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

/// Returns the factor that reduces gradients of norm `norm` to norm `limit`; 1 if `norm` does not exceed `limit`. See
/// algorithm 1 of Pascanu et al., "On the difficulty of training recurrent neural networks" (2013). The constant 1e-6
/// is PyTorch's.
pub fn clip_scale(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

#[cfg(test)]
pub(crate) mod tests;
