//! A training step of nGPT against the reference: one step of Adam, then all vectors are scaled to length 1.

use std::collections::BTreeMap;

use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, backend::AutodiffBackend};
use residual_zoo_backend::OnBackend;
use residual_zoo_models::core::ops::loss::Loss;
use residual_zoo_models::core::{LanguageModel, ModelConfig, params, recompute};
use residual_zoo_models::runs::TrainConfig;
use residual_zoo_testing::my_turn;
use residual_zoo_testing::pass::Values;
use residual_zoo_testing::reference::{Case, cases};
use residual_zoo_train::optimizer::Optimizer;

use crate::in_f32;

/// Takes a step with these settings. Returns the weights by name and the logits, both after the step.
struct Step<'a>(&'a Case, &'a TrainConfig);

impl OnBackend for Step<'_> {
    type Output = (BTreeMap<String, Values>, Values);

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(case, train) = self;
        let model = case.config.build::<B>(case.vocabulary, &device).unwrap();
        let model = params::import::<B, _>(model, case.weights.clone()).unwrap();
        let [inputs, targets] = [&case.inputs, &case.targets]
            .map(|ids| Tensor::<B, 2, Int>::from_data(ids.clone(), &device));
        let pass = || model.forward(inputs.clone());
        let (logits, recording) = recompute::record(recompute::Seeds::default(), None, pass);
        let loss = Loss::new(logits, targets).cross_entropy;
        let mut grads = GradientsParams::new();
        recording.add_gradients(loss, &model, &mut grads);
        let mut optimizer = Optimizer::<B>::new(train, BTreeMap::new());
        let model = optimizer.step(model, grads, 1.0, train.learning_rate);
        let model = case.config.constrain(model);
        let weights = params::export::<B, _>(&model).into_iter();
        let weights = weights.map(|(name, data)| (name, data.into()));
        let logits = model.forward(inputs).into_data();
        (weights.collect(), logits.into())
    }
}

#[test]
fn a_step_and_its_normalisation_equal_the_reference() {
    let _turn = my_turn();
    let with_step = cases().into_iter().filter(|case| !case.stepped.is_empty());
    let mut count = 0;
    for case in with_step {
        let number = |key: &str| case.about["step"][key].as_f64().unwrap();
        let train = TrainConfig {
            learning_rate: number("lr"),
            beta_1: number("beta1"),
            beta_2: number("beta2"),
            eps: number("eps"),
            // nGPT decays no parameter, so this value must have no effect.
            weight_decay: 0.5,
            ..TrainConfig::default()
        };
        for kind in in_f32() {
            let step = Step(&case, &train);
            let (weights, logits) = kind.run(kind.default_gpu(), step).unwrap();
            for (name, expected) in &case.stepped {
                let error = weights[name].error(&expected.clone().into(), 1e-5, |_| 0.0);
                assert!(error <= 1.0, "{} on {kind}: {name} {error}", case.name);
            }
            let expected = case.results["step_logits"].clone().into();
            let error = logits.error(&expected, 1e-4, |_| 0.0);
            assert!(error <= 1.0, "{} on {kind}: logits {error}", case.name);
        }
        count += 1;
    }
    assert!(count > 0, "no case with a step");
}
