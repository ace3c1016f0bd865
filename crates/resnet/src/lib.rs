//! ResNet (He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2015):
//! <https://arxiv.org/abs/1512.03385>.
//!
//! ```text
//! x_0     = relu(norm(conv(image)))                          then a max pool, with the stem of ImageNet
//! x_{i+1} = relu(x_i + f(x_i))                               (eq. 1)
//! x_{i+1} = relu(s(x_i) + f(x_i))                            where the shape changes (eq. 2)
//! logits  = mean(x_L) · W + c
//! ```
//!
//! f is two 3 × 3 convolutions, or a 3 × 3 convolution between two 1 × 1 convolutions, each with a [`BatchNorm`]. The
//! stream is `[batch, height · width, channels]`, so a connection acts on the channels of each position. The ReLU acts
//! on the stream after the connection. The mean is over positions, and W and c are the weight and bias of the
//! classifier.
//!
//! A block that changes the shape has its own stream: its connection reads s(x_i) instead of x_i, and the next block
//! starts a new stream.

#![forbid(unsafe_code)]

mod batch_norm;
mod block;
mod config;
mod ends;

pub use batch_norm::BatchNorm;
pub use block::{Block, Conv, Residual, Shortcut};
pub use config::{BlockKind, ResNetConfig, ShortcutKind, Stem};
pub use ends::ResNetEnds;

#[cfg(test)]
mod tests;
