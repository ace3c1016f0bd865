//! A connection of your own: it also adds the previous stream, times a trained factor for each feature. One file and
//! one line of `connections!` are enough for every architecture, the trainer and experiments
//! (docs/architecture.md#add-a-connection).
//!
//! ```sh
//! cargo run --release --example own_connection
//! ```

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use residual_zoo::Composition;
use residual_zoo::core::{ConnectionOf, EmbeddingsOf, EndsOf};
use residual_zoo::data::Corpus;
use residual_zoo::runs::RunConfig;
use residual_zoo::train::{RunOptions, dashboard::Display, run};

// Documentation: begin
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo::core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Plain, Sites, Stream, check,
};
use serde::{Deserialize, Serialize};

/// x_{i+1} = x_i + f(x_i) + γ ⊙ x_{i-1}, where x_{-1} is x_0. The stream carries x_{i-1}.
#[derive(Module, Debug)]
pub struct Mine<B: Backend> {
    /// γ, `[width]`.
    gamma: Param<Tensor<B, 1>>,
}

impl<B: Backend> Connection<B> for Mine<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        // At x_0, the stream carries nothing yet.
        let before = stream.carried.first().unwrap_or(&x).clone();
        Stream {
            x: f.plus(x.clone()) + before * self.gamma.val().unsqueeze(),
            carried: [x].into(),
            ..stream
        }
    }
}

/// The config of [`Mine`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MineConfig {
    /// The initial value of every γ. With 0, a new model equals the plain model.
    pub gamma: f64,
}

impl Design for MineConfig {
    type Connection<B: Backend> = Mine<B>;
    type Ends<B: Backend> = Plain; // nothing happens where the stream begins and ends

    fn name(&self) -> &'static str {
        "Mine"
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        check::not_negative("gamma", self.gamma)
    }

    fn connection<B: Backend>(&self, on: &Sites, _i: usize, device: &B::Device) -> Mine<B> {
        let value = self.gamma;
        let gamma = Initializer::Constant { value }.init([on.width], device);
        Mine { gamma }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    /// Counts γ. Element-wise operations are free.
    fn cost(&self, on: &Sites) -> Cost {
        Cost::vector(on.width) * on.count
    }
}
// Documentation: end

residual_zoo::connections! {
    /// The connections of this program.
    pub enum MoreConnections {
        /// LAuReL.
        Laurel(residual_zoo::laurel::LaurelConfig),
        /// The new connection.
        Mine(crate::MineConfig),
    }
}

residual_zoo::zoo! {
    /// A zoo with these connections.
    pub enum MoreZoo {
        /// GPT-2.
        Gpt2(residual_zoo::gpt2::Gpt2Config, residual_zoo::gpt2::Block),
    }
    with MoreConnections;
}

/// The config of any model with these connections.
pub type ModelConfig = Composition<MoreZoo>;

const RUN: &str = "(
  model: Composed(
    layers: [Gpt2(n_layer: 2, n_head: 2, width: 48, context: 32)],
    connection: PerSublayer(Mine()),
  ),
  data: (source: Synthetic(tokens: 20_000)),
  train: (steps: 60, warmup: 5, learning_rate: 1e-2, validate_every: 60, validate_batches: 4),
)";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1);
    let directory = directory.unwrap_or("runs/own-connection".into());
    let (loss, unigram) = train(Path::new(&directory))?;
    println!("validation loss {loss:.4} nats per token; word frequencies alone give {unigram:.4}");
    Ok(())
}

/// Trains the run in `directory`. Returns the run's validation loss, and the loss of a model that knows only the word
/// frequencies.
fn train(directory: &Path) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let config = RunConfig::<ModelConfig>::parse(RUN, Path::new("own_connection.ron"))?;
    let corpus = Corpus::open(&config.data)?;
    let options = RunOptions {
        display: Display::Log,
        ..RunOptions::new(directory)
    };
    let summary = run::<Autodiff<Flex>, _>(config, &corpus, &options, Default::default())?;
    let entropy = corpus.entropy.ok_or("not the synthetic language")?;
    Ok((summary.valid_loss, entropy.unigram))
}

#[cfg(test)]
mod tests {
    use residual_zoo::core::{ModelConfig as _, contract};

    use super::*;

    fn parse(placed: &str) -> ModelConfig {
        let layers = format!(
            "Gpt2(n_layer: 2, n_head: 2, width: 8, context: {})",
            contract::TIME + 1
        );
        let text = format!("(model: Composed(layers: [{layers}], connection: {placed}))");
        RunConfig::parse(&text, "mine.ron".as_ref()).unwrap().model
    }

    #[test]
    fn it_keeps_the_contract() {
        for placed in [
            "PerSublayer(Mine())",
            "PerSublayer(Mine(gamma: 0.1))",
            "PerLayer(Mine(gamma: 0.1))",
        ] {
            let model = parse(placed);
            assert_eq!(model.name(), "Mine (GPT-2)");
            contract::check::<Autodiff<Flex>, _>(&model, &Default::default());
        }
        let refused = parse("PerSublayer(Mine(gamma: -1))");
        let problem = refused.validate().unwrap_err();
        assert_eq!(problem.field, "connection.gamma");
    }

    #[test]
    fn it_trains_with_the_same_trainer() {
        let directory = tempfile::tempdir().unwrap();
        let (loss, unigram) = train(&directory.path().join("run")).unwrap();
        assert!(loss < unigram, "{loss} is not below {unigram}");
    }

    #[test]
    fn the_documentation_shows_this_file() {
        let source = include_str!("own_connection.rs");
        let example = source.split("// Documentation: begin\n").nth(1).unwrap();
        let example = example.split("// Documentation: end\n").next().unwrap();
        let lines = example.trim().lines();
        let indented: Vec<String> = lines
            .map(|line| match line {
                "" => String::new(),
                line => format!("   {line}"),
            })
            .collect();
        assert!(
            include_str!("../docs/architecture.md").contains(&indented.join("\n")),
            "docs/architecture.md differs"
        );
    }
}
