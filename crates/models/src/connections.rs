//! The list of connections.

// A model has few connections, so the larger variants need no box.
#![allow(clippy::large_enum_variant)]

use burn::tensor::backend::Backend;
use residual_zoo_core::{ConnectionOf, EndsOf};

/// Declares an enum of connections, which is itself a [`Design`](crate::core::Design). The enum can be read from RON.
///
/// Each connection has one line, `Name(Config)`. The macro also declares `AnyConnection` and `AnyEnds`, each with a
/// variant per connection. Import `Backend`, `ConnectionOf` and `EndsOf` before the call, because Burn's derive needs
/// plain names.
#[macro_export]
macro_rules! connections {
    (
        $(#[$attribute:meta])*
        pub enum $all:ident {
            $($(#[doc = $doc:literal])* $name:ident($config:ty),)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "connection")]
        pub enum $all {
            $($(#[doc = $doc])* $name($config),)+
        }

        $(
            impl From<$config> for $all {
                fn from(config: $config) -> Self {
                    Self::$name(config)
                }
            }
        )+

        /// One of the connections.
        #[derive(burn::module::Module, Debug)]
        pub enum AnyConnection<B: Backend> {
            $($(#[doc = $doc])* $name(ConnectionOf<B, $config>),)+
        }

        /// The ends of a stream with one of the connections.
        #[derive(burn::module::Module, Debug)]
        pub enum AnyEnds<B: Backend> {
            $($(#[doc = $doc])* $name(EndsOf<B, $config>),)+
        }

        impl<B: Backend> $crate::core::Connection<B> for AnyConnection<B> {
            fn update<M: $crate::core::Branch<B>>(
                &self,
                stream: $crate::core::Stream<B>,
                f: $crate::core::BranchFn<'_, B, M>,
            ) -> $crate::core::Stream<B> {
                match self {
                    $(Self::$name(connection) => connection.update(stream, f),)+
                }
            }
        }

        impl<B: Backend> $crate::core::Ends<B> for AnyEnds<B> {
            fn open(&self, x: burn::tensor::Tensor<B, 3>) -> $crate::core::Stream<B> {
                match self {
                    $(Self::$name(ends) => ends.open(x),)+
                }
            }

            fn close(&self, stream: $crate::core::Stream<B>) -> burn::tensor::Tensor<B, 3> {
                match self {
                    $(Self::$name(ends) => ends.close(stream),)+
                }
            }
        }

        impl $crate::core::Design for $all {
            type Connection<B: Backend> = AnyConnection<B>;
            type Ends<B: Backend> = AnyEnds<B>;

            fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(config) => config.name(),)+
                }
            }

            fn validate(
                &self,
                on: &$crate::core::Sites,
            ) -> Result<(), $crate::core::ConfigError> {
                match self {
                    $(Self::$name(config) => config.validate(on),)+
                }
            }

            fn frame(&self, updates: usize) -> $crate::core::Frame {
                match self {
                    $(Self::$name(config) => config.frame(updates),)+
                }
            }

            fn copies(&self) -> usize {
                match self {
                    $(Self::$name(config) => config.copies(),)+
                }
            }

            fn continues(&self, before: &Self) -> bool {
                #[allow(unreachable_patterns)]
                match (self, before) {
                    $((Self::$name(config), Self::$name(before)) => config.continues(before),)+
                    _ => false,
                }
            }

            fn connection<B: Backend>(
                &self,
                on: &$crate::core::Sites,
                i: usize,
                device: &B::Device,
            ) -> AnyConnection<B> {
                match self {
                    $(Self::$name(config) => {
                        AnyConnection::$name(config.connection::<B>(on, i, device))
                    })+
                }
            }

            fn ends<B: Backend>(
                &self,
                on: &$crate::core::Sites,
                device: &B::Device,
            ) -> AnyEnds<B> {
                match self {
                    $(Self::$name(config) => AnyEnds::$name(config.ends::<B>(on, device)),)+
                }
            }

            fn cost(&self, on: &$crate::core::Sites) -> $crate::core::Cost {
                match self {
                    $(Self::$name(config) => config.cost(on),)+
                }
            }
        }

        impl $all {
            /// Name and description of each connection, from its documentation.
            pub const NAMES: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($doc),*))),+];
        }
    };
}

connections! {
    /// The config of a connection.
    pub enum ConnectionConfig {
        /// LAuReL: learned weights, a low-rank map, and earlier streams.
        Laurel(residual_zoo_laurel::LaurelConfig),
        /// x + a f(x), a initially 0.
        SkipInit(residual_zoo_streams::SkipInitConfig),
        /// x + a f(x), a initially 0, without norms in the branches.
        ReZero(residual_zoo_streams::ReZeroConfig),
        /// x + a f(x), with a factor a for each feature.
        LayerScale(residual_zoo_streams::LayerScaleConfig),
        /// LN(α x + f(x)), for deep post-norm models.
        DeepNorm(residual_zoo_streams::DeepNormConfig),
        /// A mixture of x and x_0 before each layer or sublayer.
        InitialMix(residual_zoo_streams::InitialMixConfig),
        /// (1 − T) x + T f(x) with a gate T.
        Highway(residual_zoo_streams::HighwayConfig),
        /// The highway transformer's self-dependency unit, beside x + f(x).
        SelfDependency(residual_zoo_streams::SelfDependencyConfig),
        /// An LSTM over depth instead of residuals, norms and feed-forward networks.
        DepthLstm(residual_zoo_streams::DepthLstmConfig),
        /// An LSTM over depth around each branch.
        DepthLstmCell(residual_zoo_streams::DepthLstmCellConfig),
        /// Hierarchical aggregation of the outputs of layers, as a tree.
        Tree(residual_zoo_streams::TreeConfig),
        /// Hierarchical aggregation of the outputs of layers, one after the other.
        Iterative(residual_zoo_streams::IterativeConfig),
        /// DenseFormer: weighted averages of the outputs of all earlier layers.
        Dense(residual_zoo_streams::DenseConfig),
        /// Hyper-connections: n streams, mixed by learned matrices.
        Hyper(residual_zoo_streams::HyperConfig),
        /// mHC: n streams, mixed by doubly stochastic matrices. Also iHC, mHC-lite and KromHC.
        Mhc(residual_zoo_streams::MhcConfig),
        /// Attention residual: each branch reads a softmax mixture of all outputs.
        AttentionResidual(residual_zoo_streams::AttentionResidualConfig),
        /// Value residual, ResFormer: attention mixes its values with the values of the first layer.
        ValueResidual(residual_zoo_streams::ValueResidualConfig),
        /// Frac-connections: m fractions of the stream, mixed by learned matrices.
        Frac(residual_zoo_streams::FracConfig),
        /// U-net skips across depth, and a backout: an inner output that is subtracted at the end.
        Skips(residual_zoo_streams::SkipsConfig),
        /// The tricks of modded-nanogpt and nanochat together: smear, x_0 mixture, value embeddings, skips, backout.
        Speedrun(residual_zoo_streams::SpeedrunConfig),
        /// Deep delta learning: each branch gives the direction of a delta rule on the stream.
        Delta(residual_zoo_streams::DeltaConfig),
        /// Norms in other places: Peri-LN, after branches (OLMo 2), LayerNorm Scaling (LNS), Mix-LN.
        NormPlacement(residual_zoo_streams::NormPlacementConfig),
        /// SiameseNorm: a post-norm and a pre-norm stream that share every branch.
        Siamese(residual_zoo_streams::SiameseConfig),
        /// MUDD and DDFormer: the inputs q, k, v and r of a layer are mixtures of the outputs of all earlier layers.
        Mudd(residual_zoo_streams::MuddConfig),
        /// HybridNorm and HybridNorm*: norms on queries, keys and values, and a norm of the sum before the feed-forward
        /// network.
        HybridNorm(residual_zoo_streams::HybridNormConfig),
        /// Gated value residual, SATFormer: values plus gated values of the first layer.
        ValueGated(residual_zoo_streams::ValueGatedConfig),
        /// Value embeddings: attention adds rows of token tables to its values.
        ValueEmbedding(residual_zoo_streams::ValueEmbeddingConfig),
        /// Shared values, SVFormer: all layers use the values of the first layer.
        ValueShared(residual_zoo_streams::ValueSharedConfig),
        /// LIMe: attention mixes the keys and values of all layers so far.
        Lime(residual_zoo_streams::LimeConfig),
    }
}
