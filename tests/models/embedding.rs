//! The README's example of models inside another Burn project compiles and runs.

use residual_zoo_models::core::{Architecture as _, PlainModel};
use residual_zoo_models::{rmt::RmtConfig, tokenformer::TokenFormerConfig};

// README: begin
use burn::prelude::*;
use residual_zoo_models::core::{LanguageModel, ModelConfig, token_ids};
use residual_zoo_models::{Composition, Zoo};
use residual_zoo_models::{gpt2::Gpt2Config, laurel::LaurelConfig, recurrent::RecurrentConfig};

fn gpt2() -> Composition<Zoo> {
    Composition::of(Gpt2Config {
        n_layer: 4,
        n_head: 4,
        width: 128,
        ..Gpt2Config::default()
    })
}

fn laurel() -> Composition<Zoo> {
    gpt2().per_sublayer(LaurelConfig::rw_lr(4))
}

fn recurrent() -> Composition<Zoo> {
    laurel().recurrent(RecurrentConfig::default())
}

/// Returns the most likely token after a sequence, from a model with random weights.
fn next_token<B: Backend>(
    config: &impl ModelConfig,
    device: &B::Device,
) -> Result<Tensor<B, 2, Int>, Box<dyn std::error::Error>> {
    let model = config.build::<B>(50_257, device)?;
    let sizes = (50_257, config.shape().context);
    let ids = token_ids::<B>(&[[464, 2068, 7586]], sizes, device)?; // checks the ids
    let logits = model.forward(ids); // [batch, time, vocab]
    Ok(logits.narrow(1, 2, 1).argmax(2).squeeze_dim(2))
}
// README: end

fn rmt() -> RmtConfig {
    RmtConfig {
        n_layer: 4,
        d_k: 16,
        d_v: 32,
        rank: 4,
        ..RmtConfig::default()
    }
}

fn tokenformer() -> TokenFormerConfig {
    TokenFormerConfig {
        n_layer: 4,
        n_head: 4,
        width: 128,
        ..TokenFormerConfig::default()
    }
}

#[test]
fn the_example_runs_for_every_architecture() {
    fn check(config: &impl ModelConfig) {
        let token = next_token::<burn::backend::Flex>(config, &Default::default()).unwrap();
        assert_eq!(token.dims(), [1, 1]);
    }
    check(&gpt2());
    check(&PlainModel(rmt()));
    check(&PlainModel(tokenformer()));
    check(&laurel());
    check(&recurrent());
}

#[test]
fn the_types_of_single_architectures_have_names() {
    use residual_zoo_models::{gpt2::Gpt2, rmt::Rmt, tokenformer::TokenFormer};
    type B = burn::backend::Flex;
    let device = Default::default();
    let _: Gpt2<B> = Gpt2Config::default().build(99, &device).unwrap();
    let _: Rmt<B> = rmt().build(99, &device).unwrap();
    let _: TokenFormer<B> = tokenformer().build(99, &device).unwrap();
}

#[test]
fn the_readme_shows_this_file() {
    let source = include_str!("embedding.rs");
    let example = source.split("// README: begin\n").nth(1).unwrap();
    let example = example.split("// README: end\n").next().unwrap();
    assert!(
        include_str!("../../README.md").contains(example.trim()),
        "the README differs"
    );
}
