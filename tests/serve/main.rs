//! Tests the server through the interface that clients use.
//!
//! The test that needs Python with `openai` is ignored by default. This command runs it:
//!
//! ```sh
//! RESIDUAL_ZOO_PYTHON=venv/bin/python cargo test --release --workspace --test serve -- --ignored
//! ```

#![allow(clippy::unwrap_used)]

mod answers;
mod bad_input;
mod http;
mod limits;

use std::path::PathBuf;

use residual_zoo::data::{Tokenizer, TokenizerConfig};
use residual_zoo::{ModelConfig, Run};
use residual_zoo_testing::program::Scratch;
use residual_zoo_testing::server::Server;
use residual_zoo_testing::{runs, zoo};

/// Makes a byte-level BPE with an end-of-text token.
fn tokenizer() -> Tokenizer {
    let text = "the cat sat on the mat, and the dog sat too";
    let bpe = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 270 }, &[text]).unwrap();
    let end = r#""added_tokens":[{"id":270,"content":"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]"#;
    let json = bpe.to_hf_json().replace("\"added_tokens\":[]", end);
    Tokenizer::from_hf_json(json, "test").unwrap()
}

fn bytes() -> Tokenizer {
    Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap()
}

/// Returns the resident memory of a process in KiB.
fn memory(id: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A run with random weights, and its server.
struct Served {
    run: PathBuf,
    server: Server,
    _scratch: Scratch,
}

impl Served {
    fn new(model: &ModelConfig, tokenizer: &Tokenizer, arguments: &[&str]) -> Self {
        let scratch = Scratch::new();
        let run = scratch.path("model");
        runs::untrained(model, tokenizer, &run);
        Self {
            server: Server::start(&run, arguments),
            run,
            _scratch: scratch,
        }
    }

    /// Serves a GPT-2 whose tokens are bytes and whose context is 64.
    fn gpt2() -> Self {
        Self::new(&zoo::gpt2(), &bytes(), &[])
    }

    fn opened(&self) -> Run {
        Run::open(&self.run).unwrap()
    }
}
