//! The connection of docs/architecture.md: one file and one line of an enum.

use burn::backend::{Autodiff, Flex};
use residual_zoo::Composition;
use residual_zoo::core::{ConnectionOf, EmbeddingsOf, EndsOf, ModelConfig, contract};
use residual_zoo::runs::RunConfig;

// Documentation: begin
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo::core::{
    Branch, ConfigError, Connection, Cost, Design, F, Plain, Sites, Stream, check,
};
use serde::{Deserialize, Serialize};

/// x_{i+1} = x_i + f(x_i) + γ ⊙ x_{i-1}, where x_{-1} is x_0. The stream carries x_{i-1}.
#[derive(Module, Debug)]
pub struct Mine<B: Backend> {
    /// γ, `[width]`.
    gamma: Param<Tensor<B, 1>>,
}

impl<B: Backend> Connection<B> for Mine<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: F<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        // At x_0, the stream carries nothing yet.
        let before = stream.carried.first().unwrap_or(&x).clone();
        Stream {
            x: f.plus(x.clone()) + before * self.gamma.val().unsqueeze(),
            carried: [x].into(),
        }
    }
}

/// The config of [`Mine`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MineConfig {
    /// The value of every γ at the start.
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

    fn connection<B: Backend>(&self, on: &Sites, _: usize, device: &B::Device) -> Mine<B> {
        let value = self.gamma;
        let gamma = Initializer::Constant { value }.init([on.width], device);
        Mine { gamma }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    /// γ. Element-wise operations are free.
    fn cost(&self, on: &Sites) -> Cost {
        Cost::vector(on.width) * on.count
    }
}
// Documentation: end

residual_zoo::connections! {
    /// The connections of the zoo, and one more.
    pub enum MoreConnections {
        /// LAuReL.
        Laurel(residual_zoo::laurel::LaurelConfig),
        /// The new connection.
        Mine(crate::toy_connection::MineConfig),
    }
}

residual_zoo::zoo! {
    /// A zoo with these connections.
    pub enum ToyZoo {
        /// GPT-2.
        Gpt2(residual_zoo::gpt2::Gpt2Config, residual_zoo::gpt2::Block),
    }
    with MoreConnections;
}

fn parse(placed: &str) -> Composition<ToyZoo> {
    let layers = format!(
        "Gpt2(n_layer: 2, n_head: 2, width: 8, context: {})",
        contract::TIME + 1
    );
    let text = format!("(model: Composed(layers: [{layers}], connection: {placed}))");
    RunConfig::parse(&text, "toy.ron".as_ref()).unwrap().model
}

#[test]
fn it_keeps_the_contract() {
    for placed in [
        "PerSublayer(Mine(gamma: 0.1))",
        "PerLayer(Mine(gamma: 0.1))",
    ] {
        let model = parse(placed);
        assert_eq!(model.name(), "Mine (GPT-2)");
        contract::check::<Autodiff<Flex>, _>(&model, &Default::default());
    }
    let text = "PerSublayer(Mine(gamma: -1))";
    let text = format!("(model: Composed(layers: [Gpt2()], connection: {text}))");
    let refused = RunConfig::<Composition<ToyZoo>>::parse(&text, "toy.ron".as_ref()).unwrap();
    let problem = refused.model.validate().unwrap_err();
    assert_eq!(problem.field, "connection.gamma");
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
