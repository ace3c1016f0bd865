//! Looks up table rows by id. The table's gradient adds up the gradients of each id in the order of the positions.

use std::marker::PhantomData;

use burn::tensor::{Int, Tensor, TensorPrimitive, backend::Backend, ops::IntTensor};

use crate::op::apply;

/// The operation; it carries the ids.
#[derive(Debug)]
pub(crate) struct Embedding<B: Backend> {
    /// `[batch, time]`.
    pub(crate) ids: IntTensor<B>,
    backend: PhantomData<B>,
}

impl<B: Backend> Clone for Embedding<B> {
    fn clone(&self) -> Self {
        let ids = self.ids.clone();
        let backend = PhantomData;
        Self { ids, backend }
    }
}

/// A table `[rows, width]` and ids `[batch, time]`.
pub type Lookup<B> = (Tensor<B, 2>, Tensor<B, 2, Int>);

/// Returns the rows of `table` `[rows, width]` for `ids` `[batch, time]`: `[batch, time, width]`.
///
/// # Errors
///
/// Returns `table` and `ids` if there is no kernel for them.
pub fn embedding<B: Backend>(
    table: Tensor<B, 2>,
    ids: Tensor<B, 2, Int>,
) -> Result<Tensor<B, 3>, Lookup<B>> {
    let op = Embedding::<B> {
        ids: ids.into_primitive(),
        backend: PhantomData,
    };
    match apply::<B, _, 1>(&op, [table.into_primitive().tensor()]) {
        Ok(rows) => Ok(Tensor::from_primitive(TensorPrimitive::Float(rows))),
        Err([table]) => {
            let table = Tensor::from_primitive(TensorPrimitive::Float(table));
            Err((table, Tensor::from_primitive(op.ids)))
        }
    }
}

#[cfg(feature = "flex")]
crate::op::no_kernel!([B: Backend] Embedding<B>, 1, burn::backend::Flex, burn_flex::FlexTensor);
#[cfg(feature = "tch")]
crate::op::no_kernel!([B: Backend] Embedding<B>, 1, burn::backend::LibTorch, burn_tch::TchTensor);
