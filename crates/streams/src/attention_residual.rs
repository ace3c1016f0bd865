//! Attention residuals (Chen et al., "Attention residuals", 2026, <https://arxiv.org/abs/2603.15031>). With v_0 = x_0
//! and v_{m+1} = f_m(h_m), branch i reads
//!
//! ```text
//! h_i = Σ_m p_m v_m,  p = softmax_m(q_i · RMSNorm_i(v_m))
//! ```
//!
//! Nothing is added to h. One more read precedes the final norm. In the block form, the outputs of S residuals are
//! summed into one source. Once the current block has begun, its sum is a source too.
//!
//! q is initially 0, so h is the mean of its sources: the plain stream divided by the number of sources.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Norm, Sites, Stream, check,
};
use serde::{Deserialize, Serialize};

/// Reads h, a softmax mixture of all sources.
#[derive(Module, Debug)]
struct Read<B: Backend> {
    /// q, `[D]`.
    query: Param<Tensor<B, 1>>,
    norm: Norm<B>,
}

impl<B: Backend> Read<B> {
    fn new(width: usize, eps: f64, device: &B::Device) -> Self {
        Self {
            query: Initializer::Zeros.init([width], device),
            norm: Norm::rms(width, eps, device),
        }
    }

    /// Computes Σ_m p_m v_m.
    fn of(&self, v: Vec<Tensor<B, 3>>) -> Tensor<B, 3> {
        self.norm.depth_attention(self.query.val(), v)
    }
}

/// Whether the block of residual `i` begins before `i`, for blocks of `size` residuals.
fn has_begun(i: usize, size: usize) -> bool {
    !i.is_multiple_of(size)
}

/// Returns all sources before residual `i`.
fn sources<B: Backend>(stream: &Stream<B>, i: usize, size: usize) -> Vec<Tensor<B, 3>> {
    let begun = has_begun(i, size).then_some(&stream.x);
    stream.carried.iter().chain(begun).cloned().collect()
}

/// A residual where f reads h_i. x is the sum of the current block; the stream carries x_0 and the sums of earlier
/// blocks.
#[derive(Module, Debug)]
pub struct AttentionResidual<B: Backend> {
    /// The read; `None` in the first residual, where x_0 is the only source.
    read: Option<Read<B>>,
    i: usize,
    block: usize,
}

impl<B: Backend> Connection<B> for AttentionResidual<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let h = match &self.read {
            Some(read) => read.of(sources(&stream, self.i, self.block)),
            None => stream.x.clone(),
        };
        let out = f.of(h);
        let sum = match has_begun(self.i, self.block) {
            true => stream.x + out,
            false => out,
        };
        if !has_begun(self.i + 1, self.block) {
            stream.carried.push(sum.clone());
        }
        Stream { x: sum, ..stream }
    }
}

/// The read before the final norm.
#[derive(Module, Debug)]
pub struct LastRead<B: Backend> {
    read: Read<B>,
    count: usize,
    block: usize,
}

impl<B: Backend> Ends<B> for LastRead<B> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        crate::KeepFirst.open(x)
    }

    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        self.read.of(sources(&stream, self.count, self.block))
    }
}

/// The config of [`AttentionResidual`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionResidualConfig {
    /// Number of residuals in a block, S. With 1, every output is a source, which is the full form.
    pub block: usize,
    /// ε of norms, added to the mean square.
    pub norm_eps: f64,
}

impl Default for AttentionResidualConfig {
    fn default() -> Self {
        Self {
            block: 1,
            norm_eps: 1e-6,
        }
    }
}

impl Design for AttentionResidualConfig {
    type Connection<B: Backend> = AttentionResidual<B>;
    type Ends<B: Backend> = LastRead<B>;

    fn name(&self) -> &'static str {
        match self.block {
            1 => "attention residual",
            _ => "block attention residual",
        }
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        check::at_least_one("block", self.block)?;
        check::positive("norm_eps", self.norm_eps)
    }

    fn connection<B: Backend>(
        &self,
        on: &Sites,
        i: usize,
        device: &B::Device,
    ) -> AttentionResidual<B> {
        AttentionResidual {
            read: (i > 0).then(|| Read::new(on.width, self.norm_eps, device)),
            i,
            block: self.block,
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> LastRead<B> {
        LastRead {
            read: Read::new(on.width, self.norm_eps, device),
            count: on.count,
            block: self.block,
        }
    }

    /// Counts, for each source, the product with q and the weighted sum.
    fn cost(&self, on: &Sites) -> Cost {
        // The sources of a read are x_0, the sums of finished blocks, and the sum of a block that has begun.
        let sources: usize = (1..=on.count).map(|i| 1 + i.div_ceil(self.block)).sum();
        Cost::vector(2 * on.width) * on.count + Cost::flops(4 * on.width) * sources
    }
}
