//! Ways to join a branch to the residual stream. Each file has one design with its equation.
//!
//! x_i is the stream, f the branch with its pre-norm, D the width, L the number of layers.
//!
//! | design | x_{i+1} | source |
//! |---|---|---|
//! | [`SkipInitConfig`] | x + a f(x), a initially 0 | De and Smith 2020 |
//! | [`ReZeroConfig`] | the same, without norms in branches | Bachlechner et al. 2020 |
//! | [`LayerScaleConfig`] | x + a ⊙ f(x), a `[D]` | Touvron et al. 2021 |
//! | [`DeepNormConfig`] | LN(α x + f(x)) | Wang et al. 2022 |
//! | [`InitialMixConfig`] | layer(r x + m x_0) | modded-nanogpt, nanochat |
//! | [`HighwayConfig`] | (1 − T) x + T f(x), T = σ(x W + b) | Srivastava et al. 2015 |
//! | [`SelfDependencyConfig`] | x + f(x) + ψ(x W_1 + b_1) ⊙ (x W_2 + b_2) | Chai et al. 2020 |
//! | [`DepthLstmConfig`], [`DepthLstmCellConfig`] | an LSTM over depth | Xu et al. 2020 |
//! | [`TreeConfig`], [`IterativeConfig`] | nodes that aggregate the outputs of layers | Dou et al. 2018 |
//! | [`DenseConfig`] | Σ_j α_j X_j over the outputs of layers | Pagliardini et al. 2024 |
//! | [`HyperConfig`] | n streams, mixed by learned matrices | Zhu et al. 2024 |
//! | [`MhcConfig`] | n streams, mixed by doubly stochastic matrices | Xie et al. 2025 |
//! | [`AttentionResidualConfig`] | f reads a softmax mixture of all outputs | Chen et al. 2026 |
//! | [`ValueResidualConfig`] | attention mixes its values with the values of the first layer | Zhou et al. 2024 |

#![forbid(unsafe_code)]

mod attention_residual;
mod deepnorm;
mod dense;
mod depth_lstm;
mod ends;
mod hierarchical;
mod highway;
mod hyper;
mod initial_mix;
mod mhc;
mod scaled;
mod self_dependency;
mod value_residual;

pub use attention_residual::{AttentionResidual, AttentionResidualConfig, LastRead};
pub use deepnorm::{DeepNorm, DeepNormConfig};
pub use dense::{Dense, DenseConfig};
pub use depth_lstm::{
    DepthLstm, DepthLstmCell, DepthLstmCellConfig, DepthLstmConfig, DepthLstmForm, FirstCell,
    GateNorm,
};
pub use ends::{Copies, KeepFirst};
pub use hierarchical::{Iterative, IterativeConfig, LastNode, Tree, TreeConfig};
pub use highway::{Highway, HighwayConfig};
pub use hyper::{Hyper, HyperConfig, RootN};
pub use initial_mix::{InitialMix, InitialMixConfig, InitialMixStart};
pub use mhc::{Mhc, MhcConfig, MhcEnds, MhcForm, MhcStart};
pub use scaled::{LayerScaleConfig, ReZero, ReZeroConfig, Scaled, SkipInitConfig};
pub use self_dependency::{NormPlace, Psi, SelfDependency, SelfDependencyConfig};
pub use value_residual::{ValueResidual, ValueResidualConfig, ValueResidualForm};

#[cfg(test)]
mod tests;
