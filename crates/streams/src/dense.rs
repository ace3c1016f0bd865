//! DenseFormer (Pagliardini et al., "DenseFormer: enhancing information flow in transformers via depth weighted
//! averaging", 2024, <https://arxiv.org/abs/2402.02622>), with dilation k and period p:
//!
//! ```text
//! X_0 = x_0,  X_b = layer_b(Y_{b-1}),  Y_b = Σ_j α_b[j] X_j  over j = b, b − k, … ≥ 0  if p divides b, else X_b
//! ```
//!
//! α_b is initially 0, …, 0, 1, so a new model equals the plain model. As in the authors' package, k counts layers.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Sites, Stream, check,
};
use serde::{Deserialize, Serialize};

use crate::KeepFirst;

/// Computes Y_b. The stream carries X_0, …, X_{b-1}.
#[derive(Module, Debug)]
pub struct Dense<B: Backend> {
    /// α_b, `[⌊b / k⌋ + 1]`, oldest first; `None` if p does not divide b.
    alpha: Option<Param<Tensor<B, 1>>>,
    dilation: usize,
}

impl<B: Backend> Connection<B> for Dense<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = f.plus(stream.x);
        stream.carried.push(x.clone());
        let Some(alpha) = self.alpha.as_ref().map(Param::val) else {
            return Stream { x, ..stream };
        };
        let b = stream.carried.len() - 1;
        let chosen = stream.carried[b % self.dilation..].iter();
        let chosen = chosen.step_by(self.dilation).enumerate();
        let terms = chosen.map(|(j, x)| x.clone() * alpha.clone().narrow(0, j, 1).unsqueeze());
        Stream {
            x: terms.reduce(|sum, term| sum + term).unwrap_or(x),
            ..stream
        }
    }
}

/// The config of [`Dense`]. The paper's "4x5" is a dilation of 4 and a period of 5.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DenseConfig {
    /// k: the average takes every k-th output.
    pub dilation: usize,
    /// p: an average follows every p-th layer.
    pub period: usize,
}

impl Default for DenseConfig {
    fn default() -> Self {
        Self {
            dilation: 1,
            period: 1,
        }
    }
}

impl DenseConfig {
    /// Returns the number of entries of α_b.
    fn entries(&self, b: usize) -> usize {
        b / self.dilation + 1
    }
}

impl Design for DenseConfig {
    type Connection<B: Backend> = Dense<B>;
    type Ends<B: Backend> = KeepFirst;

    fn name(&self) -> &'static str {
        "DenseFormer"
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        check::at_least_one("dilation", self.dilation)?;
        check::at_least_one("period", self.period)
    }

    fn connection<B: Backend>(&self, _: &Sites, i: usize, device: &B::Device) -> Dense<B> {
        let b = i + 1;
        let alpha = b.is_multiple_of(self.period).then(|| {
            let mut start = vec![0.0; self.entries(b)];
            start[b / self.dilation] = 1.0;
            let count = start.len();
            Param::from_data(TensorData::new(start, [count]), device)
        });
        Dense {
            alpha,
            dilation: self.dilation,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> KeepFirst {
        KeepFirst
    }

    fn cost(&self, on: &Sites) -> Cost {
        let blocks = (self.period..=on.count).step_by(self.period);
        Cost::vector(blocks.map(|b| self.entries(b)).sum())
    }
}
