//! Operations per sequence, as estimated in section 5.1.
//!
//! For l tokens of width d, the estimates add l² d for attention and l d² for linear layers, without constant factors.
//! A multiply-add counts once, and the width of the feed-forward network is ignored.
//! [`RecurrentConfig::cost`](crate::RecurrentConfig::cost) counts FLOPs.

/// Returns the operations of a transformer on a sequence: r(l² d + l d²) for r = `n_layer` layers, l = `time` tokens
/// and the width d = `width`.
pub fn regular_operations(n_layer: usize, time: usize, width: usize) -> usize {
    n_layer * (time * time * width + time * width * width)
}

/// Returns the operations of a recurrence on a sequence, with blocks of k = `block` tokens and the transformer of
/// [`regular_operations`] as τ: r(4 d l k + 2 l d²).
///
/// This is [`regular_operations`] on 2k tokens, l / k times. In fact, eq. 9 calls τ on two blocks l / k − 1 times, and
/// eqs. 8 and 10 call it on one block once each.
///
/// Tables 2 and 6 follow from this formula. The 2.5E7 of Table 4 requires a width of 32; the width of 96 in Table 3
/// gives 1.27E8.
pub fn recurrent_operations(n_layer: usize, time: usize, width: usize, block: usize) -> usize {
    n_layer * (4 * width * time * block + 2 * time * width * width)
}
