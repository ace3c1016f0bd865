//! A grown TokenFormer is the same function to the last digits of f64. A binary of its own, since
//! the default type of floats is chosen once in a process.

#![allow(clippy::unwrap_used)]

use burn::backend::Flex;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Distribution, Int, Tensor, set_default_dtypes};
use residual_zoo::core::{LanguageModel, ModelConfig};
use residual_zoo::tokenformer::{Normalization, TokenFormerConfig, grow};

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
    set_default_dtypes::<Flex>(&device, DType::F64, DType::I64).unwrap();
    for normalization in [Normalization::L2NormGelu, Normalization::GeluL2Norm] {
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
        let model = config.init::<Flex>(11, &device).unwrap().map(&mut Train);
        let (grown, _) = grow(&model, &config, 17, 30, &device).unwrap();
        let ids = Tensor::<Flex, 2, Int>::from_data([[3, 1, 4, 1, 5, 9, 2, 6]], &device);
        let logits = model.forward(ids.clone());
        assert_eq!(logits.dtype(), DType::F64);
        let error = (logits - grown.forward(ids)).abs().max();
        let error: Vec<f64> = error.into_data().iter().collect();
        assert!(error[0] < 1e-12, "{normalization:?}: {}", error[0]);
    }
}
