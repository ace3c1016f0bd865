//! Tests in f64 on Flex, where rounding errors are small: the reference cases, to the precision of their files, and the
//! growth of a TokenFormer. They are a separate binary, because the default float type is chosen once per process.

#![allow(clippy::unwrap_used)]

use std::sync::{MutexGuard, Once};

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Distribution, Int, Tensor, set_default_dtypes};
use residual_zoo::core::contract::alone;
use residual_zoo::core::{Architecture as _, LanguageModel};
use residual_zoo::tokenformer::{Normalization, TokenFormerConfig, grow};
use residual_zoo_testing::ops;
use residual_zoo_testing::pass::Values;
use residual_zoo_testing::reference;

/// Sets the type of every later tensor to f64, and waits until no other test computes gradients.
fn double() -> MutexGuard<'static, ()> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_default_dtypes::<Flex>(&Default::default(), DType::F64, DType::I64).unwrap();
    });
    alone()
}

#[test]
fn fast_and_plain_forms_agree() {
    let _alone = double();
    let device = Default::default();
    ops::agree::<Autodiff<Flex>>(&device, 1e-12);
    ops::optimizer_agrees::<Autodiff<Flex>>(&device, 1e-12);
    ops::dropout_is_a_function_of_its_seed::<Autodiff<Flex>>(&device, 1e-12);
}

#[test]
fn every_case_equals_the_reference_to_the_digits_it_is_stored_with() {
    let _alone = double();
    for case in reference::cases() {
        let device = Default::default();
        let outcome = case.pass::<Autodiff<Flex>>(&case.config, &case.weights, &device);
        // Half a unit in the last place of f32 is 6e-8 of the value. Burn's RmsNorm computes the mean square in f32 for
        // any input type. For a ResNet that uses its running variances, the reference had the variances in f64, but the
        // files store rounded values. With the rounded values, the reference's own logits would differ from the stored
        // logits by the same amount.
        let uses_running = case
            .weights
            .keys()
            .any(|name| name.ends_with("running_var"))
            && case.statistics.is_empty();
        let (relative, absolute) = match (case.name.starts_with("rmt_code"), uses_running) {
            (true, _) => (1e-6, 1e-5),
            (_, true) => (1e-6, 1e-6),
            _ => (7e-8, 1e-9),
        };
        let error = |found: &Values, expected: &burn::tensor::TensorData| {
            let expected = Values::from(expected.clone());
            found.error(&expected, absolute, |b| relative * b.abs())
        };
        let logits = error(&outcome.logits, &case.logits);
        assert!(logits <= 1.0, "{}: logits {logits}", case.name);
        for (name, expected) in &case.gradients {
            let gradient = error(&outcome.gradients[name], expected);
            assert!(gradient <= 1.0, "{}: {name} {gradient}", case.name);
        }
    }
}

struct Train;

impl ModuleMapper<Flex> for Train {
    fn map_float<const D: usize>(
        &mut self,
        param: Param<Tensor<Flex, D>>,
    ) -> Param<Tensor<Flex, D>> {
        if param.lazy_shape().to_vec() == [1] {
            return param; // τ
        }
        param.map(|x| x.random_like(Distribution::Normal(0.0, 0.3)))
    }
}

#[test]
fn growth_keeps_the_logits_to_1e_12() {
    let device = Default::default();
    let _alone = double();
    for normalization in [
        Normalization::L2NormGelu,
        Normalization::GeluL2Norm,
        Normalization::GeluL1Norm,
    ] {
        let config = TokenFormerConfig {
            n_layer: 2,
            n_head: 3,
            width: 24,
            n_attn: Some(13),
            n_ffn: Some(21),
            context: 16,
            normalization,
            ..TokenFormerConfig::default()
        };
        let model = config.build::<Flex>(11, &device).unwrap().map(&mut Train);
        let (grown, _) = grow(&model, &config, 17, 30, &device).unwrap();
        let ids = Tensor::<Flex, 2, Int>::from_data([[3, 1, 4, 1, 5, 9, 2, 6]], &device);
        let logits = model.forward(ids.clone());
        assert_eq!(logits.dtype(), DType::F64);
        let error = (logits - grown.forward(ids)).abs().max();
        let error: Vec<f64> = error.into_data().iter().collect();
        assert!(error[0] < 1e-12, "{normalization:?}: {}", error[0]);
    }
}
