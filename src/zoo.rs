//! The one list of architectures.

// A model has a few layers and two ends: no need to box the larger variants.
#![allow(clippy::large_enum_variant)]

use burn::tensor::backend::Backend;
use residual_zoo_core::EndsOf;

/// Declares an enum of architectures, itself an [`Architecture`](crate::core::Architecture): a
/// config that RON reads and that builds the model of any of them, without dynamic dispatch.
///
/// One line per architecture, `Name(Config, Block)`: its config, and the type of its layers, which
/// takes the backend and the connection around the sublayers. Besides the enum itself, `Block`,
/// `Ends` and `BlockCache` are declared, with one variant per architecture. Burn's derive goes by
/// plain names, so `Backend` and `EndsOf` must be imported where the macro stands.
#[macro_export]
macro_rules! zoo {
    (
        $(#[$attribute:meta])*
        pub enum $zoo:ident {
            $($(#[$doc:meta])* $name:ident($config:ty, $($block:ident)::+),)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub enum $zoo {
            $($(#[$doc])* $name($config),)+
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
            $($(#[$doc])* $name($($block)::+<B, C>),)+
        }

        /// The ends of one of the architectures.
        #[derive(burn::module::Module, Debug)]
        pub enum Ends<B: Backend> {
            $($(#[$doc])* $name(EndsOf<B, $config>),)+
        }

        /// The cache of a [`Block`].
        #[derive(Clone)]
        pub enum BlockCache<B: Backend, C: $crate::core::Connection<B>> {
            $(
                $(#[$doc])*
                $name(<$($block)::+<B, C> as $crate::core::ResidualBlock<B>>::Cache),
            )+
        }

        impl<B: Backend, C: $crate::core::Connection<B>> $crate::core::ResidualBlock<B>
            for Block<B, C>
        {
            type Cache = BlockCache<B, C>;

            fn reach(&self) -> usize {
                match self {
                    $(Self::$name(block) => block.reach(),)+
                }
            }

            fn new_cache(&self) -> Self::Cache {
                match self {
                    $(Self::$name(block) => BlockCache::$name(block.new_cache()),)+
                }
            }

            fn forward(&self, stream: $crate::core::Stream<B>) -> $crate::core::Stream<B> {
                match self {
                    $(Self::$name(block) => block.forward(stream),)+
                }
            }

            fn decode(
                &self,
                stream: $crate::core::Stream<B>,
                cache: &mut Self::Cache,
            ) -> $crate::core::Stream<B> {
                #[allow(unreachable_patterns)]
                match (self, cache) {
                    $((Self::$name(block), BlockCache::$name(cache)) => {
                        block.decode(stream, cache)
                    })+
                    _ => unreachable!("the cache was made by a block of another architecture"),
                }
            }
        }

        impl<B: Backend> $crate::core::Ends<B> for Ends<B> {
            fn embed(
                &self,
                ids: burn::tensor::Tensor<B, 2, burn::tensor::Int>,
                start: usize,
            ) -> burn::tensor::Tensor<B, 3> {
                match self {
                    $(Self::$name(ends) => ends.embed(ids, start),)+
                }
            }

            fn unembed(&self, x: burn::tensor::Tensor<B, 3>) -> burn::tensor::Tensor<B, 3> {
                match self {
                    $(Self::$name(ends) => ends.unembed(x),)+
                }
            }
        }

        impl $crate::core::Architecture for $zoo {
            type Block<B: Backend, C: $crate::core::Connection<B>> = Block<B, C>;
            type Ends<B: Backend> = Ends<B>;

            fn name(&self) -> String {
                match self {
                    $(Self::$name(config) => $crate::core::Architecture::name(config),)+
                }
            }

            fn validate(&self) -> Result<(), $crate::core::ConfigError> {
                match self {
                    $(Self::$name(config) => $crate::core::Architecture::validate(config),)+
                }
            }

            fn context(&self) -> usize {
                match self {
                    $(Self::$name(config) => $crate::core::Architecture::context(config),)+
                }
            }

            fn width(&self) -> usize {
                match self {
                    $(Self::$name(config) => config.width(),)+
                }
            }

            fn n_layer(&self) -> usize {
                match self {
                    $(Self::$name(config) => config.n_layer(),)+
                }
            }

            fn n_sublayer(&self) -> usize {
                match self {
                    $(Self::$name(config) => config.n_sublayer(),)+
                }
            }

            fn dropout(&self) -> f64 {
                match self {
                    $(Self::$name(config) => config.dropout(),)+
                }
            }

            fn ends<B: Backend>(
                &self,
                vocab_size: usize,
                n_output: usize,
                device: &B::Device,
            ) -> Ends<B> {
                match self {
                    $(Self::$name(config) => {
                        Ends::$name(config.ends(vocab_size, n_output, device))
                    })+
                }
            }

            fn block<B: Backend, C: $crate::core::Connection<B>>(
                &self,
                layer: usize,
                connection: impl FnMut() -> C,
                device: &B::Device,
            ) -> Block<B, C> {
                match self {
                    $(Self::$name(config) => {
                        Block::$name(config.block(layer, connection, device))
                    })+
                }
            }

            fn ends_cost(&self, vocab_size: usize, n_output: usize) -> $crate::core::Cost {
                match self {
                    $(Self::$name(config) => config.ends_cost(vocab_size, n_output),)+
                }
            }

            fn block_cost(&self, time: usize) -> $crate::core::Cost {
                match self {
                    $(Self::$name(config) => config.block_cost(time),)+
                }
            }

            fn growth(&self, name: &str) -> Option<$crate::core::Growth> {
                match self {
                    $(Self::$name(config) => $crate::core::Architecture::growth(config, name),)+
                }
            }

            fn widen(
                &self,
                narrow: &Self,
                tensors: &$crate::core::Tensors,
            ) -> Result<$crate::core::Tensors, $crate::core::ConfigError> {
                #[allow(unreachable_patterns)]
                match (self, narrow) {
                    $((Self::$name(config), Self::$name(narrow)) => {
                        $crate::core::Architecture::widen(config, narrow, tensors)
                    })+
                    _ => Err($crate::core::not_widened("another architecture")),
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
        /// The Residual Matrix Transformer.
        Rmt(residual_zoo_rmt::RmtConfig, residual_zoo_rmt::Block),
        /// TokenFormer.
        TokenFormer(residual_zoo_tokenformer::TokenFormerConfig, residual_zoo_tokenformer::Block),
    }
}
