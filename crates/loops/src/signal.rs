//! Tensors that do not depend on the tokens: sinusoids of the position and the loop, and the random state outside
//! training.

use std::f64::consts::FRAC_PI_2;

use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::Seen;

use crate::draw;

/// Returns P^r at `time` positions after `seen`, `[rows, time, width]`, or `[1, time, width]` if all rows share the
/// positions (Dehghani et al. 2018, eqs. 6 and 7). At position t and in loop r, features 2c and 2c + 1 are
///
/// ```text
/// sin(t ω) + sin(r ω),  cos(t ω) + cos(r ω),  ω = 10000^(−2c / width)
/// ```
///
/// t counts from 0, and r from 1.
pub(crate) fn sinusoids<B: Backend>(
    width: usize,
    time: usize,
    seen: &Seen,
    r: usize,
    device: &B::Device,
) -> Tensor<B, 3> {
    let frequency = |j: usize| 10_000_f64.powf(-((j - j % 2) as f64) / width as f64);
    // cos(a) = sin(a + π / 2).
    let phase = |j: usize| (j % 2) as f64 * FRAC_PI_2;
    let of_loop = |j: usize| (r as f64 * frequency(j) + phase(j)).sin();
    let row = |of: &dyn Fn(usize) -> f64| {
        let values: Vec<f64> = (0..width).map(of).collect();
        Tensor::<B, 3>::from_data(TensorData::new(values, [1, 1, width]), device)
    };
    let positions = seen.next::<B>(time, device).float();
    let rows = positions.dims()[0];
    let angles = positions.reshape([rows, time, 1]) * row(&frequency) + row(&phase);
    angles.sin() + row(&of_loop)
}

/// Returns the random state at `time` positions after `seen`, `[rows, time, width]`, or `[1, time, width]` if all rows
/// share the positions. The state is from N(0, `std`²), and depends only on the position.
pub(crate) fn states<B: Backend>(
    width: usize,
    time: usize,
    seen: &Seen,
    std: f64,
    device: &B::Device,
) -> Tensor<B, 3> {
    let starts: Vec<usize> = match seen.same() {
        Some(start) => vec![start],
        None => seen.rows().collect(),
    };
    let positions = starts.iter().flat_map(|start| *start..start + time);
    let values: Vec<f64> = positions
        .flat_map(|position| draw::state(position, width, std))
        .collect();
    Tensor::from_data(TensorData::new(values, [starts.len(), time, width]), device)
}
