//! Import of models from other projects, and export of models for them.
//!
//! | | read by [`import()`] |
//! |---|---|
//! | GPT-2 of Hugging Face | `config.json`, and `model.safetensors` or `pytorch_model.bin` |
//! | Llama, Qwen 2, Qwen 3, OLMo 2, Gemma 2, NanoChat of Hugging Face | the same files |
//! | nanoGPT | `ckpt.pt` |
//! | TokenFormer, as its authors publish it | `pytorch_model.bin` |
//!
//! [`export()`] writes a run for Hugging Face's `transformers`: a GPT-2 as `GPT2LMHeadModel`, and other models of
//! GPT-2, Llama, nGPT, RMT and TokenFormer layers with their Python code. [`import()`] reads both back.
//!
//! Every tensor is accounted for: a missing or unexpected tensor, or one of another shape, is an error. Pickles are
//! read without executing them.

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
