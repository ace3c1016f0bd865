//! Text to tokens to training windows.
//!
//! | step | here |
//! |---|---|
//! | a file, a directory or a download to text | [`read_documents`], [`tiny_shakespeare`] |
//! | text to token ids and back | [`Tokenizer`], [`StreamDecoder`] |
//! | token ids without text, of known entropy | [`synthetic`] |
//! | images to sequences of grey values | [`cifar`] |
//! | symbols to be copied over noise | [`CopyConfig`] |
//! | token ids on disk, memory-mapped | [`write_shard`], [`Shard`] |
//! | token ids wherever they are | [`Tokens`] |
//! | all of this by a config, cached | [`DataConfig`], [`Corpus`] |
//! | any of these to inputs and targets | [`Examples`], [`Sequences`], [`Batch`] |

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod chunks;
pub mod cifar;
mod copying;
mod corpus;
mod download;
mod draws;
mod error;
mod examples;
mod files;
mod hash;
mod hf;
mod shard;
mod stream;
pub mod synthetic;
mod text;
mod tokenizer;
mod tokens;
mod windows;

#[cfg(test)]
mod testing;

pub use cifar::{Cifar10, Images};
pub use copying::CopyConfig;
pub use corpus::{Corpus, DataConfig, Source};
pub use download::{fetch, fetch_cached, tiny_shakespeare};
pub use error::{DataError, one_line};
pub use examples::{Examples, Sequences};
pub use files::{read_file, read_utf8};
pub use hash::of_parts as hash_of_parts;
pub use shard::{Shard, write_shard};
pub use stream::StreamDecoder;
pub use synthetic::{Entropy, SyntheticConfig};
pub use text::{read_documents, read_text};
pub use tokenizer::{Tokenizer, TokenizerConfig};
pub use tokens::Tokens;
pub use windows::{Batch, Window, Windows};
