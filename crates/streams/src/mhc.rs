//! Manifold-constrained hyper-connections (Xie et al., "mHC: manifold-constrained hyper-connections", 2025,
//! <https://arxiv.org/abs/2512.24880>, eqs. 7-9). H `[n, D]` has n streams, r = RMSNorm(vec H):
//!
//! ```text
//! z_pre = s_0 r P_pre + b_pre [n]    z_post = s_1 r P_post + b_post [n]    z_res = s_2 mat(r P_res) + b_res [n, n]
//! pre = σ(z_pre)    post = 2 σ(z_post)    res = Sinkhorn(exp(z_res)): columns, then rows, t times
//! H' = res H + postᵀ f(pre H)
//! ```
//!
//! The paper gives only s = 0.01 as an initial value. Here P = 0 and b_post = 0. b_res is 0 on the diagonal and
//! configurable elsewhere, by default −8. Any b_res gives a doubly stochastic `res`, so a new model is the plain one
//! up to the ε of norms. pre is ¾ for stream i mod n, and the other streams share ¼; in
//! [hyper-connections](crate::HyperConfig), A_m is 1 for stream i mod n. With equal weights for all streams, equal
//! streams would have equal gradients and stay equal, up to rounding.

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
    /// The equations of the paper. It does not state the end; here it is the sum of the streams.
    #[default]
    Paper,
    /// The code, deepseek-ai/TileKernels. `res` is transposed, so Sinkhorn begins with rows, by a softmax. ε is added
    /// to `pre`, to the softmax and to the divisors. The norm has no scale. The end is a weighted sum with its own
    /// weights.
    Code,
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

/// Opens n copies of x_0. The end is their sum or mean, weighted in the form of the code.
#[derive(Module, Debug)]
pub struct MhcEnds<B: Backend> {
    copies: Copies,
    head: Option<Head<B>>,
}

/// Σ_s w_s H_s with w = σ(s r P + b) + ε.
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
#[serde(default, deny_unknown_fields)]
pub struct MhcConfig {
    /// The source of the equations: the paper, or the code, TileKernels.
    pub form: MhcForm,
    /// Number of streams, at least 2.
    pub n: usize,
    /// Initial b_res off the diagonal; it is 0 on the diagonal. The paper does not give it. With −8, streams hardly
    /// mix initially, and these entries have small gradients. With −3 and 4 streams, each stream takes 4 % of each
    /// other one.
    pub b_res: f64,
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
            b_res: -8.0,
            sinkhorn: 20,
            norm_eps: 1e-6,
            eps: 1e-6,
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
        Read {
            norm,
            phi: Initializer::Zeros.init([width, columns], device),
            base: Param::from_data(TensorData::new(base, [columns]), device),
        }
    }

    /// b_pre of residual `i`: σ(b_pre) is ¾ for stream i mod n, and the others share ¼.
    fn b_pre(&self, i: usize) -> Vec<f64> {
        let n = self.n;
        let others = -((4 * n - 5) as f64).ln();
        let of = |s| if s == i % n { 3f64.ln() } else { others };
        (0..n).map(of).collect()
    }

    /// b of the head, where the weights σ(b) = 1/n of equal streams sum to 1.
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
        check::finite("b_res", self.b_res)?;
        check::positive("norm_eps", self.norm_eps)?;
        check::not_negative("eps", self.eps)
    }

    fn continues(&self, before: &Self) -> bool {
        let this = Self {
            b_res: before.b_res,
            ..self.clone()
        };
        this == *before
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Mhc<B> {
        let n = self.n;
        let mut base = self.b_pre(i);
        base.extend(vec![0.0; n]);
        let b_res = |at| if at / n == at % n { 0.0 } else { self.b_res };
        base.extend((0..n * n).map(b_res));
        Mhc {
            read: self.read(on, base, device),
            scale: Self::scale(3, device),
            n,
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
}
