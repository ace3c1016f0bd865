//! The matrices that a hidden parameter consists of, for optimizers that update a matrix as a whole, such as Muon.

use burn::tensor::{Tensor, backend::Backend};

/// The matrices `[d_in, d_out]` of a parameter inside a branch: maps from d_in to d_out hidden features.
///
/// Fused matrices count as several, so GPT-2's `qkv` holds three: for queries, keys and values. A convolution kernel is
/// one matrix, from patches to output channels. [Muon](crate::Muon)'s factor s depends on the shape of this matrix, but
/// Keller Jordan's code always sets s to 1 for a kernel. Three kinds of parameters are one matrix each, although no
/// paper trained them with Muon: a TokenFormer's keys, its values, and each set of keys of a Residual Matrix
/// Transformer (RMT). Tables, the unembedding, the map from image patches, the first convolution, depthwise filters and
/// all parameters of connections are not hidden matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Number of matrices.
    pub count: usize,
    /// Number of features that a matrix reads.
    pub d_in: usize,
    /// Number of features that a matrix writes.
    pub d_out: usize,
    order: Order,
}

/// The order of a parameter's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// `[count, d_in, d_out]`, or one matrix `[d_in, d_out]`.
    CountInOut,
    /// `[d_in, count · d_out]`: matrices side by side.
    InCountOut,
    /// `[d_out, …]`: one matrix that reads the remaining axes.
    OutIn,
}

impl Matrices {
    /// Returns the matrices of the parameter at the path `fields`, which has this `shape`; `None` if the parameter is
    /// not hidden.
    pub(crate) fn of(fields: &[&str], shape: &[usize]) -> Option<Self> {
        let field = fields.last()?;
        let outside = ["embeddings", "connection", "ends", "taps"];
        if fields.iter().any(|field| outside.contains(field)) {
            return None;
        }
        let is_read_by_rows =
            ["keys", "keys_a", "keys_b", "r_q", "r_k", "r_v", "r_ff"].contains(field);
        let (order, count, d_in, d_out) = match *shape {
            // Queries, keys and values, each as wide as the stream. The values can be missing.
            [d_in, d_out] if fields.contains(&"qkv") => {
                (Order::InCountOut, d_out / d_in, d_in, d_in)
            }
            [d_out, d_in] if is_read_by_rows => (Order::OutIn, 1, d_in, d_out),
            [d_in, d_out] => (Order::CountInOut, 1, d_in, d_out),
            [count, d_in, d_out] => (Order::CountInOut, count, d_in, d_out),
            [d_out, d_in, height, width] => (Order::OutIn, 1, d_in * height * width, d_out),
            _ => return None,
        };
        Some(Self {
            count,
            d_in,
            d_out,
            order,
        })
    }

    /// Returns `[count, d_in, d_out]`.
    pub fn dims(self) -> [usize; 3] {
        [self.count, self.d_in, self.d_out]
    }

    /// Splits the flattened parameter `[numbers]` into its matrices, `[count, d_in, d_out]`.
    pub fn split<B: Backend>(self, x: Tensor<B, 1>) -> Tensor<B, 3> {
        let Self {
            count, d_in, d_out, ..
        } = self;
        match self.order {
            Order::CountInOut => x.reshape([count, d_in, d_out]),
            Order::InCountOut => x.reshape([d_in, count, d_out]).swap_dims(0, 1),
            Order::OutIn => x.reshape([count, d_out, d_in]).swap_dims(1, 2),
        }
    }

    /// Undoes [`split`](Self::split).
    pub fn join<B: Backend>(self, x: Tensor<B, 3>) -> Tensor<B, 1> {
        match self.order {
            Order::CountInOut => x.flatten(0, 2),
            Order::InCountOut => x.swap_dims(0, 1).flatten(0, 2),
            Order::OutIn => x.swap_dims(1, 2).flatten(0, 2),
        }
    }
}
