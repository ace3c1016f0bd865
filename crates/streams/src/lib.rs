//! Ways to join a branch to the residual stream. The module of each design begins with its equations.
//!
//! x_i is the stream, f the branch, D the width, and L the number of layers. f includes its pre-norm, unless the design
//! places the norms itself. LN and N are norms, σ is the logistic function, and ψ is tanh or σ.
//!
//! | design | x_{i+1} | source |
//! |---|---|---|
//! | [`SkipInitConfig`] | x + a f(x), a initially 0 | De and Smith 2020 |
//! | [`ReZeroConfig`] | x + a f(x), without norms in branches | Bachlechner et al. 2020 |
//! | [`LayerScaleConfig`] | x + a ⊙ f(x), a `[D]` | Touvron et al. 2021 |
//! | [`DeepNormConfig`] | LN(α x + f(x)) | Wang et al. 2022 |
//! | [`InitialMixConfig`] | layer(r x + m x_0) | modded-nanogpt, nanochat |
//! | [`HighwayConfig`] | (1 − T) x + T f(x), T = σ(x W + b) | Srivastava et al. 2015 |
//! | [`SelfDependencyConfig`] | x + f(x) + ψ(x W_1 + b_1) ⊙ (x W_2 + b_2) | Chai et al. 2020 |
//! | [`DepthLstmConfig`], [`DepthLstmCellConfig`] | an LSTM over depth | Xu et al. 2020 |
//! | [`TreeConfig`], [`IterativeConfig`] | nodes that aggregate layer outputs | Dou et al. 2018 |
//! | [`DenseConfig`] | Σ_j α_j X_j over layer outputs | Pagliardini et al. 2024 |
//! | [`HyperConfig`] | n streams, mixed by learned matrices | Zhu et al. 2024 |
//! | [`MhcConfig`] | n streams, mixed by doubly stochastic matrices | Xie et al. 2025 |
//! | [`AttentionResidualConfig`] | f reads a softmax mixture of all outputs | Chen et al. 2026 |
//! | [`ValueResidualConfig`] | attention mixes its values with the first layer's values | Zhou et al. 2024 |
//! | [`FracConfig`] | m fractions of x, mixed by learned matrices | Zhu et al. 2025 |
//! | [`SkipsConfig`] | layer(x + w s), s an output of the first half; at the end, x_L − λ x_{b+1}, for a layer b | modded-nanogpt, nanochat |
//! | [`SpeedrunConfig`] | smear, x_0 mixture, value embeddings and skips in one model | modded-nanogpt, nanochat |
//! | [`DeltaConfig`] | X + β k (v − kᵀ X), a matrix X in place of x; f gives k | Zhang et al. 2026 |
//! | [`NormPlacementConfig`] | x + f(x), with a norm after f or after the sum, or with the output of the norm before f divided by √(l + 1) in layer l | Kim et al. 2025 and others |
//! | [`SiameseConfig`] | two streams, one post-norm and one pre-norm | Li et al. 2026 |
//! | [`MuddConfig`] | q, k, v and the residual are mixtures of all outputs | Xiao et al. 2025 |
//! | [`HybridNormConfig`] | norms on q, k and v, and u + f(u), u = N(x) | Zhuo et al. 2025 |
//! | [`ValueGatedConfig`] | attention uses v + g v_0: v_0 are the first layer's values, g a gate for each position and head | Gunasekaran et al. 2026 |
//! | [`ValueEmbeddingConfig`] | attention adds rows of token tables to its values | modded-nanogpt, nanochat |
//! | [`ValueSharedConfig`] | all layers use the first layer's values | Zhou et al. 2024 |
//! | [`LimeConfig`] | attention mixes the keys and values of all layers so far | Gerasimov et al. 2025 |

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
mod lime;
mod mhc;
mod modeling;
mod scaled;
mod self_dependency;
mod value_embedding;
mod value_gated;
mod value_residual;
mod value_shared;
mod values;

mod delta;
mod frac;
mod hybrid_norm;
mod mudd;
mod norm_placement;
mod qkv_norms;
mod siamese;
mod skips;
mod speedrun;

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
pub use lime::{Lime, LimeConfig, LimeStart};
pub use mhc::{Mhc, MhcConfig, MhcEnds, MhcForm, MhcResidual, MhcStart};
pub use modeling::modeling;
pub use scaled::{LayerScaleConfig, ReZero, ReZeroConfig, Scaled, SkipInitConfig};
pub use self_dependency::{NormPlace, Psi, SelfDependency, SelfDependencyConfig};
pub use value_embedding::{TableGate, ValueEmbedding, ValueEmbeddingConfig, ValueTables};
pub use value_gated::{ValueGate, ValueGated, ValueGatedConfig};
pub use value_residual::{ValueResidual, ValueResidualConfig, ValueResidualForm};
pub use value_shared::{ValueShared, ValueSharedConfig};

pub use delta::{Channels, Compress, Delta, DeltaConfig, DeltaForm};
pub use frac::{Frac, FracConfig, FractionNorm};
pub use hybrid_norm::{HybridNorm, HybridNormConfig};
pub use mudd::{FirstSource, Mudd, MuddConfig, MuddWays, PrePost};
pub use norm_placement::{NormPlacement, NormPlacementConfig, NormedStart, Placement};
pub use siamese::{Siamese, SiameseConfig, SiameseEnds, SiameseForm};
pub use skips::{Backout, BackoutEnd, SkipWeight, Skips, SkipsConfig};
pub use speedrun::{Smear, SmearConfig, Speedrun, SpeedrunConfig, SpeedrunEnds};

#[cfg(test)]
mod tests;
