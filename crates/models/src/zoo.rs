//! The list of architectures.

// A model has few layers, so the larger variants need no box.
#![allow(clippy::large_enum_variant)]

use burn::tensor::backend::Backend;
use residual_zoo_core::EmbeddingsOf;

use crate::ConnectionConfig;

/// Declares an enum of architectures, which is itself an [`Architecture`](crate::core::Architecture). The enum can be
/// read from RON, and builds the model of any variant without dynamic dispatch. A [`Composition`](crate::Composition)
/// of the enum is a model config.
///
/// Each architecture has one line, `Name(Config, Block)`: its config and the type of its layers. The type has two
/// parameters, the backend and the connection around the sublayers. The macro also declares `Block`, `Embeddings`,
/// `BlockCache` and `Written`, each with a variant per architecture. Import `Backend` and `EmbeddingsOf` before the
/// call, because Burn's derive needs plain names. After the enum, `with` names the enum of connections from
/// [`connections!`](macro@crate::connections).
///
/// A line `To from From: convert` lets a model of `To` start from the weights of a model of `From`. `convert` takes
/// the config of `To` and the weights. It returns the weights of `To`, or an error that can become a
/// [`ConfigError`](crate::core::ConfigError).
#[macro_export]
macro_rules! zoo {
    (
        $(#[$attribute:meta])*
        pub enum $zoo:ident {
            $($(#[doc = $doc:literal])* $name:ident($config:ty, $($block:ident)::+),)+
        }
        with $connections:ident;
        $($to:ident from $from:ident: $convert:path,)*
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub enum $zoo {
            $($(#[doc = $doc])* $name($config),)+
        }

        $(
            impl From<$config> for $zoo {
                fn from(config: $config) -> Self {
                    Self::$name(config)
                }
            }
        )+

        /// A layer of one of the architectures, with connections of type `C`.
        #[derive(burn::module::Module, Debug)]
        pub enum Block<B: Backend, C> {
            $($(#[doc = $doc])* $name($($block)::+<B, C>),)+
        }

        /// The embeddings of one of the architectures.
        #[derive(burn::module::Module, Debug)]
        pub enum Embeddings<B: Backend> {
            $($(#[doc = $doc])* $name(EmbeddingsOf<B, $config>),)+
        }

        /// The cache of a [`Block`].
        #[derive(Clone)]
        pub enum BlockCache<B: Backend, C: $crate::core::Connection<B>> {
            $(
                $(#[doc = $doc])*
                $name(<$($block)::+<B, C> as $crate::core::ResidualBlock<B>>::Cache),
            )+
        }

        impl<B: Backend, C: $crate::core::Connection<B>> $crate::core::Cache for BlockCache<B, C> {
            fn joins(&self) -> bool {
                match self {
                    $(Self::$name(cache) => cache.joins(),)+
                }
            }

            fn join(&mut self, other: Self) {
                #[allow(unreachable_patterns)]
                match (self, other) {
                    $((Self::$name(cache), Self::$name(other)) => cache.join(other),)+
                    _ => unreachable!("the cache was made by a block of another architecture"),
                }
            }

            fn keep(&mut self, keep: &[bool]) {
                match self {
                    $(Self::$name(cache) => cache.keep(keep),)+
                }
            }
        }

        /// The form of a model config in a file.
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "model", deny_unknown_fields)]
        #[allow(missing_docs)] // The fields are documented in `Composition`.
        pub enum Written {
            $($(#[doc = $doc])* $name($config),)+
            /// Any other model: several architectures, a connection, a recurrence, a depth loop or patches.
            Composed {
                layers: Vec<$zoo>,
                #[serde(default)]
                connection: Option<$crate::PlacedConnection<$connections>>,
                #[serde(default)]
                recurrence: Option<$crate::recurrent::RecurrentConfig>,
                // Omitted if `None`, so the files of models without a depth loop or patches lack these fields.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                loops: Option<$crate::loops::LoopsConfig>,
                #[serde(default, skip_serializing_if = "Option::is_none")]
                patches: Option<$crate::vit::Patches>,
            },
        }

        impl From<Written> for $crate::Composition<$zoo> {
            fn from(written: Written) -> Self {
                match written {
                    $(Written::$name(config) => Self::of(config),)+
                    Written::Composed { layers, connection, recurrence, loops, patches } => {
                        Self { layers, connection, recurrence, loops, patches }
                    }
                }
            }
        }

        impl From<$crate::Composition<$zoo>> for Written {
            fn from(composition: $crate::Composition<$zoo>) -> Self {
                match composition.plain() {
                    $(Some($zoo::$name(config)) => Self::$name(config.clone()),)+
                    None => {
                        let $crate::Composition { layers, connection, recurrence, loops, patches } =
                            composition;
                        Self::Composed { layers, connection, recurrence, loops, patches }
                    }
                }
            }
        }

        impl $crate::compose::List for $zoo {
            type Written = Written;
            type Connections = $connections;

            const NAMES: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($doc),*))),+];
        }

        impl<B: Backend, C: $crate::core::Connection<B>> $crate::core::ResidualBlock<B>
            for Block<B, C>
        {
            type Cache = BlockCache<B, C>;

            fn new_cache(&self) -> Self::Cache {
                match self {
                    $(Self::$name(block) => BlockCache::$name(block.new_cache()),)+
                }
            }

            fn forward(
                &self,
                stream: $crate::core::Stream<B>,
                cache: Option<&mut Self::Cache>,
            ) -> $crate::core::Stream<B> {
                #[allow(unreachable_patterns)]
                match (self, cache) {
                    $(
                        (Self::$name(block), None) => block.forward(stream, None),
                        (Self::$name(block), Some(BlockCache::$name(cache))) => {
                            block.forward(stream, Some(cache))
                        }
                    )+
                    _ => unreachable!("the cache was made by a block of another architecture"),
                }
            }
        }

        impl<B: Backend> $crate::core::Embeddings<B> for Embeddings<B> {
            fn embed(
                &self,
                ids: burn::tensor::Tensor<B, 2, burn::tensor::Int>,
                seen: &$crate::core::Seen,
            ) -> burn::tensor::Tensor<B, 3> {
                match self {
                    $(Self::$name(embeddings) => embeddings.embed(ids, seen),)+
                }
            }

            fn embed_images(
                &self,
                images: burn::tensor::Tensor<B, 4>,
            ) -> burn::tensor::Tensor<B, 3> {
                match self {
                    $(Self::$name(embeddings) => embeddings.embed_images(images),)+
                }
            }

            fn unembed(&self, x: burn::tensor::Tensor<B, 3>) -> burn::tensor::Tensor<B, 3> {
                match self {
                    $(Self::$name(embeddings) => embeddings.unembed(x),)+
                }
            }

            fn final_norm(
                &self,
                x: burn::tensor::Tensor<B, 3>,
            ) -> burn::tensor::Tensor<B, 3> {
                match self {
                    $(Self::$name(embeddings) => embeddings.final_norm(x),)+
                }
            }
        }

        impl $crate::core::Architecture for $zoo {
            type Block<B: Backend, C: $crate::core::Connection<B>> = Block<B, C>;
            type Embeddings<B: Backend> = Embeddings<B>;

            fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(config) => config.name(),)+
                }
            }

            fn shape(&self) -> $crate::core::Shape {
                match self {
                    $(Self::$name(config) => config.shape(),)+
                }
            }

            fn streams(&self) -> Vec<$crate::core::StreamSize> {
                match self {
                    $(Self::$name(config) => config.streams(),)+
                }
            }

            fn positions(&self, layer: usize, time: usize, frame: &$crate::core::Frame) -> usize {
                match self {
                    $(Self::$name(config) => config.positions(layer, time, frame),)+
                }
            }

            fn attention(&self) -> Option<$crate::core::AttentionSize> {
                match self {
                    $(Self::$name(config) => config.attention(),)+
                }
            }

            fn reads_images(&self) -> bool {
                match self {
                    $(Self::$name(config) => config.reads_images(),)+
                }
            }

            fn hashed(&self) -> Self {
                match self {
                    $(Self::$name(config) => Self::$name(config.hashed()),)+
                }
            }

            fn has_statistics(&self) -> bool {
                match self {
                    $(Self::$name(config) => config.has_statistics(),)+
                }
            }

            fn is_constrained(&self) -> bool {
                match self {
                    $(Self::$name(config) => config.is_constrained(),)+
                }
            }

            fn validate(&self) -> Result<(), $crate::core::ConfigError> {
                match self {
                    $(Self::$name(config) => config.validate(),)+
                }
            }

            fn embeddings<B: Backend>(
                &self,
                vocabulary: $crate::core::Vocabulary,
                frame: &$crate::core::Frame,
                device: &B::Device,
            ) -> Embeddings<B> {
                match self {
                    $(Self::$name(config) => {
                        Embeddings::$name(config.embeddings(vocabulary, frame, device))
                    })+
                }
            }

            fn block<B: Backend, C: $crate::core::Connection<B>>(
                &self,
                layer: usize,
                frame: &$crate::core::Frame,
                connection: impl FnMut() -> C,
                device: &B::Device,
            ) -> Block<B, C> {
                match self {
                    $(Self::$name(config) => {
                        Block::$name(config.block(layer, frame, connection, device))
                    })+
                }
            }

            fn tables(
                &self,
                vocabulary: $crate::core::Vocabulary,
                frame: &$crate::core::Frame,
            ) -> Option<$crate::core::TokenEmbeddingsOptions> {
                match self {
                    $(Self::$name(config) => config.tables(vocabulary, frame),)+
                }
            }

            fn embeddings_cost(
                &self,
                vocabulary: $crate::core::Vocabulary,
                frame: &$crate::core::Frame,
            ) -> $crate::core::Cost {
                match self {
                    $(Self::$name(config) => config.embeddings_cost(vocabulary, frame),)+
                }
            }

            fn block_cost(&self, layer: usize, time: usize, frame: &$crate::core::Frame) -> $crate::core::Cost {
                match self {
                    $(Self::$name(config) => config.block_cost(layer, time, frame),)+
                }
            }
        }

        impl $crate::core::Transfer for $zoo {
            fn tuned(&self) -> Option<&'static str> {
                match self {
                    $(Self::$name(config) => config.tuned(),)+
                }
            }

            fn rate(&self, name: &str) -> f64 {
                match self {
                    $(Self::$name(config) => config.rate(name),)+
                }
            }

            fn has_rates(&self) -> bool {
                match self {
                    $(Self::$name(config) => config.has_rates(),)+
                }
            }

            fn grows_from(&self, smaller: &Self) -> Result<(), $crate::core::ConfigError> {
                #[allow(unreachable_patterns)]
                match (self, smaller) {
                    $((Self::$name(config), Self::$name(smaller)) => config.grows_from(smaller),)+
                    $((Self::$to(_), Self::$from(_)) => Ok(()),)*
                    _ => {
                        let name = $crate::core::Architecture::name;
                        let (this, from) = (name(self), name(smaller));
                        let problem = format!("is {this}, which cannot start from weights of {from}");
                        Err($crate::core::ConfigError::new("model", problem))
                    }
                }
            }

            fn grow(
                &self,
                smaller: &Self,
                weights: $crate::core::Tensors,
                fresh: &$crate::core::Tensors,
            ) -> Result<$crate::core::Tensors, $crate::core::ConfigError> {
                #[allow(unreachable_patterns)]
                match (self, smaller) {
                    $((Self::$name(config), Self::$name(smaller)) => {
                        config.grow(smaller, weights, fresh)
                    })+
                    $((Self::$to(config), Self::$from(_)) => Ok($convert(config, &weights)?),)*
                    _ => Ok(weights),
                }
            }

            fn merge(
                &self,
                weights: &$crate::core::Tensors,
                (other, of_other): (&Self, &$crate::core::Tensors),
                value_scale: f64,
            ) -> Result<(Self, $crate::core::Tensors), $crate::core::ConfigError> {
                match (self, other) {
                    $((Self::$name(config), Self::$name(other)) => {
                        let merged = config.merge(weights, (other, of_other), value_scale)?;
                        Ok((Self::$name(merged.0), merged.1))
                    })+
                    #[allow(unreachable_patterns)]
                    _ => {
                        let name = $crate::core::Architecture::name;
                        let (this, other) = (name(self), name(other));
                        let problem = format!("is {this}, which cannot be merged with {other}");
                        Err($crate::core::ConfigError::new("model", problem))
                    }
                }
            }
        }
    };
}

zoo! {
    /// The architectures of the zoo.
    pub enum Zoo {
        /// GPT-2, the baseline.
        Gpt2(residual_zoo_gpt2::Gpt2Config, residual_zoo_gpt2::Block),
        /// Llama (the modern decoder), also as Qwen, OLMo, Gemma, nanochat.
        Llama(residual_zoo_llama::LlamaConfig, residual_zoo_llama::Block),
        /// nGPT, whose states and weight vectors have length 1.
        Ngpt(residual_zoo_ngpt::NgptConfig, residual_zoo_ngpt::Block),
        /// The Residual Matrix Transformer.
        Rmt(residual_zoo_rmt::RmtConfig, residual_zoo_rmt::Block),
        /// TokenFormer, whose weights are tokens.
        TokenFormer(residual_zoo_tokenformer::TokenFormerConfig, residual_zoo_tokenformer::Block),
        /// ResNet, which reads images.
        ResNet(residual_zoo_resnet::ResNetConfig, residual_zoo_resnet::Block),
    }
    with ConnectionConfig;
    TokenFormer from Gpt2: residual_zoo_tokenformer::from_transformer,
}
