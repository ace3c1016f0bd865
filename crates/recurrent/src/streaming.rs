//! The recurrence over a sequence that comes in pieces, in memory constant in its length.
//!
//! All blocks but the last are settled. The last one, block i + 1, is open:
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
//! c is what α carries: h_{i-1} in the paper's form, y_{i-1} in the code's. The y of the open block are
//! provisional. They are the inputs of the next layer, so what a layer computes in its open block is
//! provisional too, except in the first layer. `close` computes it again from settled inputs.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{ResidualBlock, Stream};

use crate::{Form, Recurrent};

/// What a [`Recurrent`] remembers of the tokens it has read.
#[derive(Clone, Debug)]
pub struct RecurrentCache<B: Backend, C> {
    /// The input x of the first layer for the tokens of the open block, `[batch, ≤ k, width]`.
    pub(crate) open: Option<Tensor<B, 3>>,
    pub(crate) layers: Vec<LayerCache<B, C>>,
}

/// The state of a layer while block i + 1 is open.
#[derive(Clone, Debug)]
pub(crate) struct LayerCache<B: Backend, C> {
    /// τ after the left half α c_{i-1} + h_i; empty before the first block.
    pub(crate) left: C,
    /// α c_{i-1}, which is added to the right half.
    pub(crate) carry: Option<Tensor<B, 3>>,
    /// c_i, the carry of the next step.
    pub(crate) next_carry: Option<Tensor<B, 3>>,
    /// τ after `left` and what there is of the right half.
    pub(crate) right: C,
    /// h_{i+1} so far.
    pub(crate) hidden: Option<Tensor<B, 3>>,
    /// τ over `hidden` alone (eq. 10).
    pub(crate) closing: C,
}

impl<B: Backend, R: ResidualBlock<B>> Recurrent<B, R> {
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

    /// y for the tokens x `[batch, new, width]` that follow those in `cache`, as the last of the
    /// sequence.
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
                // What of the closed block belongs to this piece.
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

    /// Reads x, which stays within the open block, and closes it for the time being.
    fn extend(&self, x: Tensor<B, 3>, cache: &mut RecurrentCache<B, R::Cache>) -> Tensor<B, 3> {
        append(&mut cache.open, x.clone());
        let layers = self.layers.iter().zip(&mut cache.layers);
        layers.fold(x, |x, (tau, layer)| {
            let from = length(&layer.hidden);
            let right = layer.right_half(x, from);
            let h = apply(tau, right, &mut layer.right);
            append(&mut layer.hidden, h.clone());
            apply(tau, h, &mut layer.closing)
        })
    }

    /// Settles the open block, which is whole and is followed by another: eq. 9 for its left half.
    /// Returns y of the last layer.
    fn close(&self, cache: &mut RecurrentCache<B, R::Cache>) -> Tensor<B, 3> {
        let RecurrentCache { open, layers } = cache;
        let x = open
            .take()
            .expect("a block is closed only when it is whole");
        let alpha = self.alpha();
        self.layers.iter().zip(layers).fold(x, |x, (tau, layer)| {
            // The first layer has seen this x; to those behind it, it is new.
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
            let mut after_left = tau.new_cache();
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
                closing: tau.new_cache(),
            };
            y
        })
    }
}

impl<B: Backend, C> LayerCache<B, C> {
    /// α c_{i-1} + x_{i+1} for the part of x_{i+1} that begins at token `from` of the block.
    fn right_half(&self, x: Tensor<B, 3>, from: usize) -> Tensor<B, 3> {
        let count = x.dims()[1];
        match &self.carry {
            Some(carry) => carry.clone().narrow(1, from, count) + x,
            None => x,
        }
    }
}

/// τ of the tokens that follow those in `cache`.
fn apply<B: Backend, R: ResidualBlock<B>>(
    tau: &R,
    x: Tensor<B, 3>,
    cache: &mut R::Cache,
) -> Tensor<B, 3> {
    tau.forward(Stream::new(x, tau.reach()), Some(cache)).x
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
