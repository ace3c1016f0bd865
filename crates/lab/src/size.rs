//! Whether a model fits into the machine's memory.

use residual_zoo_backend::BackendKind;
use residual_zoo_core::{ConfigError, ModelConfig, Vocabulary};
use residual_zoo_report::bytes;
use residual_zoo_runs::RunConfig;
use residual_zoo_system::memory::memory;

/// What is done with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its weights are loaded.
    Load,
    /// It is trained.
    Train,
}

/// Refuses a model that the machine cannot hold, before anything is allocated. It may turn out too large all the
/// same: the estimate is a lower bound.
///
/// # Errors
///
/// The bytes that it needs at least.
pub fn check_size<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    (kind, gpu): (BackendKind, Option<usize>),
    purpose: Use,
) -> Result<(), ConfigError> {
    let on_cpu = kind == BackendKind::Flex || (kind == BackendKind::LibTorch && gpu.is_none());
    let needed = match purpose {
        Use::Train if on_cpu => training(config, vocabulary),
        // The weights of a GPU pass through the memory of the machine.
        _ => weights(config, vocabulary),
    };
    let Some(total) = memory().map(|memory| memory.total as f64) else {
        return Ok(());
    };
    if needed <= total {
        return Ok(());
    }
    let problem = format!(
        "needs at least {} of memory, and this machine has {}, swap included; make it smaller",
        bytes(needed),
        bytes(total)
    );
    Err(ConfigError::new("model", problem))
}

fn weights<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    4.0 * config.model.cost(vocabulary).params.total() as f64
}

/// Weights, gradients and moments, then logits with their gradients and the stream after each layer.
fn training<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    let shape = config.model.shape();
    let tokens = config.train.batch as f64 * config.time() as f64;
    let logits = 8.0 * vocabulary.outputs as f64;
    let stream = 4.0 * shape.width as f64 * shape.n_layer as f64;
    let moments = config.train.optimizer.moments() as f64;
    (2.0 + moments) * weights(config, vocabulary) + tokens * (logits + stream)
}

#[cfg(test)]
mod tests {
    use residual_zoo_core::PlainModel;
    use residual_zoo_gpt2::Gpt2Config;

    use super::*;

    fn of_width(width: usize) -> RunConfig<PlainModel<Gpt2Config>> {
        RunConfig::new(PlainModel(Gpt2Config {
            width,
            n_head: 1,
            ..Gpt2Config::default()
        }))
    }

    #[test]
    fn what_no_machine_holds_is_refused_and_what_fits_is_not() {
        let flex = (BackendKind::Flex, None);
        let check = |width, purpose| check_size(&of_width(width), 50.into(), flex, purpose);
        for purpose in [Use::Load, Use::Train] {
            check(64, purpose).unwrap();
            let error = check(1_000_000, purpose).unwrap_err().to_string();
            assert!(error.contains("of memory, and this machine has"), "{error}");
        }
    }

    #[test]
    fn training_takes_at_least_four_times_the_weights_and_more_with_the_batch() {
        let mut config = of_width(64);
        let vocabulary = Vocabulary::from(50);
        config.train.batch = 1;
        let one = training(&config, vocabulary);
        assert!(one > 4.0 * weights(&config, vocabulary));
        config.train.batch = 1000;
        assert!(training(&config, vocabulary) > 100.0 * weights(&config, vocabulary));
    }
}
