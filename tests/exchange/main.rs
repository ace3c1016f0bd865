//! Imports models of other projects, and exports models for them.
//!
//! The tests that need Python with `torch` and `transformers` are ignored by default. This command runs them:
//!
//! ```sh
//! RESIDUAL_ZOO_PYTHON=venv/bin/python cargo test --release --test exchange -- --ignored
//! ```

#![allow(clippy::unwrap_used)]

mod as_others_write;
mod bad_input;
mod ends;
mod llama;
mod round_trip;
mod with_python;

use std::path::Path;

use burn::backend::Flex;
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo::Run;
use residual_zoo::core::{LanguageModel, Tensors};
use residual_zoo::data::{Tokenizer, TokenizerConfig};
use residual_zoo::runs::checkpoint::read_tensors;
use residual_zoo_testing::runs::untrained as write_run;

/// Makes a byte-level BPE with an end-of-text token.
fn tokenizer() -> Tokenizer {
    let text = "the cat sat on the mat, and the dog sat too";
    let bpe = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 270 }, &[text]).unwrap();
    let end = r#""added_tokens":[{"id":270,"content":"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]"#;
    let json = bpe.to_hf_json().replace("\"added_tokens\":[]", end);
    Tokenizer::from_hf_json(json, "test").unwrap()
}

/// Returns the logits after each of `ids`, and the `new` tokens that greedy decoding appends.
fn logits(run: &Path, ids: &[i32], new: usize) -> (Vec<Vec<f64>>, Vec<i32>) {
    let run = Run::open(run).unwrap();
    let device = Default::default();
    let model = run.model::<Flex>(&device).unwrap();
    let forward = |ids: &[i32]| {
        let data = TensorData::new(ids.to_vec(), [1, ids.len()]);
        let logits = model.forward(Tensor::<Flex, 2, Int>::from_data(data, &device));
        let [_, time, vocabulary] = logits.dims();
        let all: Vec<f64> = logits.into_data().iter::<f64>().collect();
        assert_eq!(all.len(), time * vocabulary);
        all.chunks(vocabulary)
            .map(<[f64]>::to_vec)
            .collect::<Vec<_>>()
    };
    let mut text = ids.to_vec();
    for _ in 0..new {
        let last = forward(&text).pop().unwrap();
        let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b]));
        text.push(best.unwrap() as i32);
    }
    (forward(ids), text.split_off(ids.len()))
}

/// Reads the weights of an untrained run.
fn weights(run: &Path) -> Tensors {
    let file = run.join("checkpoints/step-00000000/model.safetensors");
    read_tensors(&file).unwrap().0
}
