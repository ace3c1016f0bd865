//! Convolutions of small images with few channels.
//!
//! With the channels of a pixel side by side, what a row of the kernel reads is one run of numbers. So an image is padded
//! once, and nothing is copied into columns.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct Convolution {
    stride: usize,
}

/// The convolution of x `[batch, height, width, in]` with w `[out, in, kernel, kernel]`, whose kernel is odd and padded by
/// half of it: `[batch, ⌈height / stride⌉, ⌈width / stride⌉, out]`.
///
/// # Errors
///
/// Returns `x` and `w` if there is no kernel for them.
pub fn convolution<B: Backend>(
    stride: usize,
    x: Tensor<B, 4>,
    w: Tensor<B, 4>,
) -> Result<Tensor<B, 4>, [Tensor<B, 4>; 2]> {
    let inputs = [x, w].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 2>(&Convolution { stride }, inputs);
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    result.map(of).map_err(|inputs| inputs.map(of))
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::{DType, TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::Convolution;
    use crate::flex::{add_up, contiguous, each, simd, slice, zeros};
    use crate::op::Op;

    /// Positions, or inputs of a kernel, whose sums are in registers.
    const TILE: usize = 8;

    /// Every SIMD width divides it.
    const LANES: usize = 16;

    /// The most channels. With more, a product of matrices is faster.
    const CHANNELS: usize = 128;

    /// Images whose gradients of w are summed by one task. The sums do not depend on the number of threads.
    const GROUP: usize = 4;

    /// The sizes of a convolution: x `[batch, height, width, input]`, w `[output, input, kernel, kernel]`.
    #[derive(Clone, Copy, Debug)]
    pub struct Sizes {
        batch: usize,
        height: usize,
        width: usize,
        input: usize,
        output: usize,
        kernel: usize,
        stride: usize,
    }

    impl Sizes {
        fn of([x, w]: [&FlexTensor; 2], stride: usize) -> Self {
            let [batch, height, width, input]: [usize; 4] = x.shape().dims();
            let [output, _, kernel, _]: [usize; 4] = w.shape().dims();
            Self {
                batch,
                height,
                width,
                input,
                output,
                kernel,
                stride,
            }
        }

        /// Height and width of y.
        fn outer(&self) -> [usize; 2] {
            [self.height, self.width].map(|side| side.div_ceil(self.stride))
        }

        /// Numbers of an image of y.
        fn of_y(&self) -> usize {
            let [height, width] = self.outer();
            height * width * self.output
        }

        /// Numbers of an image of x.
        fn of_x(&self) -> usize {
            self.height * self.width * self.input
        }

        /// The convolution that has the gradient of x as its result: of the gradient of y with zeros between its pixels.
        fn backward(&self) -> Self {
            Self {
                input: self.output,
                output: self.input,
                stride: 1,
                ..*self
            }
        }

        /// The pixels of `image` `[…, width, input]`, each `apart` pixels from the next, with zeros around and between them.
        fn padded(&self, image: &[f32], width: usize, apart: usize) -> Vec<f32> {
            let (padding, c) = (self.kernel / 2, self.input);
            let across = self.across();
            let mut padded = vec![0.0; (self.height + 2 * padding) * across];
            for (y, row) in image.chunks_exact(width * c).enumerate() {
                let to = &mut padded[(padding + y * apart) * across + padding * c..];
                match apart {
                    1 => to[..row.len()].copy_from_slice(row),
                    _ => {
                        for (x, pixel) in row.chunks_exact(c).enumerate() {
                            to[x * apart * c..][..c].copy_from_slice(pixel);
                        }
                    }
                }
            }
            padded
        }

        /// Numbers of a row of a padded image.
        fn across(&self) -> usize {
            (self.width + self.kernel / 2 * 2) * self.input
        }

        /// w as `[kernel, kernel · input, output]`, with outputs padded to whole [`LANES`].
        fn packed(&self, w: impl Fn([usize; 4]) -> f32) -> Vec<f32> {
            let (k, padded) = (self.kernel, self.output.next_multiple_of(LANES));
            let mut packed = vec![0.0; k * k * self.input * padded];
            for (at, outputs) in packed.chunks_exact_mut(padded).enumerate() {
                let (i, at) = (at % self.input, at / self.input);
                for (o, to) in outputs[..self.output].iter_mut().enumerate() {
                    *to = w([o, i, at / k, at % k]);
                }
            }
            packed
        }
    }

    /// y = conv(image) for one padded image and packed w, a few pixels at a time.
    struct Convolve<'a> {
        sizes: Sizes,
        image: &'a [f32],
        w: &'a [f32],
        y: &'a mut [f32],
    }

    impl WithSimd for Convolve<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self { sizes, image, w, y } = self;
            let (w, _) = S::as_simd_f32s(w);
            let (run, across) = (sizes.kernel * sizes.input, sizes.across());
            let columns = w.len() / (sizes.kernel * run);
            let used = sizes.output.div_ceil(S::F32_LANES);
            let step = sizes.stride * sizes.input;
            let [height, width] = sizes.outer();
            for row in 0..height {
                for start in (0..width).step_by(TILE) {
                    let count = TILE.min(width - start);
                    // From right to left and from pixel to pixel: a vector that reaches beyond its pixel is overwritten
                    // by the ones after it.
                    for column in (0..used).rev() {
                        let mut sums = [simd.splat_f32s(0.0); TILE];
                        for k in 0..sizes.kernel {
                            let from = &image[(row * sizes.stride + k) * across..];
                            let mut runs: [&[f32]; TILE] = [&[]; TILE];
                            for r in 0..TILE {
                                // A missing pixel of the last tile is its last one again.
                                runs[r] = &from[(start + r.min(count - 1)) * step..][..run];
                            }
                            let w = &w[k * run * columns..][..run * columns];
                            for i in 0..run {
                                let w = w[i * columns + column];
                                for r in 0..TILE {
                                    let x = simd.splat_f32s(runs[r][i]);
                                    sums[r] = simd.mul_add_f32s(x, w, sums[r]);
                                }
                            }
                        }
                        for r in 0..count {
                            let pixel = row * width + start + r;
                            let y = &mut y[pixel * sizes.output + column * S::F32_LANES..];
                            match S::as_mut_simd_f32s(y).0.first_mut() {
                                Some(y) => *y = sums[r],
                                None => simd.partial_store_f32s(y, sums[r]),
                            }
                        }
                    }
                }
            }
        }
    }

    /// dw += the sum over the pixels of y of what w reads there times dy, for one padded image. dw is packed.
    struct OfWeight<'a> {
        sizes: Sizes,
        image: &'a [f32],
        dy: &'a [f32],
        dw: &'a mut [f32],
    }

    impl WithSimd for OfWeight<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self {
                sizes,
                image,
                dy,
                dw,
            } = self;
            let (dw, _) = S::as_mut_simd_f32s(dw);
            let (run, across) = (sizes.kernel * sizes.input, sizes.across());
            let columns = dw.len() / (sizes.kernel * run);
            let used = sizes.output.div_ceil(S::F32_LANES);
            let step = sizes.stride * sizes.input;
            let [height, width] = sizes.outer();
            for k in 0..sizes.kernel {
                for i in (0..run).step_by(TILE) {
                    let count = TILE.min(run - i);
                    for column in 0..used {
                        let mut sums = [simd.splat_f32s(0.0); TILE];
                        for row in 0..height {
                            let from = &image[(row * sizes.stride + k) * across..][..across];
                            for pixel in 0..width {
                                let at = (row * width + pixel) * sizes.output;
                                let dy = &dy[at + column * S::F32_LANES..];
                                // What a vector has from the next pixel goes into the padding of dw.
                                let dy = match S::as_simd_f32s(dy).0.first() {
                                    Some(&dy) => dy,
                                    None => simd.partial_load_f32s(dy),
                                };
                                let x = &from[pixel * step + i..];
                                if let Some(x) = x.first_chunk::<TILE>() {
                                    for r in 0..TILE {
                                        let x = simd.splat_f32s(x[r]);
                                        sums[r] = simd.mul_add_f32s(x, dy, sums[r]);
                                    }
                                } else {
                                    for (sum, &x) in sums.iter_mut().zip(x) {
                                        *sum = simd.mul_add_f32s(simd.splat_f32s(x), dy, *sum);
                                    }
                                }
                            }
                        }
                        for r in 0..count {
                            let sum = &mut dw[(k * run + i + r) * columns + column];
                            *sum = simd.add_f32s(*sum, sums[r]);
                        }
                    }
                }
            }
        }
    }

    impl Op<Flex, 2> for Convolution {
        type Kept = [FlexTensor; 2];

        fn takes(&self, [x, w]: &[FlexTensor; 2]) -> bool {
            let [_, _, width, input]: [usize; 4] = x.shape().dims();
            let [output, of_w, height, kernel]: [usize; 4] = w.shape().dims();
            let fits = input == of_w && height == kernel && kernel % 2 == 1 && width > 0;
            let is_small = [input, output]
                .iter()
                .all(|side| (1..=CHANNELS).contains(side));
            [x, w].iter().all(|x| x.dtype() == DType::F32) && fits && is_small
        }

        fn forward(&self, [x, w]: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            let (x, w) = (contiguous(x), contiguous(w));
            let sizes = Sizes::of([&x, &w], self.stride);
            let (k, weights) = (sizes.kernel, slice::<f32>(&w));
            let packed = sizes.packed(|[o, i, row, column]| {
                weights[((o * sizes.input + i) * k + row) * k + column]
            });
            let mut y = zeros(sizes.batch * sizes.of_y());
            let images = slice::<f32>(&x).chunks_exact(sizes.of_x());
            let tasks = images.zip(y.chunks_exact_mut(sizes.of_y())).collect();
            each(tasks, sizes.batch * sizes.of_x(), |(image, y)| {
                let image = &sizes.padded(image, sizes.width, 1);
                let w = &packed;
                simd(Convolve { sizes, image, w, y });
            });
            let [height, width] = sizes.outer();
            let shape = [sizes.batch, height, width, sizes.output];
            (FlexTensor::from_data(TensorData::new(y, shape)), [x, w])
        }

        fn backward(&self, [x, w]: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 2] {
            let grad = contiguous(grad);
            let sizes = Sizes::of([&x, &w], self.stride);
            let (back, [_, width]) = (sizes.backward(), sizes.outer());
            let (k, weights) = (sizes.kernel, slice::<f32>(&w));
            // Turned around, and from outputs to inputs.
            let turned = back.packed(|[i, o, row, column]| {
                weights[((o * sizes.input + i) * k + k - 1 - row) * k + k - 1 - column]
            });
            let mut dx = zeros(sizes.batch * sizes.of_x());
            let padded = sizes.output.next_multiple_of(LANES);
            let len = k * k * sizes.input * padded;
            let images = slice::<f32>(&x).chunks(GROUP * sizes.of_x());
            let of_y = slice::<f32>(&grad).chunks(GROUP * sizes.of_y());
            let of_x = dx.chunks_mut(GROUP * sizes.of_x());
            let tasks = images.zip(of_y).zip(of_x).collect();
            let parts = each(tasks, sizes.batch * sizes.of_x(), |((images, dy), dx)| {
                let mut dw = vec![0.0; len];
                let images = images.chunks_exact(sizes.of_x());
                let dy = dy.chunks_exact(sizes.of_y());
                let dx = dx.chunks_exact_mut(sizes.of_x());
                for ((image, dy), dx) in images.zip(dy).zip(dx) {
                    simd(OfWeight {
                        sizes,
                        image: &sizes.padded(image, sizes.width, 1),
                        dy,
                        dw: &mut dw,
                    });
                    simd(Convolve {
                        sizes: back,
                        image: &back.padded(dy, width, self.stride),
                        w: &turned,
                        y: dx,
                    });
                }
                dw
            });
            let packed = add_up(parts, len);
            let mut dw = vec![0.0; weights.len()];
            for (at, outputs) in packed.chunks_exact(padded).enumerate() {
                let (i, at) = (at % sizes.input, at / sizes.input);
                for (o, from) in outputs[..sizes.output].iter().enumerate() {
                    dw[(o * sizes.input + i) * k * k + at] = *from;
                }
            }
            [
                FlexTensor::from_data(TensorData::new(dx, x.shape())),
                FlexTensor::from_data(TensorData::new(dw, w.shape())),
            ]
        }
    }
}

#[cfg(feature = "tch")]
crate::op::no_kernel!(Convolution, 2, burn::backend::LibTorch, burn_tch::TchTensor);
