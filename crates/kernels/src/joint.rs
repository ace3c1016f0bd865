//! Operations with any number of inputs and results.
//!
//! A node of Burn's graph has a fixed number of inputs and one result. A joint operation is a chain of links to its
//! inputs, one node for the operation, and one node for each result:
//!
//! ```text
//! input 1    input 2                       result 1
//!    ↑          ↑                            ↙
//!   link   ←   link   ←   …   ←   operation ←   result 2
//! ```
//!
//! The nodes share the gradients of the results and of the inputs. To each other, the nodes pass only empty gradients,
//! which make Burn run the nodes in order.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, TensorMetadata as _};

use crate::op::{cast, plain_only, same};

/// An operation on any number of tensors, with kernels for the backend `K`.
pub(crate) trait Joint<K: Backend>: Clone + Debug + Send + 'static {
    /// Whether there is a kernel for these inputs.
    fn takes(&self, inputs: &[FloatTensor<K>]) -> bool;

    /// Computes the results.
    fn forward(&self, inputs: &[FloatTensor<K>]) -> Vec<FloatTensor<K>>;

    /// Computes the gradients of the inputs. The gradient of a result that the loss does not use is `None`.
    fn backward(
        &self,
        inputs: &[FloatTensor<K>],
        grads: Vec<Option<FloatTensor<K>>>,
    ) -> Vec<FloatTensor<K>>;
}

/// Applies `op` with the kernels of `K`, if `B` is `K`, with or without autodiff. Returns the inputs if there are no
/// kernels for them, or if the environment variable `RESIDUAL_ZOO_OPS` is `plain`.
pub(crate) fn apply<B: Backend, K: Backend, O: Joint<K>>(
    op: &O,
    inputs: Vec<FloatTensor<B>>,
) -> Result<Vec<FloatTensor<B>>, Vec<FloatTensor<B>>> {
    if plain_only() {
        return Err(inputs);
    }
    let inputs = match cast::<_, Vec<FloatTensor<K>>>(inputs) {
        Ok(inputs) if op.takes(&inputs) => return Ok(same(op.forward(&inputs))),
        Ok(inputs) => return Err(same(inputs)),
        Err(inputs) => inputs,
    };
    let inputs = cast::<_, Vec<FloatTensor<Autodiff<K>>>>(inputs)?;
    let primitives: Vec<_> = inputs.iter().map(|x| x.primitive.clone()).collect();
    match op.takes(&primitives) {
        true => Ok(same(tracked(op, &inputs, primitives))),
        false => Err(same(inputs)),
    }
}

/// Applies `op`, and adds its nodes to the graph.
fn tracked<K: Backend, O: Joint<K>>(
    op: &O,
    inputs: &[FloatTensor<Autodiff<K>>],
    primitives: Vec<FloatTensor<K>>,
) -> Vec<FloatTensor<Autodiff<K>>> {
    let results = op.forward(&primitives);
    if !inputs.iter().any(|x| x.is_tracked()) {
        let untracked = results.into_iter();
        return untracked.map(Autodiff::<K>::from_inner).collect();
    }
    let (device, dtype) = (K::float_device(&primitives[0]), primitives[0].dtype());
    let empty = K::float_zeros(Shape::new([1]), &device, dtype.into());
    let shared = Shared::new(results.len());
    // Burn forgets a node that is dropped before the next node is registered. Each node therefore lives until then.
    let mut chain = Autodiff::<K>::from_inner(empty.clone());
    for (i, input) in inputs.iter().enumerate() {
        let link = Link(i, shared.clone());
        let nodes = [chain.node.clone(), input.node.clone()];
        chain = link
            .prepare::<NoCheckpointing>(nodes)
            .compute_bound()
            .stateless(empty.clone());
    }
    let operation = Operation(op.clone(), shared.clone());
    let nodes = [chain.node.clone()];
    let operation = match operation
        .prepare::<NoCheckpointing>(nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(node) => node.finish(primitives, empty),
        OpsKind::UnTracked(node) => node.finish(empty),
    };
    let result = |(i, x)| {
        let result = Outcome(i, shared.clone());
        let nodes = [operation.node.clone()];
        result
            .prepare::<NoCheckpointing>(nodes)
            .compute_bound()
            .stateless(x)
    };
    results.into_iter().enumerate().map(result).collect()
}

/// The gradients that the nodes of an operation share.
#[derive(Clone, Debug)]
struct Shared<K: Backend>(Arc<Mutex<Grads<K>>>);

/// The gradients of the results and of the inputs. `None` if a gradient is not known yet, or was taken.
#[derive(Debug)]
struct Grads<K: Backend> {
    results: Vec<Option<FloatTensor<K>>>,
    inputs: Vec<Option<FloatTensor<K>>>,
}

impl<K: Backend> Shared<K> {
    fn new(results: usize) -> Self {
        Self(Arc::new(Mutex::new(Grads {
            results: vec![None; results],
            inputs: vec![],
        })))
    }

    fn grads(&self) -> MutexGuard<'_, Grads<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes the gradient of an input on to the node of this input.
#[derive(Debug)]
struct Link<K: Backend>(usize, Shared<K>);

impl<K: Backend> Backward<K, 2> for Link<K> {
    type State = ();

    fn backward(self, ops: Ops<(), 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let empty = grads.consume::<K>(&ops.node);
        let [chain, input] = ops.parents;
        if let Some(chain) = chain {
            grads.register::<K>(chain.id, empty);
        }
        let grad = self.1.grads().inputs[self.0].take();
        if let (Some(input), Some(grad)) = (input, grad) {
            grads.register::<K>(input.id, grad);
        }
    }
}

/// Computes the gradients of all inputs.
#[derive(Debug)]
struct Operation<K: Backend, O>(O, Shared<K>);

impl<K: Backend, O: Joint<K>> Backward<K, 1> for Operation<K, O> {
    type State = Vec<FloatTensor<K>>;

    fn backward(
        self,
        ops: Ops<Vec<FloatTensor<K>>, 1>,
        grads: &mut Gradients,
        _: &mut Checkpointer,
    ) {
        let empty = grads.consume::<K>(&ops.node);
        let results = std::mem::take(&mut self.1.grads().results);
        let inputs = self.0.backward(&ops.state, results);
        self.1.grads().inputs = inputs.into_iter().map(Some).collect();
        if let [Some(chain)] = ops.parents {
            grads.register::<K>(chain.id, empty);
        }
    }
}

/// Keeps the gradient of a result.
#[derive(Debug)]
struct Outcome<K: Backend>(usize, Shared<K>);

impl<K: Backend> Backward<K, 1> for Outcome<K> {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<K>(&ops.node);
        let (device, dtype) = (K::float_device(&grad), grad.dtype());
        self.1.grads().results[self.0] = Some(grad);
        if let [Some(operation)] = ops.parents {
            let empty = K::float_zeros(Shape::new([1]), &device, dtype.into());
            grads.register::<K>(operation.id, empty);
        }
    }
}
