//! The matrices that a hidden parameter consists of, for optimizers that take a matrix as a whole.

use burn::tensor::{Tensor, backend::Backend};

/// The matrices `[d_in, d_out]` of a parameter inside a branch: maps from d_in to d_out hidden features.
///
/// Fused matrices count as several, so the queries, keys and values of GPT-2's `qkv` are three. The kernel of a
/// convolution is one matrix from its patches to its channels; in Keller Jordan's code, its s is always 1. The keys of a
/// TokenFormer are one matrix, and so are its values and each set of keys of an RMT; no paper trained them with Muon.
/// Tables, the unembedding, the map from image patches,
/// depthwise filters and all parameters of connections are not hidden matrices.
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

/// The order of the axes of a parameter.
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
    /// The matrices of a parameter with this `shape`, at the end of a path of `fields`.
    pub(crate) fn of(fields: &[&str], shape: &[usize]) -> Option<Self> {
        let field = fields.last()?;
        let outside = ["embeddings", "connection", "ends", "taps"];
        if fields.iter().any(|field| outside.contains(field)) {
            return None;
        }
        let is_read_by_rows =
            ["keys", "keys_a", "keys_b", "r_q", "r_k", "r_v", "r_ff"].contains(field);
        let (order, count, d_in, d_out) = match *shape {
            [d_in, d_out] if fields.contains(&"qkv") => (Order::InCountOut, 3, d_in, d_out / 3),
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

    /// `[count, d_in, d_out]`.
    pub fn dims(self) -> [usize; 3] {
        [self.count, self.d_in, self.d_out]
    }

    /// Takes the flattened parameter `[numbers]` apart: `[count, d_in, d_out]`.
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
