//! Runs a forward and backward pass of a model.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData, backend::AutodiffBackend};
use residual_zoo_models::core::ops::loss::Loss;
use residual_zoo_models::core::recompute::Seeds;
use residual_zoo_models::core::{
    Input, LanguageModel, ModelConfig, Vocabulary, params, recompute, statistics,
};
use std::collections::BTreeMap;

/// The values and the shape of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// The shape.
    pub shape: Vec<usize>,
    /// The values in row-major order.
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
    /// Returns the largest magnitude, or 0 if there are no values.
    pub fn largest(&self) -> f64 {
        self.data.iter().fold(0.0, |m, x| x.abs().max(m))
    }

    /// Returns the maximum of |a − b| / (atol + rtol(b)), where b is the expected value. The values are within the
    /// tolerance if this maximum is at most 1.
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

/// The results of a model for one batch.
pub struct Outcome {
    /// Logits `[batch, time, vocab]`.
    pub logits: Values,
    /// Mean cross-entropy, in nats.
    pub loss: f64,
    /// Gradients, by parameter name.
    pub gradients: BTreeMap<String, Values>,
    /// The running statistics after the pass, by parameter name, if the pass updates them.
    pub statistics: BTreeMap<String, Values>,
}

/// Runs a forward and backward pass of the model of `config` with weights `tensors`. Parameters that are not trained
/// may be missing in `tensors`; such parameters keep their values from the config. `inputs` are token ids
/// `[batch, time]` or images `[batch, channels, height, width]`.
pub fn run<B: AutodiffBackend, C: ModelConfig>(
    config: &C,
    vocabulary: impl Into<Vocabulary>,
    mut tensors: BTreeMap<String, TensorData>,
    inputs: TensorData,
    targets: TensorData,
    device: &B::Device,
) -> Outcome {
    let model = config.build::<B>(vocabulary, device).unwrap();
    let mut fresh = params::export::<B, _>(&model);
    for frozen in params::list::<B, _>(&model)
        .into_iter()
        .filter(|p| !p.trainable)
    {
        let value = fresh.remove(&frozen.name).unwrap();
        tensors.entry(frozen.name).or_insert(value);
    }
    let model = params::import::<B, _>(model, tensors).unwrap();
    let inputs = match inputs.shape.len() {
        2 => Input::Ids(Tensor::from_data(inputs, device)),
        _ => Input::Images(Tensor::from_data(inputs, device)),
    };
    let (logits, mut recording) =
        recompute::record(Seeds::default(), None, || model.forward(inputs));
    let statistics = recording.take_statistics();
    let targets = Tensor::<B, 2, Int>::from_data(targets, device);
    let loss = Loss::new(logits.clone(), targets).cross_entropy;
    let logits = Values::from(logits.into_data());
    let loss_value = Values::from(loss.clone().into_data()).data[0];
    let mut grads = GradientsParams::new();
    recording.add_gradients(loss, &model, &mut grads);
    let mut collect = Collect {
        grads: &grads,
        found: Vec::new(),
    };
    model.visit(&mut collect);
    let names = params::list::<B, _>(&model).into_iter().map(|p| p.name);
    let gradients = names.zip(collect.found).collect();
    let moved: Vec<ParamId> = statistics.iter().map(|statistic| statistic.id).collect();
    let model = statistics::apply(model, statistics);
    let moved = params::export_some::<B, _>(&model, |info| moved.contains(&info.id));
    Outcome {
        logits,
        loss: loss_value,
        gradients,
        statistics: moved
            .into_iter()
            .map(|(name, data)| (name, data.into()))
            .collect(),
    }
}

struct Collect<'a> {
    grads: &'a GradientsParams,
    found: Vec<Values>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        // Parameters that do not affect the loss have no gradient.
        let zero = || param.val().inner().zeros_like();
        let grad = self.grads.get::<B::InnerBackend, D>(param.id);
        self.found
            .push(grad.unwrap_or_else(zero).into_data().into());
    }
}
