//! A model run forward and backward.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData, backend::AutodiffBackend};
use residual_zoo::core::ops::loss::Loss;
use residual_zoo::core::{LanguageModel, ModelConfig, params};
use std::collections::BTreeMap;

/// Values of a tensor with its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Its axes.
    pub shape: Vec<usize>,
    /// In row-major order.
    pub data: Vec<f64>,
}

impl From<TensorData> for Values {
    fn from(data: TensorData) -> Self {
        Self {
            shape: data.shape.to_vec(),
            data: data.iter::<f64>().collect(),
        }
    }
}

impl Values {
    /// The largest magnitude; 0 without values.
    pub fn largest(&self) -> f64 {
        self.data.iter().fold(0.0, |m, x| x.abs().max(m))
    }

    /// The largest of |a − b| / (atol + rtol |b|); at most 1 is within the tolerance.
    pub fn error(&self, expected: &Self, atol: f64, rtol: impl Fn(f64) -> f64) -> f64 {
        assert_eq!(self.shape, expected.shape);
        let error = |(a, b): (&f64, &f64)| {
            let error = (a - b).abs() / (atol + rtol(*b));
            if error.is_nan() { f64::INFINITY } else { error }
        };
        self.data
            .iter()
            .zip(&expected.data)
            .map(error)
            .fold(0.0, f64::max)
    }
}

/// What a model gives for one batch.
pub struct Outcome {
    /// `[batch, time, vocab]`.
    pub logits: Values,
    /// The mean cross entropy, in nats.
    pub loss: f64,
    /// That of each parameter, by its name.
    pub gradients: BTreeMap<String, Values>,
}

/// Runs the model of `config` with weights `tensors` forward and backward. Parameters that are not
/// trained and not among `tensors` are as the config makes them.
pub fn run<B: AutodiffBackend, C: ModelConfig>(
    config: &C,
    vocab_size: usize,
    mut tensors: BTreeMap<String, TensorData>,
    inputs: TensorData,
    targets: TensorData,
    device: &B::Device,
) -> Outcome
where
    C::Model<B>: burn::module::AutodiffModule<B>,
{
    let model = config.build::<B>(vocab_size, device).unwrap();
    let mut fresh = params::export::<B, _>(&model);
    for frozen in params::list::<B, _>(&model)
        .into_iter()
        .filter(|p| !p.trainable)
    {
        let value = fresh.remove(&frozen.name).unwrap();
        tensors.entry(frozen.name).or_insert(value);
    }
    let model = params::import::<B, _>(model, tensors).unwrap();
    let logits = model.forward(Tensor::<B, 2, Int>::from_data(inputs, device));
    let targets = Tensor::<B, 2, Int>::from_data(targets, device);
    let loss = Loss::new(logits.clone(), targets).cross_entropy;
    let logits = Values::from(logits.into_data());
    let loss_value = Values::from(loss.clone().into_data()).data[0];
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let mut collect = Collect {
        grads: &grads,
        found: Vec::new(),
    };
    model.visit(&mut collect);
    let names = params::list::<B, _>(&model).into_iter().map(|p| p.name);
    Outcome {
        logits,
        loss: loss_value,
        gradients: names.zip(collect.found).collect(),
    }
}

struct Collect<'a> {
    grads: &'a GradientsParams,
    found: Vec<Values>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        // What does not take part in the loss has no gradient.
        let zero = || param.val().inner().zeros_like();
        let grad = self.grads.get::<B::InnerBackend, D>(param.id);
        self.found
            .push(grad.unwrap_or_else(zero).into_data().into());
    }
}
