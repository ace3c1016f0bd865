//! Convolutions of images whose channels are the last axis; on Flex, with few channels.
//!
//! With the channels of a pixel side by side, a row of w at one pixel reads one contiguous run of numbers. On Flex,
//! each image is therefore padded once, and needs no im2col copy.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct Convolution {
    stride: usize,
}

/// Convolves x `[batch, height, width, in]` with w `[out, in, kernel, kernel]`. The kernel size is odd, and x has a
/// zero padding of (kernel − 1) / 2 pixels on each side. Returns `[batch, ⌈height / stride⌉, ⌈width / stride⌉, out]`.
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

#[cfg(feature = "cube")]
crate::op::no_kernel!(Convolution, 2, cube);

#[cfg(feature = "flex")]
mod flex {
    use std::borrow::Cow;

    use burn::backend::Flex;
    use burn::tensor::{DType, TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::Convolution;
    use crate::flex::{add_up, contiguous, each, simd, slice, zeros};
    use crate::op::Op;

    /// Number of outputs whose sums are in registers at a time. It is a multiple of every SIMD width.
    const LANES: usize = 16;

    /// Number of pixels, or of inputs of a kernel, whose sums are in registers. With two vectors of 8 outputs each,
    /// sums take 12 of AVX2's 16 registers.
    const TILE: usize = 6;

    /// Maximum number of channels. Burn computes convolutions with more channels.
    const CHANNELS: usize = 128;

    /// Number of images for which one task sums the gradients of w. A fixed number makes sums independent of the number
    /// of threads.
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

        /// Returns the height and width of y.
        fn outer(&self) -> [usize; 2] {
            [self.height, self.width].map(|side| side.div_ceil(self.stride))
        }

        /// Returns the number of elements of an image of y.
        fn of_y(&self) -> usize {
            let [height, width] = self.outer();
            height * width * self.output
        }

        /// Returns the number of elements of an image of x.
        fn of_x(&self) -> usize {
            self.height * self.width * self.input
        }

        /// Returns the convolution that computes the gradient of x, from the gradient of y with zeros between its
        /// pixels.
        fn backward(&self) -> Self {
            Self {
                input: self.output,
                output: self.input,
                stride: 1,
                ..*self
            }
        }

        /// Copies the pixels of `image` `[…, width, input]`, `apart` pixels from each other, with zeros around and
        /// between them.
        fn padded(&self, image: &[f32], width: usize, apart: usize) -> Vec<f32> {
            let (padding, c) = (self.kernel / 2, self.input);
            let across = self.across();
            // The last tile can extend beyond the image.
            let mut padded = vec![0.0; (self.height + 2 * padding) * across + TILE];
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

        /// Returns the pixels of `y`, with outputs padded to whole [`LANES`].
        fn whole_lanes<'a>(&self, y: &'a [f32]) -> Cow<'a, [f32]> {
            let padded = self.output.next_multiple_of(LANES);
            if padded == self.output {
                return y.into();
            }
            let mut whole = vec![0.0; y.len() / self.output * padded];
            for (to, pixel) in whole
                .chunks_exact_mut(padded)
                .zip(y.chunks_exact(self.output))
            {
                to[..self.output].copy_from_slice(pixel);
            }
            whole.into()
        }

        /// Returns the number of elements of a row of a padded image.
        fn across(&self) -> usize {
            (self.width + self.kernel / 2 * 2) * self.input
        }

        /// Packs w as `[⌈output / LANES⌉, kernel, kernel · input, LANES]`, with zeros for missing outputs.
        fn packed(&self, w: impl Fn([usize; 4]) -> f32) -> Vec<f32> {
            let mut packed = vec![0.0; self.of_packed()];
            for (at, outputs) in packed.chunks_exact_mut(LANES).enumerate() {
                for (lane, to) in outputs.iter_mut().enumerate() {
                    let place = self.place(at, lane);
                    if place[0] < self.output {
                        *to = w(place);
                    }
                }
            }
            packed
        }

        /// Returns the number of elements of a packed w.
        fn of_packed(&self) -> usize {
            self.kernel * self.kernel * self.input * self.output.next_multiple_of(LANES)
        }

        /// Returns the output, input, row and column of a lane of the packed w.
        fn place(&self, at: usize, lane: usize) -> [usize; 4] {
            let (i, at) = (at % self.input, at / self.input);
            let (column, at) = (at % self.kernel, at / self.kernel);
            let (row, group) = (at % self.kernel, at / self.kernel);
            [group * LANES + lane, i, row, column]
        }
    }

    /// Sums of a tile, in vectors of outputs.
    type Sums<S, const V: usize> = [[<S as Simd>::f32s; V]; TILE];

    /// Calls a method that is generic over the number of vectors in [`LANES`].
    macro_rules! by_vectors {
        ($S:ty, $kernel:ident.$method:ident($simd:ident)) => {
            match <$S>::F32_LANES {
                16 => $kernel.$method::<$S, 1>($simd),
                8 => $kernel.$method::<$S, 2>($simd),
                4 => $kernel.$method::<$S, 4>($simd),
                _ => $kernel.$method::<$S, 16>($simd),
            }
        };
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
            by_vectors!(S, self.all(simd));
        }
    }

    impl Convolve<'_> {
        #[inline(always)]
        fn all<S: Simd, const V: usize>(self, simd: S) {
            let Self { sizes, image, w, y } = self;
            let (w, _) = S::as_simd_f32s(w);
            let (w, _) = w.as_chunks::<V>();
            let (run, across) = (sizes.kernel * sizes.input, sizes.across());
            let groups = w.len() / (sizes.kernel * run);
            let step = sizes.stride * sizes.input;
            let [height, width] = sizes.outer();
            for row in 0..height {
                for start in (0..width).step_by(TILE) {
                    let count = TILE.min(width - start);
                    // A vector can write beyond its pixel. Groups of outputs go from last to first, and pixels go from
                    // first to last within a group, so that later vectors overwrite these elements.
                    for group in (0..groups).rev() {
                        let mut sums: Sums<S, V> = [[simd.splat_f32s(0.0); V]; TILE];
                        for k in 0..sizes.kernel {
                            let from = &image[(row * sizes.stride + k) * across..];
                            let mut runs: [&[f32]; TILE] = [&[]; TILE];
                            for r in 0..TILE {
                                // A missing pixel of the last tile repeats the last pixel.
                                runs[r] = &from[(start + r.min(count - 1)) * step..][..run];
                            }
                            let w = &w[(group * sizes.kernel + k) * run..][..run];
                            add_products::<S, V>(simd, runs, w, &mut sums);
                        }
                        for (r, sums) in sums.iter().take(count).enumerate() {
                            let pixel = (row * width + start + r) * sizes.output;
                            for (v, sum) in sums.iter().enumerate() {
                                let output = group * LANES + v * S::F32_LANES;
                                if output >= sizes.output {
                                    break;
                                }
                                let y = &mut y[pixel + output..];
                                match S::as_mut_simd_f32s(y).0.first_mut() {
                                    Some(y) => *y = *sum,
                                    None => simd.partial_store_f32s(y, *sum),
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Adds the product of each run with w to its sums.
    #[inline(always)]
    fn add_products<S: Simd, const V: usize>(
        simd: S,
        runs: [&[f32]; TILE],
        w: &[[S::f32s; V]],
        sums: &mut Sums<S, V>,
    ) {
        // Loops instead of `map`, because closures would not be compiled for the SIMD level of this processor.
        let mut x = [0.0; TILE];
        let (w_fours, w_rest) = w.as_chunks::<4>();
        // Four at a time, for fewer bounds checks.
        for (i, w) in w_fours.iter().enumerate() {
            let mut fours = [&[0.0; 4]; TILE];
            for r in 0..TILE {
                fours[r] = &runs[r].as_chunks::<4>().0[i];
            }
            for j in 0..4 {
                for r in 0..TILE {
                    x[r] = fours[r][j];
                }
                add(simd, &x, &w[j], sums);
            }
        }
        let start = w.len() - w_rest.len();
        for (i, w) in w_rest.iter().enumerate() {
            for r in 0..TILE {
                x[r] = runs[r][start + i];
            }
            add(simd, &x, w, sums);
        }
    }

    /// Adds x wᵀ to the sums.
    #[inline(always)]
    fn add<S: Simd, const V: usize>(
        simd: S,
        x: &[f32; TILE],
        w: &[S::f32s; V],
        sums: &mut Sums<S, V>,
    ) {
        for r in 0..TILE {
            let x = simd.splat_f32s(x[r]);
            for v in 0..V {
                sums[r][v] = simd.mul_add_f32s(x, w[v], sums[r][v]);
            }
        }
    }

    /// Computes the gradient of w for one padded image. For each pixel of y, adds to dw the products of dy and the
    /// inputs that w reads there. dw is packed, and the outputs of dy are padded to whole [`LANES`].
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
            by_vectors!(S, self.all(simd));
        }
    }

    impl OfWeight<'_> {
        #[inline(always)]
        fn all<S: Simd, const V: usize>(self, simd: S) {
            let Self {
                sizes,
                image,
                dy,
                dw,
            } = self;
            let (dw, _) = S::as_mut_simd_f32s(dw);
            let (dw, _) = dw.as_chunks_mut::<V>();
            let (dy, _) = S::as_simd_f32s(dy);
            let (dy, _) = dy.as_chunks::<V>();
            let (run, across) = (sizes.kernel * sizes.input, sizes.across());
            let groups = dw.len() / (sizes.kernel * run);
            let step = sizes.stride * sizes.input;
            let [height, width] = sizes.outer();
            for group in 0..groups {
                for k in 0..sizes.kernel {
                    for i in (0..run).step_by(TILE) {
                        let mut sums: Sums<S, V> = [[simd.splat_f32s(0.0); V]; TILE];
                        for row in 0..height {
                            let from = &image[(row * sizes.stride + k) * across + i..];
                            let dy = &dy[row * width * groups..][..width * groups];
                            for (pixel, dy) in dy.chunks_exact(groups).enumerate() {
                                // Numbers beyond the run are not used.
                                let Some(x) = from[pixel * step..].first_chunk::<TILE>() else {
                                    break;
                                };
                                add(simd, x, &dy[group], &mut sums);
                            }
                        }
                        let dw = &mut dw[(group * sizes.kernel + k) * run + i..];
                        for (dw, sums) in dw.iter_mut().zip(sums).take(run - i) {
                            for v in 0..V {
                                dw[v] = simd.add_f32s(dw[v], sums[v]);
                            }
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
            // The kernel is rotated by 180°, and maps outputs to inputs.
            let turned = back.packed(|[i, o, row, column]| {
                weights[((o * sizes.input + i) * k + k - 1 - row) * k + k - 1 - column]
            });
            let mut dx = zeros(sizes.batch * sizes.of_x());
            let len = sizes.of_packed();
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
                        dy: &sizes.whole_lanes(dy),
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
            for (at, outputs) in packed.chunks_exact(LANES).enumerate() {
                for (lane, from) in outputs.iter().enumerate() {
                    let [o, i, row, column] = sizes.place(at, lane);
                    if o < sizes.output {
                        dw[((o * sizes.input + i) * k + row) * k + column] = *from;
                    }
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
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::Tensor;

    use super::Convolution;
    use crate::graph::Graph;
    use crate::op::Op;

    impl Op<LibTorch, 2> for Convolution {
        type Kept = Graph<2>;

        /// Takes kernels of more than one pixel. A kernel of one pixel is a product. For strided kernels of one pixel
        /// with few channels, PyTorch's gradient writes out of bounds on CPUs
        /// (<https://github.com/uxlfoundation/oneDNN/issues/6035>).
        fn takes(&self, [_, w]: &[TchTensor; 2]) -> bool {
            w.tensor.size()[3] > 1
        }

        fn forward(&self, inputs: [TchTensor; 2]) -> (TchTensor, Graph<2>) {
            let none: Option<&Tensor> = None;
            Graph::of(inputs, |[x, w]| {
                let (stride, padding) = (self.stride as i64, w.size()[3] / 2);
                // Axes in PyTorch's order. In memory, the channels of a pixel stay side by side.
                let y = x.permute([0, 3, 1, 2]).conv2d(
                    w,
                    none,
                    [stride, stride],
                    [padding, padding],
                    [1, 1],
                    1,
                );
                y.permute([0, 2, 3, 1])
            })
        }

        fn backward(&self, kept: Graph<2>, grad: TchTensor) -> [TchTensor; 2] {
            kept.backward(&grad)
        }
    }
}
