//! Hyper-connections (Zhu et al., "Hyper-connections", 2024, <https://arxiv.org/abs/2409.19606>, eqs. 1-14 and Appendix
//! J). H `[n, D]` has n streams, which begin as copies of x_0 and are summed at the end:
//!
//! ```text
//! h_0 = A_mᵀ H    R = A_rᵀ H    H' = R + Bᵀ f(h_0)       A = [A_m | A_r] [n, n + 1],  B [n]
//! dynamic:  A + s_α tanh(LN(H) W_α),  B + s_β tanh(LN(H) W_β)       row j from stream j
//! ```
//!
//! Initially, B = 1, A_r = I, and A_m of residual i is 1 for stream i mod n and 0 for the others. All W are 0, and both
//! s are 0.01. A new model therefore keeps its streams equal, and computes what a plain model with the same branches
//! computes, up to the ε of the final norm. Weight decay applies to all W, but not to A and B.
//!
//! The initial projections to the stream are divided by √n, multiplied by √n, or left unchanged ([`RootN`]).

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::ops::activation::tanh;
use residual_zoo_core::ops::mix::{mix, mix_both};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Frame, Norm, NormParams, Sites,
    Stream, check, project,
};
use serde::{Deserialize, Serialize};

use crate::Copies;
use crate::ends::streams;

/// H' = A_rᵀ H + Bᵀ f(A_mᵀ H). The stream holds the rows of H side by side.
#[derive(Module, Debug)]
pub struct Hyper<B: Backend> {
    /// A = [A_m | A_r], `[n, n + 1]`.
    mixing: Param<Tensor<B, 2>>,
    /// B, `[n]`.
    beta: Param<Tensor<B, 1>>,
    dynamic: Option<Dynamic<B>>,
}

/// The part of A and B that depends on the rows of H. Here, D is the number of features of a row.
#[derive(Module, Debug)]
pub(crate) struct Dynamic<B: Backend> {
    /// The norm of each row.
    norm: Norm<B>,
    /// W_α, `[D, columns of A]`.
    w_alpha: Param<Tensor<B, 2>>,
    /// W_β, `[D, 1]`.
    w_beta: Param<Tensor<B, 2>>,
    /// s_α, `[1]`.
    s_alpha: Param<Tensor<B, 1>>,
    /// s_β, `[1]`.
    s_beta: Param<Tensor<B, 1>>,
}

impl<B: Backend> Dynamic<B> {
    /// Builds the maps with W = 0 and s = 0.01, for rows of `width` features and an A with `columns` columns.
    pub(crate) fn new(norm: Norm<B>, width: usize, columns: usize, device: &B::Device) -> Self {
        Self {
            norm,
            w_alpha: Initializer::Zeros.init([width, columns], device),
            w_beta: Initializer::Zeros.init([width, 1], device),
            s_alpha: Initializer::Constant { value: START }.init([1], device),
            s_beta: Initializer::Constant { value: START }.init([1], device),
        }
    }

    /// Computes A + s_α tanh(N(H) W_α) `[batch, time, n, columns]` and B + s_β tanh(N(H) W_β) `[batch, time, n, 1]`,
    /// for the norm N, H `[batch, time, n, D]`, A `[n, columns]` and B `[n, 1]`.
    pub(crate) fn add_to(
        &self,
        a: Tensor<B, 2>,
        b: Tensor<B, 2>,
        h: Tensor<B, 4>,
    ) -> [Tensor<B, 4>; 2] {
        let [batch, time, n, d] = h.dims();
        let h = self.norm.forward(h).reshape([batch, time * n, d]);
        let of = |fixed: Tensor<B, 2>, w: &Param<Tensor<B, 2>>, s: &Param<Tensor<B, 1>>| {
            let columns = fixed.dims()[1];
            let y = tanh(project(h.clone(), w.val())) * s.val().unsqueeze();
            // On Flex, a sum with one row is much faster than a sum with a matrix.
            let y = y.reshape([batch * time, n * columns]) + fixed.reshape([1, n * columns]);
            y.reshape([batch, time, n, columns])
        };
        [
            of(a, &self.w_alpha, &self.s_alpha),
            of(b, &self.w_beta, &self.s_beta),
        ]
    }
}

/// Returns the cost of a [`Dynamic`] whose norm costs `norm`, for `rows` rows of `width` features and an A with
/// `columns` columns.
pub(crate) fn dynamic_cost(norm: Cost, rows: usize, width: usize, columns: usize) -> Cost {
    // Each W reads each row.
    Cost::linear(width, columns + 1, false).applied(rows) + norm + Cost::vector(2)
}

impl<B: Backend> Connection<B> for Hyper<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let [n, _] = self.mixing.dims();
        let [batch, time, width] = stream.x.dims();
        let h = streams(stream.x, n);
        let (a, b) = (self.mixing.val(), self.beta.val().reshape([n, 1]));
        let [a, b] = match &self.dynamic {
            Some(dynamic) => dynamic.add_to(a, b, h.clone()),
            None => [a, b].map(Tensor::unsqueeze),
        };
        let [a_m, a_r] = [a.clone().narrow(3, 0, 1), a.narrow(3, 1, n)];
        let h_0 = mix(a_m, h.clone()).squeeze_dim(2);
        let h = mix_both(a_r, h, b.swap_dims(2, 3), f.of(h_0).unsqueeze_dim(2));
        Stream {
            x: h.reshape([batch, time, width]),
            ..stream
        }
    }
}

/// The multiplier of the initial projections to the stream, in addition to the multipliers of plain connections.
/// Section 4 scales the projections "by a factor of √n", so that the output keeps its standard deviation although the n
/// streams are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootN {
    /// 1/√n, which keeps the standard deviation if the streams are independent. Initially, however, the streams are
    /// equal.
    #[default]
    Divide,
    /// √n, another reading of section 4.
    #[serde(alias = "true")]
    Multiply,
    /// 1, so the projections stay unchanged.
    #[serde(alias = "false")]
    Omit,
}

/// The config of [`Hyper`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HyperConfig {
    /// Number of streams. The paper finds that 1 stream is worse than the plain connection.
    pub n: usize,
    /// Whether A and B depend on the streams: dynamic, rather than static, hyper-connections.
    pub dynamic: bool,
    /// The multiplier of the initial projections to the stream.
    pub root_n: RootN,
    /// The parameters of the norm of H, if `dynamic`.
    pub norm: NormParams,
    /// ε of the norm, added to the variance, if `dynamic`.
    pub norm_eps: f64,
}

impl Default for HyperConfig {
    fn default() -> Self {
        Self {
            n: 4,
            dynamic: true,
            root_n: RootN::Divide,
            norm: NormParams::ScaleAndShift,
            norm_eps: 1e-5,
        }
    }
}

/// Initial s_α and s_β.
const START: f64 = 0.01;

impl Design for HyperConfig {
    type Connection<B: Backend> = Hyper<B>;
    type Ends<B: Backend> = Copies;

    fn name(&self) -> &'static str {
        match self.dynamic {
            true => "hyper-connections",
            false => "static hyper-connections",
        }
    }

    fn copies(&self) -> usize {
        self.n
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        streams_fit(self.n, 1)?;
        check::positive("norm_eps", self.norm_eps)
    }

    fn frame(&self, _: usize) -> Frame {
        let output = match self.root_n {
            RootN::Divide => (self.n as f64).sqrt().recip(),
            RootN::Multiply => (self.n as f64).sqrt(),
            RootN::Omit => 1.0,
        };
        Frame {
            output,
            ..Frame::default()
        }
    }

    fn continues(&self, before: &Self) -> bool {
        let this = Self {
            root_n: before.root_n,
            ..self.clone()
        };
        this == *before
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Hyper<B> {
        let n = self.n;
        let entry = |s: usize, t: usize| match t {
            0 => s == i % n,
            t => s == t - 1,
        };
        let mixing = (0..n * (n + 1)).map(|at| f64::from(entry(at / (n + 1), at % (n + 1))));
        let mixing = TensorData::new(mixing.collect::<Vec<_>>(), [n, n + 1]);
        let norm = || Norm::layer(self.norm, on.width, self.norm_eps, device);
        let dynamic = self
            .dynamic
            .then(|| Dynamic::new(norm(), on.width, n + 1, device));
        Hyper {
            mixing: Param::from_data(mixing, device),
            beta: Initializer::Ones.init([n], device),
            dynamic,
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, _: &B::Device) -> Copies {
        Copies::new(self.n, on)
    }

    fn cost(&self, on: &Sites) -> Cost {
        let (n, d) = (self.n, on.width);
        let mixing = Cost::vector(n * (n + 2)) + Cost::flops(2 * n * (n + 1) * d);
        let dynamic = match self.dynamic {
            true => dynamic_cost(self.norm.cost(d), n, d, n + 1),
            false => Cost::default(),
        };
        (mixing + dynamic) * on.count
    }
}

/// Maximum number of streams. Papers use up to 8, and the memory per position grows with the square of the number of
/// streams.
pub(crate) const MOST: usize = 64;

/// Refuses fewer than `least` streams, or more than [`MOST`].
pub(crate) fn streams_fit(n: usize, least: usize) -> Result<(), ConfigError> {
    match (least..=MOST).contains(&n) {
        true => Ok(()),
        false => Err(ConfigError::new(
            "n",
            format!("is {n}; it must be from {least} to {MOST}"),
        )),
    }
}
