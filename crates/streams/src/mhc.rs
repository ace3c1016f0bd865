//! Manifold-constrained hyper-connections (Xie et al., "mHC: manifold-constrained hyper-connections", 2025,
//! <https://arxiv.org/abs/2512.24880>, eqs. 7-9). H `[n, D]` has n streams, r = RMSNorm(vec H):
//!
//! ```text
//! z_pre = s_0 r P_pre + b_pre [n]    z_post = s_1 r P_post + b_post [n]    z_res = s_2 mat(r P_res) + b_res [n, n]
//! pre = σ(z_pre)    post = 2 σ(z_post)    res = Sinkhorn(exp(z_res)): columns, then rows, t times
//! H' = res H + postᵀ f(pre H)
//! ```
//!
//! The paper gives only s = 0.01 as an initial value. [`MhcStart`] has the others. With equal weights for all streams,
//! equal streams would have equal gradients and stay equal, up to rounding. So one of P and b_pre tells the streams
//! apart.

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::ops::{mix::mix, sinkhorn::sinkhorn};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Norm, Sites, Stream, check,
    project,
};
use serde::{Deserialize, Serialize};

use crate::Copies;
use crate::ends::streams;
use crate::hyper::streams_fit;

/// The source of the equations: the paper, or the code, TileKernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MhcForm {
    /// The equations of the paper. The paper does not define the end of the stream; here it is the sum of the streams.
    #[default]
    Paper,
    /// The code, deepseek-ai/TileKernels. `res` is transposed, so Sinkhorn begins with rows. Its first step is a
    /// softmax. ε is added to `pre`, to the softmax and to the divisors. The norm has no scale. The end of the stream
    /// is a weighted sum of the streams, with its own weights.
    Code,
}

/// The initial values that the paper does not give. b_post is 0, so post is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum MhcStart {
    /// As in NVIDIA's Megatron-LM: all b are 0, so res is 1/n everywhere and pre is ½. P is drawn by Xavier's uniform
    /// rule. It tells the streams apart: pre and post differ by about 1 % between streams.
    #[default]
    Uniform,
    /// P = 0, and b_res is 0 on the diagonal and this value elsewhere. With −8, as in tokenbender/mHC, streams hardly
    /// mix, and these entries have small gradients. With −3 and 4 streams, each stream takes 4 % from each of the
    /// others. b_pre tells the streams apart: pre is ¾ for stream i mod n of residual i, and the other streams share ¼.
    /// A new model is the plain one, up to the ε of norms.
    Identity(f64),
}

/// H' = res H + postᵀ f(pre H). The stream holds the rows of H side by side.
#[derive(Module, Debug)]
pub struct Mhc<B: Backend> {
    read: Read<B>,
    /// s_0, s_1, s_2, `[3]`.
    scale: Param<Tensor<B, 1>>,
    n: usize,
    form: MhcForm,
    sinkhorn: usize,
    eps: f64,
}

/// The map r P + b.
#[derive(Module, Debug)]
struct Read<B: Backend> {
    norm: Norm<B>,
    /// P, `[n · D, columns]`.
    phi: Param<Tensor<B, 2>>,
    /// b, `[columns]`.
    base: Param<Tensor<B, 1>>,
}

impl<B: Backend> Read<B> {
    /// s ⊙ (r P) + b, `[batch, time, columns]`, for s `[columns]`.
    fn forward(&self, x: Tensor<B, 3>, s: Tensor<B, 1>) -> Tensor<B, 3> {
        let rp = project(self.norm.forward(x), self.phi.val());
        rp * s.unsqueeze() + self.base.val().unsqueeze()
    }
}

impl<B: Backend> Mhc<B> {
    /// Repeats s_0, s_1, s_2 for their columns, `[2n + n²]`.
    fn scales(&self) -> Tensor<B, 1> {
        let n = self.n;
        let parts = [(0, n), (1, n), (2, n * n)];
        let parts = parts.map(|(i, count)| self.scale.val().narrow(0, i, 1).repeat_dim(0, count));
        Tensor::cat(parts.into(), 0)
    }

    /// Applies Sinkhorn to z_res `[batch, time, n, n]`.
    fn doubly_stochastic(&self, z: Tensor<B, 4>) -> Tensor<B, 4> {
        let eps = self.eps;
        match self.form {
            MhcForm::Paper => {
                // A common factor does not change the result. e^-80 is above 0 in f32, so no row or column has the sum
                // 0.
                let max = z.clone().detach().max_dim(3).max_dim(2);
                sinkhorn((z - max).clamp_min(-80.0).exp(), 2 * self.sinkhorn, 0.0)
            }
            MhcForm::Code => {
                let first = softmax(z, 3) + eps;
                sinkhorn(first, 2 * self.sinkhorn - 1, eps).swap_dims(2, 3)
            }
        }
    }
}

impl<B: Backend> Connection<B> for Mhc<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let n = self.n;
        let [batch, time, width] = stream.x.dims();
        let z = self.read.forward(stream.x.clone(), self.scales());
        let part = |from, count| z.clone().narrow(2, from, count);
        let pre = sigmoid(part(0, n)).unsqueeze_dim::<4>(3);
        let pre = match self.form {
            MhcForm::Paper => pre,
            MhcForm::Code => pre + self.eps,
        };
        let post = sigmoid(part(n, n)).unsqueeze_dim::<4>(2) * 2.0;
        let res = self.doubly_stochastic(part(2 * n, n * n).reshape([batch, time, n, n]));
        let h = streams(stream.x, n);
        let fx = f.of(mix(pre, h.clone()).squeeze_dim(2));
        let h = mix(res.swap_dims(2, 3), h) + mix(post, fx.unsqueeze_dim(2));
        Stream {
            x: h.reshape([batch, time, width]),
            ..stream
        }
    }
}

/// Opens n copies of x_0. The end is the sum or mean of the streams, or in the form of the code a weighted sum.
#[derive(Module, Debug)]
pub struct MhcEnds<B: Backend> {
    copies: Copies,
    head: Option<Head<B>>,
}

/// Σ_j w_j H_j with w = σ(s r P + b) + ε.
#[derive(Module, Debug)]
struct Head<B: Backend> {
    read: Read<B>,
    /// s, `[1]`.
    scale: Param<Tensor<B, 1>>,
    eps: f64,
}

impl<B: Backend> Ends<B> for MhcEnds<B> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        self.copies.open(x)
    }

    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        let Some(head) = &self.head else {
            return self.copies.close(stream);
        };
        let n = self.copies.n;
        let scale = head.scale.val().repeat_dim(0, n);
        let w = sigmoid(head.read.forward(stream.x.clone(), scale)) + head.eps;
        mix(w.unsqueeze_dim(3), streams(stream.x, n)).squeeze_dim(2)
    }
}

/// The config of [`Mhc`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, from = "Given")]
pub struct MhcConfig {
    /// The source of the equations: the paper, or the code, TileKernels.
    pub form: MhcForm,
    /// Number of streams, at least 2.
    pub n: usize,
    /// Initial values that the paper does not give.
    pub start: MhcStart,
    /// Number of times that Sinkhorn normalises columns and rows, t.
    pub sinkhorn: usize,
    /// ε of norms, added to the mean square.
    pub norm_eps: f64,
    /// ε in the form of the code.
    pub eps: f64,
}

impl Default for MhcConfig {
    fn default() -> Self {
        Self {
            form: MhcForm::Paper,
            n: 4,
            start: MhcStart::Uniform,
            sinkhorn: 20,
            norm_eps: 1e-6,
            eps: 1e-6,
        }
    }
}

/// The fields of a config in a file.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Given {
    form: MhcForm,
    n: usize,
    start: MhcStart,
    /// The value of [`MhcStart::Identity`] in the files of earlier versions.
    b_res: Option<f64>,
    sinkhorn: usize,
    norm_eps: f64,
    eps: f64,
}

impl Default for Given {
    fn default() -> Self {
        let MhcConfig {
            form,
            n,
            start,
            sinkhorn,
            norm_eps,
            eps,
        } = MhcConfig::default();
        Self {
            form,
            n,
            start,
            b_res: None,
            sinkhorn,
            norm_eps,
            eps,
        }
    }
}

impl From<Given> for MhcConfig {
    fn from(given: Given) -> Self {
        Self {
            form: given.form,
            n: given.n,
            start: given.b_res.map_or(given.start, MhcStart::Identity),
            sinkhorn: given.sinkhorn,
            norm_eps: given.norm_eps,
            eps: given.eps,
        }
    }
}

/// Maximum number of rounds of Sinkhorn. The paper uses 20.
const MOST_ROUNDS: usize = 1000;

impl MhcConfig {
    fn read<B: Backend>(&self, on: &Sites, base: Vec<f64>, device: &B::Device) -> Read<B> {
        let (columns, width) = (base.len(), self.n * on.width);
        let mut norm = Norm::rms(width, self.norm_eps, device);
        if self.form == MhcForm::Code {
            norm.gamma = None;
        }
        let phi = match self.start {
            MhcStart::Uniform => Initializer::XavierUniform { gain: 1.0 },
            MhcStart::Identity(_) => Initializer::Zeros,
        };
        Read {
            norm,
            phi: phi.init_with([width, columns], Some(width), Some(columns), device),
            base: Param::from_data(TensorData::new(base, [columns]), device),
        }
    }

    /// b_pre, b_post and b_res of residual `i`.
    fn base(&self, i: usize) -> Vec<f64> {
        let n = self.n;
        let MhcStart::Identity(b_res) = self.start else {
            return vec![0.0; n * (n + 2)];
        };
        let others = -((4 * n - 5) as f64).ln();
        let b_pre = |s| if s == i % n { 3f64.ln() } else { others };
        let b_res = |at| if at / n == at % n { 0.0 } else { b_res };
        let b_post = vec![0.0; n];
        let b_pre = (0..n).map(b_pre);
        b_pre.chain(b_post).chain((0..n * n).map(b_res)).collect()
    }

    /// b of the head: σ(b) = 1/n, so the weights of equal streams sum to 1.
    fn b_head(&self) -> Vec<f64> {
        vec![-((self.n - 1) as f64).ln(); self.n]
    }

    fn read_cost(&self, on: &Sites, columns: usize) -> Cost {
        let width = self.n * on.width;
        let norm = match self.form {
            MhcForm::Paper => Cost::vector(width),
            MhcForm::Code => Cost::default(),
        };
        Cost::linear(width, columns, true) + norm
    }

    fn scale<B: Backend>(count: usize, device: &B::Device) -> Param<Tensor<B, 1>> {
        Initializer::Constant { value: 0.01 }.init([count], device)
    }
}

impl Design for MhcConfig {
    type Connection<B: Backend> = Mhc<B>;
    type Ends<B: Backend> = MhcEnds<B>;

    fn name(&self) -> &'static str {
        "mHC"
    }

    fn copies(&self) -> usize {
        self.n
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        streams_fit(self.n, 2)?;
        if !(1..=MOST_ROUNDS).contains(&self.sinkhorn) {
            let problem = format!("is {}; it must be from 1 to {MOST_ROUNDS}", self.sinkhorn);
            return Err(ConfigError::new("sinkhorn", problem));
        }
        if let MhcStart::Identity(b_res) = self.start {
            check::finite("start.Identity", b_res)?;
        }
        check::positive("norm_eps", self.norm_eps)?;
        check::not_negative("eps", self.eps)
    }

    fn continues(&self, before: &Self) -> bool {
        let this = Self {
            start: before.start,
            ..self.clone()
        };
        this == *before
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Mhc<B> {
        Mhc {
            read: self.read(on, self.base(i), device),
            scale: Self::scale(3, device),
            n: self.n,
            form: self.form,
            sinkhorn: self.sinkhorn,
            eps: self.eps,
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> MhcEnds<B> {
        let head = || Head {
            read: self.read(on, self.b_head(), device),
            scale: Self::scale(1, device),
            eps: self.eps,
        };
        MhcEnds {
            copies: Copies::new(self.n, on),
            head: (self.form == MhcForm::Code).then(head),
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        let (n, d) = (self.n, on.width);
        let mixing = Cost::vector(3) + Cost::flops(2 * n * (n + 1) * d);
        let head = match self.form {
            MhcForm::Paper => Cost::default(),
            MhcForm::Code => self.read_cost(on, n) + Cost::vector(1) + Cost::flops(2 * n * d),
        };
        (self.read_cost(on, n * (n + 2)) + mixing) * on.count + head
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;

    #[test]
    fn a_column_far_below_the_others_is_not_divided_by_zero() {
        let (device, config) = (Default::default(), MhcConfig::default());
        let config = MhcConfig { n: 2, ..config };
        let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 0, &device);
        for z in [[0.0, -200.0, 0.0, -200.0], [0.0, 0.0, -200.0, -200.0]] {
            let z = Tensor::<Flex, 1>::from_floats(z, &device).reshape([1, 1, 2, 2]);
            let found: Vec<f32> = mhc.doubly_stochastic(z).into_data().iter().collect();
            assert!(found.iter().all(|m| (m - 0.5).abs() < 1e-3), "{found:?}");
        }
    }

    #[test]
    fn a_new_model_mixes_all_streams_alike() {
        let (device, config) = (Default::default(), MhcConfig::default());
        let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 1, &device);
        let base: Vec<f32> = mhc.read.base.val().into_data().iter().collect();
        assert_eq!(base, [0.0; 24]);
        // Without r P, pre is σ(0) = ½ and post 2 σ(0) = 1.
        let z = Tensor::<Flex, 4>::zeros([1, 1, 4, 4], &device);
        let res: Vec<f32> = mhc.doubly_stochastic(z).into_data().iter().collect();
        assert!(res.iter().all(|m| (m - 0.25).abs() < 1e-6), "{res:?}");
        // Xavier's uniform rule for 4 · 8 features and 24 columns.
        let bound = (6.0f32 / (32.0 + 24.0)).sqrt();
        let phi: Vec<f32> = mhc.read.phi.val().into_data().iter().collect();
        let largest = phi.iter().fold(0.0f32, |most, p| most.max(p.abs()));
        assert!(largest <= bound && largest > 0.95 * bound, "{largest}");
        let square = phi.iter().map(|p| p * p).sum::<f32>() / phi.len() as f32;
        assert!(
            (3.0 * square / (bound * bound) - 1.0).abs() < 0.1,
            "{square}"
        );
    }

    #[test]
    fn the_identity_reads_mostly_one_stream_and_mixes_none() {
        let (device, start) = (Default::default(), MhcStart::Identity(-8.0));
        let config = MhcConfig {
            start,
            ..MhcConfig::default()
        };
        let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 1, &device);
        let base = mhc.read.base.val();
        let pre: Vec<f32> = sigmoid(base.clone().narrow(0, 0, 4))
            .into_data()
            .iter()
            .collect();
        let twelfth = 1.0 / 12.0;
        let expected = [twelfth, 0.75, twelfth, twelfth];
        let near = pre.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near, "{pre:?}");
        let z = base.narrow(0, 8, 16).reshape([1, 1, 4, 4]);
        let res: Vec<f32> = mhc.doubly_stochastic(z).into_data().iter().collect();
        assert!(res.iter().step_by(5).all(|m| *m > 0.998), "{res:?}");
    }
}
