//! Data sets, tokenizers and training windows.
//!
//! | task | items |
//! |---|---|
//! | read text from a file, a directory or a download | [`read_documents`], [`tiny_shakespeare`] |
//! | map text to token ids and back | [`Tokenizer`], [`StreamDecoder`] |
//! | generate token ids of known entropy | [`synthetic`] |
//! | read images, as they are or as sequences of grey values | [`ImagesConfig`], [`cifar`] |
//! | draw images of shapes | [`ShapesConfig`] |
//! | generate the copy tasks | [`CopyConfig`] |
//! | store token ids in memory-mapped files | [`write_shard`], [`Shard`] |
//! | read token ids from memory or disk | [`Tokens`] |
//! | open a corpus from a config, with a cache | [`DataConfig`], [`Corpus`] |
//! | batch inputs and targets | [`Examples`], [`Sequences`], [`Batch`] |

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod augment;
mod cache;
mod cached_tokens;
mod chunks;
pub mod cifar;
mod config;
mod copying;
mod corpus;
mod download;
mod error;
mod examples;
mod files;
mod folder;
mod hash;
mod hf;
mod hub;
mod images;
pub mod json;
mod known;
mod meanwhile;
mod mixture;
mod packed;
mod progress;
mod random;
mod seen_images;
mod shapes;
mod shard;
mod stream;
pub mod synthetic;
mod text;
mod tokenize;
mod tokenizer;
mod tokens;
mod windows;

#[cfg(test)]
mod testing;

pub use augment::RandAugment;
pub use cifar::Cifar;
pub use config::{DataConfig, Source, Weighted};
pub use copying::CopyConfig;
pub use corpus::Corpus;
pub use download::{fetch, fetch_cached, tiny_shakespeare};
pub use error::{DataError, does_not_exist, one_line};
pub use examples::{Examples, Sequences};
pub use files::{check_is_file, is_there, read_file, read_utf8};
pub use folder::FolderConfig;
pub use hash::of_parts as hash_of_parts;
pub use hub::{fetch_model, is_on_hub};
pub use images::{ImageSet, Images, ImagesConfig};
pub use meanwhile::{Patience, unless_stopped};
pub use mixture::{MixedWindows, Mixture};
pub use progress::{OnProgress, Stage};
pub use random::derive_seed;
pub use seen_images::{ImageBatch, Mixed, SeenImages};
pub use shapes::ShapesConfig;
pub use shard::{Shard, write_shard};
pub use stream::StreamDecoder;
pub use synthetic::{Entropy, SyntheticConfig};
pub use text::read_documents;
pub use tokenizer::{Tokenizer, TokenizerConfig};
pub use tokens::Tokens;
pub use windows::{Batch, Window, Windows};
