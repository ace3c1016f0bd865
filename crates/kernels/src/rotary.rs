//! Rotary positions. Only cos and sin are kept for the backward pass. On Flex, the forward and the backward pass read
//! and write memory once each.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The turn of a pair of coordinates (a, b) to (a cos − b sin, b cos + a sin). cos and sin have no gradient.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    /// Whether coordinates 2c and 2c + 1 form pair c. Otherwise, coordinates c and c + n/2 form this pair, where n is
    /// the number of coordinates that turn.
    pub neighbours: bool,
}

/// Turns the first n coordinates of x `[batch, heads, time, d]` in pairs. cos and sin are `[rows, 1, time, n / 2]`,
/// with one row, or one per sequence.
///
/// # Errors
///
/// Returns x, cos and sin if there is no kernel for them.
pub fn rotary<B: Backend>(
    rotary: Rotary,
    x: Tensor<B, 4>,
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
) -> Result<Tensor<B, 4>, [Tensor<B, 4>; 3]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [x, cos, sin].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 3>(&rotary, inputs);
    result.map(of).map_err(|inputs| inputs.map(of))
}

#[cfg(feature = "cube")]
crate::op::no_kernel!(Rotary, 3, cube);

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::TensorMetadata as _;
    use burn_flex::{FlexTensor, Layout};
    use pulp::{Simd, WithSimd};

    use super::Rotary;
    use crate::flex::{
        Real, contiguous, each, real, rows_per_task, simd, slice, vector, with_real, zeros,
    };
    use crate::op::Op;

    /// The rows of x, in the order of memory.
    #[derive(Clone, Copy)]
    struct Rows {
        rotary: Rotary,
        heads: usize,
        time: usize,
        d: usize,
        /// n / 2, where n is the number of coordinates that turn.
        half: usize,
        /// Whether all sequences have the same angles.
        shared: bool,
        /// Whether the heads of a position are side by side, as before `split_heads`.
        swapped: bool,
    }

    impl Rows {
        /// Returns the place of the angles of row `i`.
        fn angles(&self, i: usize) -> std::ops::Range<usize> {
            let t = match self.swapped {
                true => i / self.heads % self.time,
                false => i % self.time,
            };
            let sequence = match self.shared {
                true => 0,
                false => i / (self.heads * self.time),
            };
            let at = (sequence * self.time + t) * self.half;
            at..at + self.half
        }
    }

    /// Turns the rows from `first`; with `back`, by minus the angles.
    struct Turn<'a, E> {
        rows: Rows,
        first: usize,
        back: bool,
        cos: &'a [E],
        sin: &'a [E],
        x: &'a [E],
        y: &'a mut [E],
    }

    impl<E: Real> WithSimd for Turn<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Rows {
                rotary, d, half, ..
            } = self.rows;
            let sign = if self.back { -E::one() } else { E::one() };
            let rows = self.x.chunks_exact(d).zip(self.y.chunks_exact_mut(d));
            for (i, (x, y)) in (self.first..).zip(rows) {
                let at = self.rows.angles(i);
                let angles = self.cos[at.clone()].iter().zip(&self.sin[at]);
                y[2 * half..].copy_from_slice(&x[2 * half..]);
                if rotary.neighbours {
                    let pairs = x.as_chunks::<2>().0.iter().zip(y.as_chunks_mut::<2>().0);
                    for ((&cos, &sin), (&[a, b], y)) in angles.zip(pairs) {
                        let sin = sign * sin;
                        *y = [a * cos - b * sin, b * cos + a * sin];
                    }
                } else {
                    let (a, b) = x[..2 * half].split_at(half);
                    let (y_a, y_b) = y[..2 * half].split_at_mut(half);
                    let (from, to) = (a.iter().zip(b), y_a.iter_mut().zip(y_b));
                    for ((&cos, &sin), ((&a, &b), (y_a, y_b))) in angles.zip(from.zip(to)) {
                        let sin = sign * sin;
                        (*y_a, *y_b) = (a * cos - b * sin, b * cos + a * sin);
                    }
                }
            }
        }
    }

    /// Makes the rows of `x` contiguous, in either order of heads and positions. The second value tells whether the
    /// heads of a position are side by side.
    fn ordered(x: FlexTensor) -> (FlexTensor, bool) {
        let [_, heads, time, d]: [usize; 4] = x.shape().dims();
        let strides = [heads * time * d, d, heads * d, 1].map(|s| s as isize);
        match x.layout().strides() == strides && x.layout().start_offset() == 0 {
            true => (x, true),
            false => (contiguous(x), false),
        }
    }

    fn turned<E: Real>(
        rotary: Rotary,
        x: FlexTensor,
        [cos, sin]: &[FlexTensor; 2],
        back: bool,
    ) -> FlexTensor {
        let [batch, heads, time, d]: [usize; 4] = x.shape().dims();
        let [sequences, _, _, half]: [usize; 4] = cos.shape().dims();
        let (x, swapped) = ordered(x);
        let rows = Rows {
            rotary,
            heads,
            time,
            d,
            half,
            shared: sequences == 1,
            swapped,
        };
        let (from, cos, sin) = (slice::<E>(&x), slice::<E>(cos), slice::<E>(sin));
        let mut y = zeros(batch * heads * time * d);
        let size = rows_per_task(d);
        let tasks = from.chunks(size * d).zip(y.chunks_mut(size * d));
        each(tasks.enumerate().collect(), from.len(), |(task, (x, y))| {
            simd(Turn {
                rows,
                first: task * size,
                back,
                cos,
                sin,
                x,
                y,
            });
        });
        let layout = Layout::new(x.shape(), x.layout().strides().to_vec(), 0);
        vector(y).with_layout(layout)
    }

    impl Op<Flex, 3> for Rotary {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 3]) -> bool {
            let [[batch, _, time, d], cos, sin]: [[usize; 4]; 3] =
                inputs.each_ref().map(|x| x.shape().dims());
            let [rows, one, positions, half] = cos;
            let fits = [1, batch].contains(&rows) && (one, positions) == (1, time);
            real(inputs) && fits && cos == sin && 2 * half <= d
        }

        fn forward(&self, [x, cos, sin]: [FlexTensor; 3]) -> (FlexTensor, [FlexTensor; 2]) {
            let angles = [cos, sin].map(contiguous);
            let y = with_real!(&angles[0], turned(*self, x, &angles, false));
            (y, angles)
        }

        fn backward(&self, angles: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 3] {
            let dx = with_real!(&angles[0], turned(*self, grad, &angles, true));
            let [cos, sin] = angles;
            [dx, cos, sin]
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::Tensor;

    use super::Rotary;
    use crate::op::Op;

    /// Turns x by the angles; with `back`, by minus the angles.
    fn turned(rotary: Rotary, x: &Tensor, [cos, sin]: &[TchTensor; 2], back: bool) -> TchTensor {
        let (cos, sin) = (&cos.tensor, &sin.tensor);
        let half = cos.size()[3];
        let part = |from, count| x.narrow(3, from, count);
        let (a, b) = match rotary.neighbours {
            true => {
                let pairs = part(0, 2 * half).unflatten(3, [half, 2]);
                (pairs.select(4, 0), pairs.select(4, 1))
            }
            false => (part(0, half), part(half, half)),
        };
        let (a_sin, b_sin) = (&a * sin, &b * sin);
        let (a, b) = match back {
            false => (a * cos - b_sin, b * cos + a_sin),
            true => (a * cos + b_sin, b * cos - a_sin),
        };
        let rest = part(2 * half, x.size()[3] - 2 * half);
        TchTensor::new(match rotary.neighbours {
            true => Tensor::cat(&[Tensor::stack(&[a, b], 4).flatten(3, 4), rest], 3),
            false => Tensor::cat(&[a, b, rest], 3),
        })
    }

    impl Op<LibTorch, 3> for Rotary {
        type Kept = [TchTensor; 2];

        fn takes(&self, _: &[TchTensor; 3]) -> bool {
            true
        }

        fn forward(&self, [x, cos, sin]: [TchTensor; 3]) -> (TchTensor, [TchTensor; 2]) {
            let angles = [cos, sin];
            (turned(*self, &x.tensor, &angles, false), angles)
        }

        fn backward(&self, angles: [TchTensor; 2], grad: TchTensor) -> [TchTensor; 3] {
            let dx = turned(*self, &grad.tensor, &angles, true);
            let [cos, sin] = angles;
            [dx, cos, sin]
        }
    }
}
