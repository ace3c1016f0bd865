//! The lower bound on the memory of training.

use residual_zoo::RunConfig;
use residual_zoo::core::{ModelConfig as _, Vocabulary};
use residual_zoo::drive::least_memory;
use residual_zoo::streams::{HyperConfig, MhcConfig};
use residual_zoo_testing::zoo;

#[test]
fn every_stream_that_a_connection_keeps_counts() {
    let hyper = HyperConfig {
        n: 64,
        ..HyperConfig::default()
    };
    let mhc = MhcConfig {
        n: 16,
        ..MhcConfig::default()
    };
    for (model, n) in [
        (zoo::gpt2(), 1.0),
        (zoo::gpt2().per_sublayer(hyper), 64.0),
        (zoo::gpt2().per_layer(mhc), 16.0),
    ] {
        let shape = model.shape();
        let least = |batch| {
            let mut config = RunConfig::new(model.clone());
            config.train.batch = batch;
            least_memory(&config, Vocabulary::from(50))
        };
        // In floats per token: the logits, and all streams after each layer.
        let token = 50.0 + n * (shape.width * shape.n_layer) as f64;
        let sequence = 4.0 * token * shape.context as f64;
        assert_eq!(least(3) - least(2), sequence, "{n} streams");
    }
}
