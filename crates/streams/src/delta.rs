//! Deep Delta Learning (Zhang et al., 2026, <https://arxiv.org/abs/2601.00417>). A matrix X `[D, m]` replaces x. The
//! branch F, which has no norm of its own, gives the direction k of a rank-1 update:
//!
//! ```text
//! c = LN(a),  a = compress(X)                k = F(c) / √(|F(c)|² + ε²)
//! X' = X + β k (v − kᵀ X)                    β = 2 σ(c · w + b)
//! paper:  v = c W                            code:  v = 4 σ(a W + b_v)                v [m]
//! compress(X) = X for m = 1, else conv(X) r  conv over the channels, or causal over positions, feature by feature
//! ```
//!
//! X_0 consists of m copies of x_0, or of m causal convolutions of x_0 over positions. One more compress precedes the
//! final norm.
//!
//! Initial values follow the authors' code. β is about 1, and r = 1/m. All matrices, w and the kernels are drawn from
//! N(0, 1 / (4 D)). The convolutions of x_0 initially copy x_0. |X' − X| is at most 2 |v − kᵀ X|, so no initial values
//! give x + f(x).

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::ops::mix::{dots, mix};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Earlier, Ends, Frame, Linear, Norm,
    NormDesign, Sites, Stream, causal_sum, check, linear, normal,
};
use serde::{Deserialize, Serialize};

use crate::ends::streams;

/// The equation of v.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaForm {
    /// v = c W, linear in the normalised input of F.
    Paper,
    /// v = 4 σ(a W + b_v), where a is not normalised. This form is also the default of the authors' code.
    #[default]
    Code,
}

/// The convolution of compress, if m > 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compress {
    /// Over the m channels of a position, with a non-causal kernel of m values.
    #[default]
    Channel,
    /// Over positions, causally.
    Time,
}

/// X' = X + β k (v − kᵀ X). The stream holds the m columns of X side by side. If the residuals of a layer share
/// compress, the stream also carries the weights of compress from one residual to the next.
#[derive(Module, Debug)]
pub struct Delta<B: Backend> {
    norm: Norm<B>,
    /// w `[D, 1]` and b `[1]`.
    beta: Linear<B>,
    /// W `[D, m]` and, in [`DeltaForm::Code`], b_v `[m]`.
    value: Linear<B>,
    /// The convolutions that make X_0, `[m · D, K]`, before the first residual.
    expand: Option<Param<Tensor<B, 2>>>,
    /// compress of this residual. `None` if m = 1, or if the stream carries its weights.
    compress: Option<Compressor<B>>,
    /// compress before the final norm, after the last residual.
    last: Option<Compressor<B>>,
    /// Whether the next residual uses the same compress.
    shared: bool,
    form: DeltaForm,
    channels: usize,
    k_eps: f64,
}

impl<B: Backend> Connection<B> for Delta<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, mut f: BranchFn<'_, B, M>) -> Stream<B> {
        let mut earlier = f.earlier();
        let x = match &self.expand {
            Some(kernel) => causal_sum(stream.x, kernel.val(), earlier.past()),
            None => stream.x,
        };
        let own = self.compress.as_ref().map(Compressor::weight);
        let weight = own.or(stream.carried.pop());
        let a = match weight.clone() {
            Some(weight) => compress(x.clone(), weight, &mut earlier),
            None => x.clone(),
        };
        let c = self.norm.forward(a.clone());
        let k = f.of_normed(a.clone(), |_| c.clone());
        let square = (k.clone() * k.clone()).sum_dim(2);
        let k = k / (square + self.k_eps.powi(2)).sqrt();
        let beta = sigmoid(self.beta.forward(c.clone())) * 2.0;
        let v = match self.form {
            DeltaForm::Paper => self.value.forward(c),
            DeltaForm::Code => sigmoid(self.value.forward(a)) * 4.0,
        };
        let shape = x.dims();
        let x = streams(x, self.channels);
        let k = k.unsqueeze_dim::<4>(2);
        // kᵀ X, then β (v − kᵀ X), both `[batch, time, 1, m]`.
        let read = dots(x.clone(), k.clone()).swap_dims(2, 3);
        let row = (v.unsqueeze_dim(2) - read) * beta.unsqueeze_dim(3);
        let x = (x + mix(row, k)).reshape(shape);
        Stream {
            x: match &self.last {
                Some(last) => compress(x, last.weight(), &mut earlier),
                None => x,
            },
            carried: weight.filter(|_| self.shared).into_iter().collect(),
            ..stream
        }
    }
}

/// Maps X, `[batch, time, m · D]`, to `[batch, time, D]`, with the [weight](Compressor::weight) of a compressor.
fn compress<B: Backend>(
    x: Tensor<B, 3>,
    weight: Tensor<B, 3>,
    earlier: &mut Earlier<'_, B>,
) -> Tensor<B, 3> {
    let [taps, channels, width] = weight.dims();
    let x = match taps {
        1 => x * weight.reshape([1, 1, channels * width]),
        _ => {
            let weight = weight.reshape([taps, channels * width]).transpose();
            causal_sum(x, weight, earlier.past())
        }
    };
    let ones = Tensor::ones([1, 1, channels, 1], &x.device());
    mix(ones, streams(x, channels)).squeeze_dim(2)
}

/// compress for m > 1: a convolution with `conv`, then the sum over channels, weighted by r.
#[derive(Module, Debug)]
struct Compressor<B: Backend> {
    /// `[D, m]` over channels, or `[m · D, K]` over positions.
    conv: Param<Tensor<B, 2>>,
    /// r, `[m]`.
    read: Param<Tensor<B, 1>>,
    over: Compress,
}

impl<B: Backend> Compressor<B> {
    /// Combines both steps into one weight: `[1, m, D]` over channels, or `[K, m, D]` over positions.
    fn weight(&self) -> Tensor<B, 3> {
        let (conv, read) = (self.conv.val(), self.read.val());
        let [m] = read.dims();
        let [rows, columns] = conv.dims();
        if self.over == Compress::Time {
            let conv = conv.transpose().reshape([columns, m, rows / m]);
            return conv * read.reshape([1, m, 1]);
        }
        // Output s + (m − 1) / 2 − j reads channel s through entry j of the kernel.
        let (padding, device) = ((m - 1) / 2, conv.device());
        let nothing = Tensor::zeros([m], &device);
        let read = Tensor::cat(vec![nothing.clone(), read, nothing], 0);
        let entry = |j: usize| {
            let read = read.clone().narrow(0, m + padding - j, m).reshape([m, 1]);
            read * conv.clone().narrow(1, j, 1).transpose()
        };
        let weight = (1..m).fold(entry(0), |sum, j| sum + entry(j));
        weight.unsqueeze()
    }
}

/// Opens m copies of x_0 side by side. The last residual reduces X to x_L.
#[derive(Module, Clone, Debug)]
pub struct Channels {
    m: usize,
}

impl<B: Backend> Ends<B> for Channels {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        match self.m {
            1 => Stream::new(x),
            // In Burn 0.21, the gradient of `repeat_dim` is wrong if the axis is longer than 1.
            m => Stream::new(Tensor::cat(vec![x; m], 2)),
        }
    }
}

/// The config of [`Delta`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeltaConfig {
    /// The equation of v.
    pub form: DeltaForm,
    /// Number of columns of X, m. The paper uses 1 and 4.
    pub channels: usize,
    /// The convolution of compress, if m > 1.
    pub compress: Compress,
    /// Whether the residuals of a layer share a compress, as in the code. In the paper, each residual has its own.
    pub per_layer: bool,
    /// Whether X_0 consists of causal convolutions of x_0 over positions, rather than copies.
    pub embedding_conv: bool,
    /// K, the number of positions that a convolution over positions reads.
    pub kernel: usize,
    /// ε in the normalisation of k.
    pub k_eps: f64,
    /// The kind of LN. The final norm is the norm of the architecture.
    pub norm: NormDesign,
}

impl Default for DeltaConfig {
    fn default() -> Self {
        Self {
            form: DeltaForm::Code,
            channels: 1,
            compress: Compress::Channel,
            per_layer: true,
            embedding_conv: false,
            kernel: 4,
            k_eps: 1e-5,
            norm: NormDesign::default(),
        }
    }
}

/// Maximum number of channels, and of positions in a convolution. Papers use 4, and the memory per position grows with
/// both.
const MOST: usize = 64;

impl DeltaConfig {
    /// Whether residual `i` has its own compress.
    fn owns(&self, on: &Sites, i: usize) -> bool {
        self.channels > 1 && (!self.per_layer || i.is_multiple_of(on.per_layer))
    }

    /// Returns the number of weights per feature in a kernel of compress.
    fn taps(&self) -> usize {
        match self.compress {
            Compress::Channel => self.channels,
            Compress::Time => self.channels * self.kernel,
        }
    }

    fn compressor<B: Backend>(&self, on: &Sites, device: &B::Device) -> Compressor<B> {
        let (m, d) = (self.channels, on.width);
        let shape = match self.compress {
            Compress::Channel => [d, m],
            Compress::Time => [m * d, self.kernel],
        };
        let value = (m as f64).recip();
        Compressor {
            conv: normal(shape, std(d), device),
            read: Initializer::Constant { value }.init([m], device),
            over: self.compress,
        }
    }

    /// Returns the initial kernels of the convolutions of x_0, which read only the current position.
    fn expand<B: Backend>(&self, on: &Sites, device: &B::Device) -> Param<Tensor<B, 2>> {
        let (rows, kernel) = (self.channels * on.width, self.kernel);
        let last = (0..rows * kernel).map(|at| f32::from(u8::from(at % kernel == kernel - 1)));
        let copies = TensorData::new(last.collect::<Vec<_>>(), [rows, kernel]);
        Param::from_data(copies, device)
    }
}

/// Returns the standard deviation of initial matrices in the authors' code, 0.5 / √D.
fn std(width: usize) -> f64 {
    0.5 * (width as f64).powf(-0.5)
}

impl Design for DeltaConfig {
    type Connection<B: Backend> = Delta<B>;
    type Ends<B: Backend> = Channels;

    fn name(&self) -> &'static str {
        "deep delta learning"
    }

    fn copies(&self) -> usize {
        self.channels
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers("Delta", "it takes the norms out of sublayers")?;
        for (field, size) in [("channels", self.channels), ("kernel", self.kernel)] {
            check::at_least_one(field, size)?;
            check::at_most(field, size, MOST)?;
        }
        let square = self.k_eps.powi(2) as f32;
        if !(self.k_eps > 0.0 && square > 0.0 && square.is_finite()) {
            let problem =
                "it must be above 0, and its square must be above 0 and finite in 32 bits";
            return Err(ConfigError::new(
                "k_eps",
                format!("is {:?}; {problem}", self.k_eps),
            ));
        }
        self.norm.validate()
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            pre_norm: false,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Delta<B> {
        let (m, d) = (self.channels, on.width);
        let compress = |here: bool| here.then(|| self.compressor(on, device));
        let expand = self.embedding_conv && i == 0;
        Delta {
            norm: self.norm.build(d, device),
            beta: linear(d, 1, true, std(d), device),
            value: linear(d, m, self.form == DeltaForm::Code, std(d), device),
            expand: expand.then(|| self.expand(on, device)),
            compress: compress(self.owns(on, i)),
            last: compress(m > 1 && i + 1 == on.count),
            shared: m > 1 && !self.owns(on, i + 1),
            form: self.form,
            channels: m,
            k_eps: self.k_eps,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Channels {
        Channels { m: self.channels }
    }

    /// Counts the norm, the maps to β and v, kᵀ X, the product with k that is added to X, and the convolutions. The
    /// product of r and a kernel does not depend on the token, so it is not counted.
    fn cost(&self, on: &Sites) -> Cost {
        let (m, d) = (self.channels, on.width);
        let maps = Cost::linear(d, 1, true) + Cost::linear(d, m, self.form == DeltaForm::Code);
        let residual = self.norm.cost(d) + maps + Cost::flops(4 * m * d);
        let expand = match self.embedding_conv {
            true => Cost::linear(d, m * self.kernel, false),
            false => Cost::default(),
        };
        let compress = match m {
            1 => Cost::default(),
            m => {
                let shared = if self.per_layer { on.per_layer } else { 1 };
                let own = Cost::vector(self.taps() * d + m) * (on.count / shared.max(1) + 1);
                own + Cost::flops(2 * self.taps() * d) * (on.count + 1)
            }
        };
        residual * on.count + expand + compress
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;

    type B = Flex;

    fn values<const R: usize>(x: Tensor<B, R>) -> Vec<f32> {
        x.into_data().iter().collect()
    }

    #[test]
    fn a_kernel_over_channels_begins_before_the_first() {
        let device = Default::default();
        for m in [2, 3, 4, 5] {
            let config = DeltaConfig {
                channels: m,
                ..DeltaConfig::default()
            };
            let on = Sites::sublayers(1, 3, 2);
            let compressor: Compressor<B> = config.compressor(&on, &device);
            let kernel = values(compressor.conv.val());
            let x: Vec<f32> = (0..m).map(|s| (s * s + 1) as f32).collect();
            // y_c = Σ_j w_j x_{c + j − (m − 1) / 2}, with zeros outside, and r = 1/m.
            let at = |c: usize, j: usize| (c + j).checked_sub((m - 1) / 2);
            let entry = |c, j| at(c, j).and_then(|s| x.get(s)).unwrap_or(&0.0);
            let output = |c| (0..m).map(|j| kernel[j] * entry(c, j)).sum::<f32>();
            let expected = (0..m).map(output).sum::<f32>() / m as f32;
            let x = Tensor::<B, 1>::from_floats(x.as_slice(), &device).reshape([1, 1, m]);
            let found = compress(x, compressor.weight(), &mut Earlier::default());
            assert!((values(found)[0] - expected).abs() < 1e-5, "m = {m}");
        }
    }

    #[test]
    fn a_new_convolution_of_the_embedding_copies_it() {
        let device = Default::default();
        let config = DeltaConfig {
            channels: 2,
            embedding_conv: true,
            ..DeltaConfig::default()
        };
        let on = Sites::sublayers(2, 3, 2);
        let x = Tensor::<B, 3>::from_floats([[[1.0, 2.0], [3.0, 5.0]]], &device);
        let opened = Ends::<B>::open(&Channels { m: 2 }, x.clone()).x;
        let found = causal_sum(opened, config.expand(&on, &device).val(), None);
        assert_eq!(values(found), [1.0, 2.0, 1.0, 2.0, 3.0, 5.0, 3.0, 5.0]);
    }
}
