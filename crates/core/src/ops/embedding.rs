//! Looks up table rows by id.

use burn::tensor::{Int, Tensor, backend::Backend, module};
use residual_zoo_kernels as kernels;

/// Returns the rows of `table` `[rows, width]` for `ids` `[batch, time]`: `[batch, time, width]`.
pub fn embedding<B: Backend>(table: Tensor<B, 2>, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
    kernels::embedding(table, ids).unwrap_or_else(|(table, ids)| module::embedding(table, ids))
}
