//! The connection of docs/architecture.md keeps the contract around any sublayer.

use burn::backend::{Autodiff, Flex};
use residual_zoo::core::{
    Architecture, Decoder, EmbeddingsOf, ModelConfig, Shape, Stack, Tensors, Vocabulary, contract,
};
use residual_zoo::gpt2::Gpt2Config;

// Documentation: begin
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo::core::{ConfigError, Connection, Cost, Stream, check};
use serde::{Deserialize, Serialize};

/// x_{i+1} = x_i + f(x_i) + γ ⊙ x_{i-1}, where x_{-1} is x_0.
#[derive(Module, Debug)]
pub struct Mine<B: Backend> {
    /// γ, `[width]`.
    gamma: Param<Tensor<B, 1>>,
}

impl<B: Backend> Connection<B> for Mine<B> {
    fn reach(&self) -> usize {
        1 // reads x_{i-1}
    }

    fn join(&self, stream: &Stream<B>, fx: Tensor<B, 3>) -> Tensor<B, 3> {
        let before = match stream.earlier(1) {
            [before] => before,
            _ => &stream.x, // at x_0 there is no earlier stream
        };
        stream.x.clone() + fx + before.clone() * self.gamma.val().unsqueeze()
    }
}

/// The config of [`Mine`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MineConfig {
    /// The value of every γ at the start.
    pub gamma: f64,
}

impl MineConfig {
    pub fn name(&self) -> &'static str {
        "Mine"
    }

    pub fn validate(&self) -> Result<(), ConfigError> {
        check::not_negative("gamma", self.gamma)
    }

    /// The connection for a stream of `width` features.
    pub fn init<B: Backend>(&self, width: usize, device: &B::Device) -> Mine<B> {
        let value = self.gamma;
        let gamma = Initializer::Constant { value }.init([width], device);
        Mine { gamma }
    }

    /// γ. Element-wise operations are free.
    pub fn cost(&self, width: usize) -> Cost {
        Cost::vector(width)
    }
}
// Documentation: end

type Block<B> = <Gpt2Config as Architecture>::Block<B, Mine<B>>;

/// A GPT-2 with this connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Gpt2WithMine(Gpt2Config, MineConfig);

impl ModelConfig for Gpt2WithMine {
    type Model<B: Backend> = Decoder<B, EmbeddingsOf<B, Gpt2Config>, Stack<B, Block<B>>>;

    fn name(&self) -> String {
        format!("{} ({})", self.1.name(), self.0.name())
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.0.validate().and_then(|()| self.1.validate())
    }

    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn assemble<B: Backend>(&self, vocabulary: Vocabulary, device: &B::Device) -> Self::Model<B> {
        let Self(gpt2, mine) = self;
        let connection = || mine.init(gpt2.width, device);
        let layers = (0..gpt2.n_layer).map(|i| gpt2.block(i, connection, device));
        let layers = layers.collect();
        Decoder::new(gpt2.embeddings(vocabulary, device), Stack::new(layers))
    }

    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        let Shape {
            width,
            n_layer,
            n_sublayer,
            ..
        } = self.shape();
        self.0.cost(vocabulary) + self.1.cost(width) * (n_layer * n_sublayer)
    }

    fn grow(&self, _: &Self, weights: Tensors, _: &Tensors) -> Result<Tensors, ConfigError> {
        Ok(weights)
    }
}

#[test]
fn it_keeps_the_contract() {
    let gpt2 = Gpt2Config {
        n_layer: 2,
        n_head: 2,
        width: 8,
        context: contract::TIME + 1,
        ..Gpt2Config::default()
    };
    let config = Gpt2WithMine(gpt2, MineConfig { gamma: 0.1 });
    contract::check::<Autodiff<Flex>, _>(&config, &Default::default());
    let refused = MineConfig { gamma: -1.0 }.validate().unwrap_err();
    assert_eq!(refused.field, "gamma");
}

#[test]
fn the_documentation_shows_this_file() {
    let source = include_str!("toy_connection.rs");
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
        include_str!("../../docs/architecture.md").contains(&indented.join("\n")),
        "docs/architecture.md differs"
    );
}
