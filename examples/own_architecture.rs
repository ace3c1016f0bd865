//! An architecture of your own: each token sees the mean of itself and all earlier tokens. One file and one
//! line of `zoo!` are enough for the trainer, compositions and experiments (docs/adding-an-architecture.md).
//!
//! ```sh
//! cargo run --release --example own_architecture
//! ```

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo::core::{
    Architecture, Branch, Cache, Connection, Cost, EmbeddingsOf, Frame, Linear, Norm, NormParams,
    Plain, Shape, TokenEmbeddings, TokenEmbeddingsOptions, Transfer, Update, Vocabulary, linear,
};
use residual_zoo::data::Corpus;
use residual_zoo::runs::RunConfig;
use residual_zoo::train::{RunOptions, dashboard::Display, run};
use residual_zoo::{Composition, ConnectionConfig};
use serde::{Deserialize, Serialize};

/// The config, `Toy(…)` in a RON file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToyConfig {
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the stream.
    pub width: usize,
    /// Maximum sequence length, in tokens.
    pub context: usize,
}

/// f(x)_t = W · mean(norm(x)_0, …, norm(x)_t).
#[derive(Module, Debug)]
pub struct Mean<B: Backend> {
    norm: Norm<B>,
    mix: Linear<B>,
}

/// The sum over the positions read so far, `[batch, 1, width]`, and the number of these positions.
#[derive(Clone)]
pub struct Sum<B: Backend>(Option<Tensor<B, 3>>, usize);

impl<B: Backend> Cache for Sum<B> {}

impl<B: Backend> Branch<B> for Mean<B> {
    type Cache = Sum<B>;

    fn new_cache(&self) -> Sum<B> {
        Sum(None, 0)
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Sum<B>>) -> Tensor<B, 3> {
        let (time, mut fresh) = (x.dims()[1], self.new_cache());
        let Sum(sum, seen) = cache.unwrap_or(&mut fresh);
        let mut sums = self.norm.forward(x).cumsum(1);
        if let Some(sum) = sum {
            sums = sums + sum.clone();
        }
        *sum = Some(sums.clone().narrow(1, time - 1, 1));
        let first = *seen as i64 + 1;
        *seen += time;
        let counts = Tensor::arange(first..first + time as i64, &sums.device()).float();
        self.mix.forward(sums / counts.reshape([1, time, 1]))
    }
}

/// A layer with a connection of type `C`.
pub type ToyBlock<B, C = Plain> = Update<B, Mean<B>, C>;

/// Toy models can neither grow nor be merged.
impl Transfer for ToyConfig {}

impl Architecture for ToyConfig {
    type Block<B: Backend, C: Connection<B>> = ToyBlock<B, C>;
    type Embeddings<B: Backend> = TokenEmbeddings<B>;

    fn name(&self) -> &'static str {
        "Toy"
    }

    fn shape(&self) -> Shape {
        Shape {
            context: self.context,
            width: self.width,
            n_layer: self.n_layer,
            n_sublayer: 1,
            dropout: 0.0,
        }
    }

    fn embeddings<B: Backend>(
        &self,
        ids: Vocabulary,
        _frame: &Frame,
        device: &B::Device,
    ) -> TokenEmbeddings<B> {
        let options = TokenEmbeddingsOptions::new(ids, self.context, self.width);
        TokenEmbeddings::new(&options, device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        _layer: usize,
        _frame: &Frame,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> ToyBlock<B, C> {
        let norm = Norm::layer(NormParams::ScaleAndShift, self.width, 1e-5, device);
        let mix = linear(self.width, self.width, false, 0.02, device);
        Update::new(Mean { norm, mix }, connection())
    }

    fn embeddings_cost(&self, ids: Vocabulary, _frame: &Frame) -> Cost {
        TokenEmbeddingsOptions::new(ids, self.context, self.width).cost()
    }

    fn block_cost(&self, _layer: usize, _time: usize, _frame: &Frame) -> Cost {
        Cost::vector(2 * self.width) + Cost::linear(self.width, self.width, false)
    }
}

residual_zoo::zoo! {
    /// The zoo with one more architecture.
    pub enum BiggerZoo {
        /// GPT-2, the baseline.
        Gpt2(residual_zoo::gpt2::Gpt2Config, residual_zoo::gpt2::Block),
        /// The new architecture.
        Toy(crate::ToyConfig, crate::ToyBlock),
    }
    with ConnectionConfig;
}

/// The config of any model of the extended zoo.
pub type ModelConfig = Composition<BiggerZoo>;

const RUN: &str = "(
  model: Toy(n_layer: 2, width: 48, context: 32),
  data: (source: Synthetic(tokens: 20_000)),
  train: (steps: 60, warmup: 5, learning_rate: 1e-2, validate_every: 60, validate_batches: 4),
)";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1);
    let directory = directory.unwrap_or("runs/own-architecture".into());
    let (loss, unigram) = train(Path::new(&directory))?;
    println!("validation loss {loss:.4} nats per token; word frequencies alone give {unigram:.4}");
    Ok(())
}

/// Trains the run in `directory`. Returns the run's validation loss, and the loss of a model that knows only the word
/// frequencies.
fn train(directory: &Path) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let config = RunConfig::<ModelConfig>::parse(RUN, Path::new("own_architecture.ron"))?;
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
    use residual_zoo::backend::BackendKind;
    use residual_zoo::core::{ModelConfig as _, PlainModel, contract};
    use residual_zoo::lab::{Options, Verdict, run_experiment};
    use residual_zoo::laurel::LaurelConfig;
    use residual_zoo::recurrent::RecurrentConfig;

    use super::*;

    fn toy() -> ToyConfig {
        ToyConfig {
            n_layer: 2,
            width: 60,
            context: 64,
        }
    }

    fn composed() -> ModelConfig {
        ModelConfig::of(toy())
    }

    #[test]
    fn it_keeps_the_contract() {
        let device = Default::default();
        contract::check::<Autodiff<Flex>, _>(&PlainModel(toy()), &device);
        contract::check::<Autodiff<Flex>, _>(&composed(), &device);
    }

    #[test]
    fn it_composes() {
        let laurel = composed().per_sublayer(LaurelConfig::rw_lr(4));
        let recurrent = composed().recurrent(RecurrentConfig {
            block: 8,
            ..RecurrentConfig::default()
        });
        let device = Default::default();
        contract::check::<Autodiff<Flex>, _>(&laurel, &device);
        contract::check::<Autodiff<Flex>, _>(&recurrent, &device);
        let text = "(model: Composed(
        layers: [Toy(n_layer: 2, width: 32, context: 64)],
        connection: PerSublayer(Laurel(weights: DoubleSoftmax)),
        recurrence: (block: 16),
    ))";
        let config: RunConfig<ModelConfig> = RunConfig::parse(text, "toy.ron".as_ref()).unwrap();
        assert_eq!(config.model.name(), "recurrent (LAuReL-RW (Toy))");
    }

    #[test]
    fn it_trains_from_ron_with_the_same_trainer() {
        let directory = tempfile::tempdir().unwrap();
        let (loss, unigram) = train(&directory.path().join("run")).unwrap();
        assert!(loss < unigram, "{loss} is not below {unigram}");
    }

    #[test]
    fn the_names_of_its_parameters_do_not_depend_on_the_enum() {
        use residual_zoo::core::params;
        let device = Default::default();
        let alone = toy().build::<Flex>(10, &device).unwrap();
        let in_zoo = composed().build::<Flex>(10, &device).unwrap();
        let names = |list: Vec<params::ParamInfo>| -> Vec<String> {
            list.into_iter().map(|p| p.name).collect()
        };
        assert_eq!(
            names(params::list::<Flex, _>(&alone)),
            names(params::list::<Flex, _>(&in_zoo))
        );
    }

    #[test]
    fn a_zoo_of_ones_own_runs_experiments() {
        let directory = tempfile::tempdir().unwrap();
        let text = r#"(
      title: "Is a wider toy better?",
      about: "Two runs, two seeds.",
      data: (source: Synthetic(tokens: 4000)),
      train: (steps: 4, batch: 2, warmup: 1, validate_batches: 1),
      runs: [
        (name: "toy", model: Toy(n_layer: 1, width: 8, context: 16), vary: (field: "model.width", name: "width", over: [8, 16])),
      ],
      columns: ["parameters", "valid_loss"],
      claims: [
        (says: "It has more parameters", source: "here", test: Higher(quantity: "parameters", run: "toy, width 16", than: "toy, width 8")),
      ],
    )"#;
        let options = Options::new(directory.path(), BackendKind::Flex);
        let run = || {
            let path = "toy.ron".as_ref();
            run_experiment::<ModelConfig>(text, path, Some(2), &options).unwrap()
        };
        let results = run();
        assert_eq!(results.missing(), [""; 0]);
        assert_eq!(results.observations().len(), 4);
        assert_eq!(results.claims()[0].verdict, Verdict::Holds);
        assert!(results.to_markdown("toy-").contains("experiment toy.ron"));
        // A second call does not train again.
        assert_eq!(run().observations(), results.observations());
    }
}
