//! Operations per sequence as section 5.1 estimates them.
//!
//! They weigh the terms of one layer, l² d for attention and l d² for linear layers, without their
//! constants: neither the 2 FLOPs of a multiply-add nor the size of the feed-forward network is in
//! them. [`RecurrentConfig::cost`](crate::RecurrentConfig::cost) counts FLOPs.

/// A transformer of `n_layer` layers and width `width` on `time` tokens: r(l² d + l d²), where r is
/// the number of layers, l the tokens and d the width.
pub fn regular_operations(n_layer: usize, time: usize, width: usize) -> usize {
    n_layer * (time * time * width + time * width * width)
}

/// The same transformer as τ of a recurrent one with blocks of `block` tokens:
/// r(4 d l k + 2 l d²), where k is the tokens in a block.
///
/// This is [`regular_operations`] on 2k tokens, l / k times. There are as many calls of τ on two
/// blocks less one, and besides them eqs. 8 and 10, the first and the last call, on one block each.
///
/// Tables 2 and 6 follow from it. Table 4, 2.5E7, needs a width of 32; for the 96 of Table 3 it is
/// 1.27E8.
pub fn recurrent_operations(n_layer: usize, time: usize, width: usize, block: usize) -> usize {
    n_layer * (4 * width * time * block + 2 * time * width * width)
}
