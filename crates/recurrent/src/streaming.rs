//! The recurrence over a sequence that arrives in pieces, in constant memory.
//!
//! All blocks but the last are settled: later tokens do not change their outputs. The last block, i + 1, is open:
//!
//! ```text
//!        extend: the next tokens are within the block
//!              ┌─────────────┐
//!              ▼             │
//!  ┌─────────────────────────┴─┐  close: the block is full   ┌─────────────────────────┐
//!  │ open block i + 1          │  and another token comes    │ settle block i + 1:     │
//!  │ h_{i+1} = τ(…, α c + x)   ├────────────────────────────►│ h_{i+1}, then eq. 9 for │
//!  │ y = τ(h_{i+1})  (eq. 10)  │                             │ its y; i becomes i + 1  │
//!  └───────────────────────────┘                             └────────────┬────────────┘
//!              ▲                                                          │
//!              └──────────── an empty open block ─────────────────────────┘
//! ```
//!
//! c is the carried state: h_{i-1} in the paper's form, y_{i-1} in the form of the authors' code. The outputs y of the
//! open block are provisional. The next layer reads them, so later layers compute only provisional results in their
//! open block. `close` computes these results again from settled inputs.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Cache, Ends, ResidualBlock, close, open};

use crate::{Form, Recurrent};

/// The state of a [`Recurrent`] after the tokens read so far. Its size does not grow with the sequence. It holds:
///
/// - the input of the first layer for the open block, at most k tokens;
/// - for each layer, the carry α c_{i-1}, the next carried state c_i, and h_{i+1} so far, at most k tokens each;
/// - for each layer, three caches of τ: after the left half of eq. 9 (k tokens), after the right half read so far (at
///   most 2k), and over h_{i+1} in eq. 10 (at most k).
///
/// c is h in [`Form::Paper`] and y in [`Form::Code`]. Block i + 1 is open until the first token after it arrives and
/// settles it. The block's x then passes through all layers again, because later layers have read provisional outputs
/// of eq. 10. A token costs two passes through τ when it is read, and two more when its block is settled.
#[derive(Clone, Debug)]
pub struct RecurrentCache<B: Backend, C> {
    /// Input x of the first layer for the tokens of the open block, `[batch, ≤ k, width]`.
    pub(crate) open: Option<Tensor<B, 3>>,
    pub(crate) layers: Vec<LayerCache<B, C>>,
}

/// All sequences of a batch settle their blocks together, so they stay at the same position.
impl<B: Backend, C: Cache> Cache for RecurrentCache<B, C> {}

/// The state of a layer while block i + 1 is open.
#[derive(Clone, Debug)]
pub(crate) struct LayerCache<B: Backend, C> {
    /// The cache of τ after the left half α c_{i-1} + h_i; empty before the first block.
    pub(crate) left: C,
    /// α c_{i-1}, the carry that is added to the right half.
    pub(crate) carry: Option<Tensor<B, 3>>,
    /// c_i, from which the next step makes its carry α c_i.
    pub(crate) next_carry: Option<Tensor<B, 3>>,
    /// The cache of τ after `left` and the part of the right half read so far.
    pub(crate) right: C,
    /// h_{i+1} so far.
    pub(crate) hidden: Option<Tensor<B, 3>>,
    /// The cache of τ over `hidden` alone (eq. 10).
    pub(crate) closing: C,
}

impl<B: Backend, R: ResidualBlock<B>, E: Ends<B>> Recurrent<B, R, E> {
    pub(crate) fn start(&self) -> RecurrentCache<B, R::Cache> {
        let layers = self.layers.iter().map(|tau| LayerCache {
            left: tau.new_cache(),
            carry: None,
            next_carry: None,
            right: tau.new_cache(),
            hidden: None,
            closing: tau.new_cache(),
        });
        RecurrentCache {
            open: None,
            layers: layers.collect(),
        }
    }

    /// Iterates over each τ with the ends of its stream.
    fn taus(&self) -> impl Iterator<Item = (&R, &E)> {
        self.layers.iter().zip(&self.ends)
    }

    /// Returns y for the tokens x `[batch, new, width]`, which follow the tokens in `cache` and end the sequence.
    pub(crate) fn read(
        &self,
        x: Tensor<B, 3>,
        cache: &mut RecurrentCache<B, R::Cache>,
    ) -> Tensor<B, 3> {
        let [_, new, _] = x.dims();
        let mut ys = Vec::new();
        let mut at = 0;
        while at < new {
            if length(&cache.open) == self.block {
                let y = self.close(cache);
                // The settled outputs of this piece's part of the block replace the provisional outputs.
                if at > 0 {
                    let ours = at.min(self.block);
                    ys.pop();
                    ys.push(y.narrow(1, self.block - ours, ours));
                }
            }
            let count = (self.block - length(&cache.open)).min(new - at);
            ys.push(self.extend(x.clone().narrow(1, at, count), cache));
            at += count;
        }
        Tensor::cat(ys, 1)
    }

    /// Reads x, which stays within the open block, and returns the provisional y of x (eq. 10).
    fn extend(&self, x: Tensor<B, 3>, cache: &mut RecurrentCache<B, R::Cache>) -> Tensor<B, 3> {
        append(&mut cache.open, x.clone());
        let layers = self.taus().zip(&mut cache.layers);
        layers.fold(x, |x, (tau, layer)| {
            let from = length(&layer.hidden);
            let right = layer.right_half(x, from);
            let h = apply(tau, right, &mut layer.right);
            append(&mut layer.hidden, h.clone());
            apply(tau, h, &mut layer.closing)
        })
    }

    /// Settles the open block, which is full and has a successor, by computing its y with eq. 9. Returns the y of the
    /// last layer.
    fn close(&self, cache: &mut RecurrentCache<B, R::Cache>) -> Tensor<B, 3> {
        let RecurrentCache { open, layers } = cache;
        let x = open.take().expect("a block is closed only when it is full");
        let alpha = self.alpha();
        self.taus().zip(layers).fold(x, |x, (tau, layer)| {
            // Only the first layer has read this x before; the others read a provisional x.
            let right = layer.right_half(x.clone(), 0);
            let h = apply(tau, right, &mut layer.left);
            if layer.next_carry.is_none() && self.form == Form::Code {
                layer.next_carry = Some(x);
            }
            let carry = layer.next_carry.take().map(|c| alpha.clone() * c);
            let left = match &carry {
                Some(c) => c.clone() + h.clone(),
                None => h.clone(),
            };
            let mut after_left = tau.0.new_cache();
            let y = apply(tau, left, &mut after_left);
            *layer = LayerCache {
                right: after_left.clone(),
                left: after_left,
                carry,
                next_carry: Some(match self.form {
                    Form::Paper => h,
                    Form::Code => y.clone(),
                }),
                hidden: None,
                closing: tau.0.new_cache(),
            };
            y
        })
    }
}

impl<B: Backend, C> LayerCache<B, C> {
    /// Returns α c_{i-1} + x_{i+1} for the part of x_{i+1} from token `from` of the block.
    fn right_half(&self, x: Tensor<B, 3>, from: usize) -> Tensor<B, 3> {
        let count = x.dims()[1];
        match &self.carry {
            Some(carry) => carry.clone().narrow(1, from, count) + x,
            None => x,
        }
    }
}

/// Applies τ to the tokens that follow the tokens in `cache`.
fn apply<B: Backend, R: ResidualBlock<B>>(
    (tau, ends): (&R, &impl Ends<B>),
    x: Tensor<B, 3>,
    cache: &mut R::Cache,
) -> Tensor<B, 3> {
    close(ends, tau.forward(open(ends, x, None), Some(cache)))
}

pub(crate) fn length<B: Backend>(x: &Option<Tensor<B, 3>>) -> usize {
    x.as_ref().map_or(0, |x| x.dims()[1])
}

fn append<B: Backend>(whole: &mut Option<Tensor<B, 3>>, x: Tensor<B, 3>) {
    *whole = Some(match whole.take() {
        Some(whole) => Tensor::cat(vec![whole, x], 1),
        None => x,
    });
}
