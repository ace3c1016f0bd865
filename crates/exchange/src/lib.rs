//! Imports models from other projects, and exports models for them.
//!
//! | | read by [`import()`] |
//! |---|---|
//! | Hugging Face's GPT-2 | `config.json`, and `model.safetensors` or `pytorch_model.bin` |
//! | Hugging Face's Llama, Qwen 2, Qwen 3, OLMo 2, Gemma 2, NanoChat | the same files |
//! | nanoGPT | `ckpt.pt` |
//! | TokenFormer, as its authors publish it | `pytorch_model.bin` |
//!
//! [`export()`] writes a run for Hugging Face's `transformers`. A GPT-2 becomes a `GPT2LMHeadModel`, and a Llama
//! becomes the class of `transformers` that has its settings. Other models of GPT-2, Llama, nGPT, RMT and TokenFormer
//! layers come with their Python code. [`import()`] reads all of them back.
//!
//! Every tensor is accounted for: a missing or unexpected tensor, or a tensor with the wrong shape, is an error.
//! Pickles are read without executing them.

#![forbid(unsafe_code)]

mod added;
mod card;
mod ends;
mod error;
mod export;
mod gpt2;
mod import;
mod json;
mod llama;
pub mod pickle;
mod tokenformer;
mod tokenizer;
mod torch;
mod weights;

pub use error::Error;
pub use export::{ExportOptions, Exported, export};
pub use import::{ImportOptions, Imported, import};
