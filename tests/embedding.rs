//! The README's example of a model inside another Burn project compiles and runs.

#![allow(clippy::unwrap_used)]

// README: begin
use burn::prelude::*;
use residual_zoo::core::{ConfigError, LanguageModel, ModelConfig};
use residual_zoo::gpt2::{Gpt2, Gpt2Config};

fn next_token<B: Backend>(device: &B::Device) -> Result<Tensor<B, 2, Int>, ConfigError> {
    let config = Gpt2Config {
        n_layer: 4,
        n_head: 4,
        width: 128,
        ..Gpt2Config::default()
    };
    let model: Gpt2<B> = config.init(50_257, device)?;
    let ids = Tensor::from_ints([[464, 2068, 7586]], device);
    let logits = model.forward(ids); // [batch, time, vocab]
    Ok(logits.narrow(1, 2, 1).argmax(2).squeeze_dim(2))
}
// README: end

#[test]
fn the_example_runs() {
    let token = next_token::<burn::backend::Flex>(&Default::default()).unwrap();
    assert_eq!(token.dims(), [1, 1]);
}

#[test]
fn the_readme_shows_this_file() {
    let source = include_str!("embedding.rs");
    let example = source.split("// README: begin\n").nth(1).unwrap();
    let example = example.split("// README: end\n").next().unwrap();
    assert!(
        include_str!("../README.md").contains(example.trim()),
        "the README differs"
    );
}
