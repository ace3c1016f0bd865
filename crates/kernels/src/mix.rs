//! Weighted sums of the parallel streams at each position, for hyper-connections: out_t = Σ_s a[s, t] h_s. Dot products
//! of the streams at each position: a[s, t] = ⟨h_s, g_t⟩.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix;

/// Computes Aᵀ H for each position: `a` `[batch, time, n, m]`, or `[1, 1, n, m]` for all positions, and `h`
/// `[batch, time, n, d]` to `[batch, time, m, d]`.
///
/// # Errors
///
/// Returns `a` and `h` if there is no kernel for them.
pub fn mix<B: Backend>(
    a: Tensor<B, 4>,
    h: Tensor<B, 4>,
) -> Result<Tensor<B, 4>, [Tensor<B, 4>; 2]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [a, h].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 2>(&Mix, inputs);
    result.map(of).map_err(|inputs| inputs.map(of))
}

/// Computes Aᵀ H + Bᵀ Y for each position, with A and B as in [`mix`]: `h` `[batch, time, n, d]` and `y`
/// `[batch, time, k, d]` to `[batch, time, m, d]`.
///
/// # Errors
///
/// Returns `a`, `h`, `b` and `y` if there is no kernel for them. Only Flex has a kernel, which reads the gradient of
/// the result once; the other backends add two mixtures.
pub fn mix_both<B: Backend>(inputs: [Tensor<B, 4>; 4]) -> Result<Tensor<B, 4>, [Tensor<B, 4>; 4]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let result = apply::<B, _, 4>(&Mix, inputs.map(|x| x.into_primitive().tensor()));
    result.map(of).map_err(|inputs| inputs.map(of))
}

/// The operation of [`dots`].
#[derive(Clone, Copy, Debug)]
struct Dots;

/// Computes H Gᵀ for each position: `h` `[batch, time, n, d]` and `g` `[batch, time, m, d]` to `[batch, time, n, m]`.
///
/// # Errors
///
/// Returns `h` and `g` if there is no kernel for them.
pub fn dots<B: Backend>(
    h: Tensor<B, 4>,
    g: Tensor<B, 4>,
) -> Result<Tensor<B, 4>, [Tensor<B, 4>; 2]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [h, g].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 2>(&Dots, inputs);
    result.map(of).map_err(|inputs| inputs.map(of))
}

#[cfg(feature = "cube")]
crate::op::no_kernel!(Dots, 2, cube);
#[cfg(feature = "cube")]
crate::op::no_kernel!(Mix, 4, cube);
#[cfg(feature = "tch")]
crate::op::no_kernel!(Dots, 2, burn::backend::LibTorch, burn_tch::TchTensor);
#[cfg(feature = "tch")]
crate::op::no_kernel!(Mix, 4, burn::backend::LibTorch, burn_tch::TchTensor);

#[cfg(feature = "flex")]
pub(crate) mod flex {
    use burn::backend::Flex;
    use burn::tensor::{TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::{Dots, Mix};
    use crate::flex::{
        Real, add_up, contiguous, each, real, rows_per_task, simd, slice, tensor_like, with_real,
        zeros,
    };
    use crate::op::Op;

    /// The sizes of a call.
    #[derive(Clone, Copy)]
    struct Sizes {
        positions: usize,
        /// Whether all positions have the same weights.
        shared: bool,
        n: usize,
        m: usize,
        d: usize,
    }

    impl Sizes {
        fn of(a: &FlexTensor, h: &FlexTensor) -> Self {
            let [batch, time, n, d]: [usize; 4] = h.shape().dims();
            let [rows, columns, _, m]: [usize; 4] = a.shape().dims();
            Self {
                positions: batch * time,
                shared: rows * columns == 1 && batch * time != 1,
                n,
                m,
                d,
            }
        }

        /// Returns the weights of position `p`.
        fn weights<'a, E>(&self, a: &'a [E], p: usize) -> &'a [E] {
            let size = self.n * self.m;
            let p = if self.shared { 0 } else { p };
            &a[p * size..(p + 1) * size]
        }
    }

    /// y ← y + a x.
    #[inline(always)]
    pub(crate) fn add_scaled<E: Real>(y: &mut [E], a: E, x: &[E]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = *y + a * x;
        }
    }

    /// out_t += Σ_s a[s, t] h_s for positions from `first`. With `transposed`, out_s += Σ_t a[s, t] h_t.
    struct Sum<'a, E> {
        sizes: Sizes,
        first: usize,
        transposed: bool,
        a: &'a [E],
        h: &'a [E],
        out: &'a mut [E],
    }

    impl<E: Real> WithSimd for Sum<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Sizes { n, m, d, .. } = self.sizes;
            let (from, to) = if self.transposed { (m, n) } else { (n, m) };
            let positions = self.h.chunks_exact(from * d);
            let positions = positions.zip(self.out.chunks_exact_mut(to * d));
            for (p, (h, out)) in positions.enumerate() {
                let a = self.sizes.weights(self.a, self.first + p);
                // With one feature, the longest inner loop is over a row of A.
                match (d, self.transposed) {
                    (1, false) => {
                        for (&h, a) in h.iter().zip(a.chunks_exact(m)) {
                            add_scaled(out, h, a);
                        }
                    }
                    (1, true) => {
                        for (out, a) in out.iter_mut().zip(a.chunks_exact(m)) {
                            *out = *out + E::dot(simd, a, h);
                        }
                    }
                    _ => {
                        for (j, out) in out.chunks_exact_mut(d).enumerate() {
                            for (i, h) in h.chunks_exact(d).enumerate() {
                                let at = if self.transposed {
                                    j * m + i
                                } else {
                                    i * m + j
                                };
                                add_scaled(out, a[at], h);
                            }
                        }
                    }
                }
            }
        }
    }

    /// a[s, t] += ⟨h_s, g_t⟩.
    struct Products<'a, E> {
        sizes: Sizes,
        h: &'a [E],
        g: &'a [E],
        a: &'a mut [E],
    }

    impl<E: Real> WithSimd for Products<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Sizes {
                shared, n, m, d, ..
            } = self.sizes;
            let positions = self.h.chunks_exact(n * d);
            let positions = positions.zip(self.g.chunks_exact(m * d));
            for (p, (h, g)) in positions.enumerate() {
                let from = if shared { 0 } else { p * n * m };
                if d == 1 {
                    let a = self.a[from..from + n * m].chunks_exact_mut(m);
                    for (&h, a) in h.iter().zip(a) {
                        add_scaled(a, h, g);
                    }
                    continue;
                }
                for (s, h) in h.chunks_exact(d).enumerate() {
                    for (t, g) in g.chunks_exact(d).enumerate() {
                        let a = &mut self.a[from + s * m + t];
                        *a = *a + E::dot(simd, h, g);
                    }
                }
            }
        }
    }

    fn sum<E: Real>(sizes: Sizes, transposed: bool, a: &FlexTensor, h: &FlexTensor) -> Vec<E> {
        let Sizes {
            positions, n, m, d, ..
        } = sizes;
        let (from, to) = if transposed { (m, n) } else { (n, m) };
        let (a, h) = (slice::<E>(a), slice::<E>(h));
        let mut out = zeros(positions * to * d);
        let rows = rows_per_task(from.max(to) * d);
        let tasks = h
            .chunks(rows * from * d)
            .zip(out.chunks_mut(rows * to * d))
            .enumerate();
        each(tasks.collect(), h.len(), |(task, (h, out))| {
            simd(Sum {
                sizes,
                first: task * rows,
                transposed,
                a,
                h,
                out,
            });
        });
        out
    }

    fn forward<E: Real>(a: &FlexTensor, h: &FlexTensor) -> FlexTensor {
        let sizes = Sizes::of(a, h);
        let [batch, time, ..]: [usize; 4] = h.shape().dims();
        let out = sum::<E>(sizes, false, a, h);
        FlexTensor::from_data(TensorData::new(out, [batch, time, sizes.m, sizes.d]))
    }

    fn backward<E: Real>([a, h]: &[FlexTensor; 2], grad: &FlexTensor) -> [FlexTensor; 2] {
        let sizes = Sizes::of(a, h);
        let da = products::<E>(sizes, h, grad);
        let dh = sum::<E>(sizes, true, a, grad);
        [
            FlexTensor::from_data(TensorData::new(da, a.shape())),
            FlexTensor::from_data(TensorData::new(dh, h.shape())),
        ]
    }

    /// Computes Aᵀ H + Bᵀ Y.
    fn forward_both<E: Real>([a, h, b, y]: &[FlexTensor; 4]) -> FlexTensor {
        let both = [Sizes::of(a, h), Sizes::of(b, y)];
        let Sizes {
            positions, m, d, ..
        } = both[0];
        let [batch, time, ..]: [usize; 4] = h.shape().dims();
        let weights = [a, b].map(slice::<E>);
        let streams = [h, y].map(slice::<E>);
        let mut out = zeros(positions * m * d);
        let rows = rows_of_both(both);
        let tasks = out.chunks_mut(rows * m * d).enumerate();
        each(tasks.collect(), streams[0].len(), |(task, out)| {
            let count = out.len() / (m * d);
            for (i, sizes) in both.into_iter().enumerate() {
                let row = sizes.n * d;
                simd(Sum {
                    sizes,
                    first: task * rows,
                    transposed: false,
                    a: weights[i],
                    h: &streams[i][task * rows * row..][..count * row],
                    out: &mut *out,
                });
            }
        });
        FlexTensor::from_data(TensorData::new(out, [batch, time, m, d]))
    }

    /// Returns the gradients of A, H, B and Y.
    fn backward_both<E: Real>(
        [a, h, b, y]: &[FlexTensor; 4],
        grad: &FlexTensor,
    ) -> [FlexTensor; 4] {
        let both = [Sizes::of(a, h), Sizes::of(b, y)];
        let Sizes { m, d, .. } = both[0];
        let weights = [a, b].map(slice::<E>);
        let (h_all, y_all, grad) = (slice::<E>(h), slice::<E>(y), slice::<E>(grad));
        let [mut dh, mut dy] = [h_all.len(), y_all.len()].map(zeros::<E>);
        let rows = rows_of_both(both);
        let [of_h, of_y] = both.map(|sizes| rows * sizes.n * d);
        let of_h = dh.chunks_mut(of_h).zip(h_all.chunks(of_h));
        let of_y = dy.chunks_mut(of_y).zip(y_all.chunks(of_y));
        let tasks = of_h.zip(of_y).zip(grad.chunks(rows * m * d)).enumerate();
        let parts = each(tasks.collect(), h_all.len(), |(task, ((of_h, of_y), g))| {
            let mut weight_grads = [vec![], vec![]];
            for (i, (dx, x)) in [of_h, of_y].into_iter().enumerate() {
                let sizes = both[i];
                let count = if sizes.shared { 1 } else { g.len() / (m * d) };
                let mut part = vec![E::zero(); count * sizes.n * m];
                let a = &mut part;
                simd(Products { sizes, h: x, g, a });
                weight_grads[i] = part;
                simd(Sum {
                    sizes,
                    first: task * rows,
                    transposed: true,
                    a: weights[i],
                    h: g,
                    out: dx,
                });
            }
            weight_grads
        });
        let (of_a, of_b): (Vec<_>, Vec<_>) = parts.into_iter().map(|[a, b]| (a, b)).unzip();
        let whole = |parts: Vec<Vec<E>>, sizes: Sizes| match sizes.shared {
            true => add_up(parts, sizes.n * m),
            false => parts.concat(),
        };
        [
            tensor_like(whole(of_a, both[0]), a),
            tensor_like(dh, h),
            tensor_like(whole(of_b, both[1]), b),
            tensor_like(dy, y),
        ]
    }

    /// Returns the number of positions per task.
    fn rows_of_both([one, two]: [Sizes; 2]) -> usize {
        rows_per_task(one.n.max(two.n).max(one.m) * one.d)
    }

    /// Returns a[s, t] = ⟨h_s, g_t⟩ for each position, or its sum over all positions if they have the same weights.
    fn products<E: Real>(sizes: Sizes, h: &FlexTensor, g: &FlexTensor) -> Vec<E> {
        let Sizes {
            shared, n, m, d, ..
        } = sizes;
        let (h, g) = (slice::<E>(h), slice::<E>(g));
        let rows = rows_per_task(n.max(m) * d);
        let tasks = h.chunks(rows * n * d).zip(g.chunks(rows * m * d));
        let parts = each(tasks.collect(), h.len(), |(h, g): (&[E], &[E])| {
            let weights = if shared { n * m } else { h.len() / d * m };
            let mut part = vec![E::zero(); weights];
            let a = &mut part;
            simd(Products { sizes, h, g, a });
            part
        });
        match shared {
            true => add_up(parts, n * m),
            false => parts.concat(),
        }
    }

    fn dots<E: Real>(
        sizes: Sizes,
        shape: [usize; 4],
        h: &FlexTensor,
        g: &FlexTensor,
    ) -> FlexTensor {
        FlexTensor::from_data(TensorData::new(products::<E>(sizes, h, g), shape))
    }

    /// dh_s = Σ_t da[s, t] g_t, and dg_t = Σ_s da[s, t] h_s.
    fn grads_of_dots<E: Real>(da: &FlexTensor, h: &FlexTensor, g: &FlexTensor) -> [FlexTensor; 2] {
        let sizes = Sizes::of(da, h);
        let dh = sum::<E>(sizes, true, da, g);
        let dg = sum::<E>(sizes, false, da, h);
        [
            FlexTensor::from_data(TensorData::new(dh, h.shape())),
            FlexTensor::from_data(TensorData::new(dg, g.shape())),
        ]
    }

    impl Op<Flex, 2> for Dots {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 2]) -> bool {
            let [h, g]: [[usize; 4]; 2] = inputs.each_ref().map(|x| x.shape().dims());
            let is_alike = (h[0], h[1], h[3]) == (g[0], g[1], g[3]);
            real(inputs) && is_alike && h[2] * g[2] * h[3] > 0
        }

        fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            let [h, g] = inputs.map(contiguous);
            let [batch, time, n, d]: [usize; 4] = h.shape().dims();
            let sizes = Sizes {
                positions: batch * time,
                shared: false,
                n,
                m: g.shape()[2],
                d,
            };
            let shape = [batch, time, n, sizes.m];
            let a = with_real!(&h, dots(sizes, shape, &h, &g));
            (a, [h, g])
        }

        fn backward(&self, [h, g]: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 2] {
            with_real!(&h, grads_of_dots(&contiguous(grad), &h, &g))
        }
    }

    impl Op<Flex, 4> for Mix {
        type Kept = [FlexTensor; 4];

        fn takes(&self, inputs: &[FlexTensor; 4]) -> bool {
            let [_, h, _, y]: [[usize; 4]; 4] = inputs.each_ref().map(|x| x.shape().dims());
            real(inputs) && (h[0], h[1], h[3]) == (y[0], y[1], y[3]) && h[2] * y[2] * h[3] > 0
        }

        fn forward(&self, inputs: [FlexTensor; 4]) -> (FlexTensor, [FlexTensor; 4]) {
            let inputs = inputs.map(contiguous);
            (with_real!(&inputs[0], forward_both(&inputs)), inputs)
        }

        fn backward(&self, kept: [FlexTensor; 4], grad: FlexTensor) -> [FlexTensor; 4] {
            with_real!(&kept[0], backward_both(&kept, &contiguous(grad)))
        }
    }

    impl Op<Flex, 2> for Mix {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 2]) -> bool {
            real(inputs)
        }

        fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            let inputs = inputs.map(contiguous);
            let out = with_real!(&inputs[0], forward(&inputs[0], &inputs[1]));
            (out, inputs)
        }

        fn backward(&self, kept: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 2] {
            with_real!(&kept[0], backward(&kept, &contiguous(grad)))
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::{Kind, Tensor};

    use super::Mix;
    use crate::cuda::{Arg, Grid, empty, launch};
    use crate::libtorch::{contiguous, is_cuda};
    use crate::op::Op;

    /// The largest number of streams that the kernels take.
    const MOST: usize = 9;

    /// Returns the four sizes of x.
    fn sizes(x: &Tensor) -> [usize; 4] {
        let sizes = x.size();
        [0, 1, 2, 3].map(|i| sizes[i] as usize)
    }

    /// Computes out_t = Σ_s w[s, t] x_s, where w is a, or the transpose of a if `transposed`.
    fn product(a: &Tensor, x: &Tensor, transposed: bool) -> Tensor {
        let [rows, columns, height, width] = sizes(a);
        let [batch, time, n, d] = sizes(x);
        let m = if transposed { height } else { width };
        let (by_s, by_t) = if transposed { (1, width) } else { (width, 1) };
        let stride = if rows * columns == 1 {
            0
        } else {
            height * width
        };
        let out = empty(
            &[batch as i64, time as i64, m as i64, d as i64],
            Kind::Float,
            x,
        );
        let numbers = [n, m, d, by_s, by_t, stride].map(Arg::Int);
        let positions = batch * time;
        let tensors = [Arg::Of(a), Arg::Of(x), Arg::Of(&out), Arg::Long(positions)];
        launch(
            c"mix",
            x,
            Grid::threads(positions * d),
            &[&tensors[..], &numbers].concat(),
        );
        out
    }

    /// dw[s, t] = ⟨x_s, g_t⟩ for each position.
    fn weights(x: &Tensor, g: &Tensor) -> Tensor {
        let ([batch, time, n, d], [_, _, m, _]) = (sizes(x), sizes(g));
        let out = empty(
            &[batch as i64, time as i64, n as i64, m as i64],
            Kind::Float,
            x,
        );
        let positions = batch * time;
        let tensors = [Arg::Of(x), Arg::Of(g), Arg::Of(&out), Arg::Long(positions)];
        // A warp of 32 threads for each position.
        let grid = Grid::threads(positions * 32);
        launch(
            c"mix_weights",
            x,
            grid,
            &[&tensors[..], &[n, m, d].map(Arg::Int)].concat(),
        );
        out
    }

    impl Op<LibTorch, 2> for Mix {
        type Kept = [TchTensor; 2];

        /// Takes f32 tensors of few streams on CUDA. On a CPU, the plain form is faster.
        fn takes(&self, [a, h]: &[TchTensor; 2]) -> bool {
            let [_, _, n, m] = sizes(&a.tensor);
            let is_f32 = [a, h].iter().all(|x| x.tensor.kind() == Kind::Float);
            is_cuda(&h.tensor) && is_f32 && n.max(m) <= MOST
        }

        fn forward(&self, inputs: [TchTensor; 2]) -> (TchTensor, [TchTensor; 2]) {
            let [a, h] = inputs.map(contiguous);
            let out = product(&a.tensor, &h.tensor, false);
            (TchTensor::new(out), [a, h])
        }

        fn backward(&self, [a, h]: [TchTensor; 2], grad: TchTensor) -> [TchTensor; 2] {
            let (a, h, grad) = (a.tensor, h.tensor, contiguous(grad).tensor);
            let dh = product(&a, &grad, true);
            let da = weights(&h, &grad);
            let da = match a.size()[..2] == [1, 1] {
                true => da.sum_dim_intlist([0i64, 1].as_slice(), true, Kind::Float),
                false => da,
            };
            [da, dh].map(TchTensor::new)
        }
    }
}
