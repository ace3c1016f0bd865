//! Positions of queries and keys.

use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::{Pairs, Rotary, Seen, widen};
use serde::{Deserialize, Serialize};

/// The way queries and keys encode their positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NgptPositions {
    /// Rotary positions, as in the paper: coordinates 2c and 2c + 1 turn by the angle position · base^(−2c/d).
    #[default]
    Rotary,
    /// The positions that NVIDIA/ngpt computes (its issue 10). These are not a rotation: coordinates 2c and 2c + 1 swap
    /// places, and each is multiplied by a sine or cosine that depends on the position.
    Code,
}

impl NgptPositions {
    /// Encodes the positions after `seen` in x `[batch, heads, time, d]`, with an even d. Returns the same shape.
    pub(crate) fn encode<B: Backend>(
        self,
        base: f64,
        x: Tensor<B, 4>,
        seen: &Seen,
    ) -> Tensor<B, 4> {
        let rotary = Rotary {
            base,
            pairs: Pairs::Neighbours,
            ..Rotary::default()
        };
        match self {
            Self::Rotary => rotary.turn(x, seen),
            Self::Code => as_code(&rotary.frequencies(x.dims()[3]), widen(x), seen),
        }
    }
}

/// Returns y_2c = −x_{2c+1} e_{d/2+c} and y_{2c+1} = x_2c e_c for the table e_2c = sin(t f_c), e_{2c+1} = cos(t f_c) of
/// position t, with the frequencies f. NVIDIA's code cuts this table, in which sines and cosines alternate, into two
/// halves.
fn as_code<B: Backend>(frequencies: &[f64], x: Tensor<B, 4>, seen: &Seen) -> Tensor<B, 4> {
    let [batch, heads, time, d] = x.dims();
    let (half, device) = (d / 2, x.device());
    let f = TensorData::new(frequencies.to_vec(), [1, 1, 1, half]);
    let t = seen.next::<B>(time, &device).float();
    let rows = t.dims()[0];
    let angle = t.reshape([rows, 1, time, 1]) * Tensor::from_data(f, &device);
    let e = neighbours(angle.clone().sin(), angle.cos());
    let [first, second] = [0, half].map(|from| e.clone().narrow(3, from, half));
    let pairs = x.reshape([batch, heads, time * half, 2]);
    let [a, b] = [0, 1].map(|i| {
        let one: Tensor<B, 4> = pairs.clone().narrow(3, i, 1);
        one.reshape([batch, heads, time, half])
    });
    neighbours(b.neg() * second, a * first)
}

/// Interleaves the coordinates of a and b, both `[rows, heads, time, d / 2]`, into `[rows, heads, time, d]`.
fn neighbours<B: Backend>(a: Tensor<B, 4>, b: Tensor<B, 4>) -> Tensor<B, 4> {
    let [rows, heads, time, half] = a.dims();
    let columns = [a, b].map(|x| x.reshape([rows, heads, time * half, 1]));
    Tensor::cat(columns.to_vec(), 3).reshape([rows, heads, time, 2 * half])
}
