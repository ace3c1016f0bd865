//! The embeddings of a vision transformer (Dosovitskiy et al., "An image is worth 16x16 words", 2021):
//! <https://arxiv.org/abs/2010.11929>.
//!
//! ```text
//! x_0     = [class token; patches(image) · E + b] + positions      (eq. 1)
//! x_{i+1} = x_i + f(x_i)                                           any architecture, without a causal mask (eqs. 2, 3)
//! logits  = norm(x_L)[class token] · W + c                         (eq. 4)
//! ```
//!
//! E and b, and W and c, are the weights and biases of two linear maps. f is a sublayer with its norm. [`Pool`]
//! can replace the class token with the mean of the patches.
//!
//! With GPT-2's layers, this is ViT. With TokenFormer's layers, it is the vision model of the TokenFormer paper
//! (section 4.2).

#![forbid(unsafe_code)]

mod embeddings;

pub use embeddings::{PatchEmbeddings, Patches, Pool};

#[cfg(test)]
mod tests;
