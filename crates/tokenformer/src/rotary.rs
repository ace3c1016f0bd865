//! Rotary positions.

use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::Seen;

/// Rotates the first `rotated` coordinates of every head of `x` `[batch, heads, time, d]`, at the positions after
/// `seen` (Su et al., "RoFormer", 2021). Coordinates c and c + rotated/2 are a pair, rotated by the angle position ·
/// 10000^(−2c/rotated), as in the authors' configs.
pub fn rotate<B: Backend>(x: Tensor<B, 4>, rotated: usize, seen: &Seen) -> Tensor<B, 4> {
    let [_, _, time, d] = x.dims();
    let (half, device) = (rotated / 2, x.device());
    let frequency = |c: usize| 10_000f64.powf(-2.0 * c as f64 / rotated as f64);
    let frequencies: Vec<f64> = (0..half).map(frequency).collect();
    let frequencies = Tensor::from_data(TensorData::new(frequencies, [1, 1, 1, half]), &device);
    let positions = seen.next::<B>(time, &device).float();
    let rows = positions.dims()[0];
    let angle = positions.reshape([rows, 1, time, 1]) * frequencies;
    let (cos, sin) = (angle.clone().cos(), angle.sin());

    let part = |from, count| x.clone().narrow(3, from, count);
    let (a, b) = (part(0, half), part(half, half));
    let mut parts = vec![
        a.clone() * cos.clone() - b.clone() * sin.clone(),
        b * cos + a * sin,
    ];
    if d > rotated {
        parts.push(part(rotated, d - rotated));
    }
    Tensor::cat(parts, 3)
}
