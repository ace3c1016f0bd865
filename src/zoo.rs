//! The one list of architectures.

use burn::tensor::backend::Backend;
use residual_zoo_core::{BlockOf, EndsOf};

/// Declares an enum of architectures and what follows from it: a config that RON reads and that
/// builds the model of any of them, without dynamic dispatch.
///
/// One line per architecture, `Name(Config)`, where the config implements
/// [`Architecture`](crate::core::Architecture). Besides the enum itself, `Block`, `Ends` and
/// `BlockCache` are declared, with one variant per architecture. Burn's derive goes by plain
/// names, so `Backend`, `BlockOf` and `EndsOf` must be imported where the macro stands.
#[macro_export]
macro_rules! zoo {
    (
        $(#[$attribute:meta])*
        pub enum $zoo:ident { $($(#[$doc:meta])* $name:ident($config:ty),)+ }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub enum $zoo {
            $($(#[$doc])* $name($config),)+
        }

        /// A layer of one of the architectures.
        #[derive(burn::module::Module, Debug)]
        pub enum Block<B: Backend> {
            $(
                $(#[$doc])*
                $name(BlockOf<B, $config>),
            )+
        }

        /// The ends of one of the architectures.
        #[derive(burn::module::Module, Debug)]
        pub enum Ends<B: Backend> {
            $(
                $(#[$doc])*
                $name(EndsOf<B, $config>),
            )+
        }

        /// The cache of a [`Block`].
        #[derive(Clone)]
        pub enum BlockCache<B: Backend> {
            $(
                $(#[$doc])*
                $name(<$crate::core::BlockOf<B, $config> as $crate::core::ResidualBlock<B>>::Cache),
            )+
        }

        impl<B: Backend> $crate::core::ResidualBlock<B> for Block<B> {
            type Cache = BlockCache<B>;

            fn reach(&self) -> usize {
                match self {
                    $(Self::$name(block) => block.reach(),)+
                }
            }

            fn new_cache(&self) -> BlockCache<B> {
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
                cache: &mut BlockCache<B>,
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

        impl $crate::core::ModelConfig for $zoo {
            type Model<B: Backend> =
                $crate::core::Decoder<B, Ends<B>, $crate::core::Stack<B, Block<B>>>;

            fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => <$config as $crate::core::Architecture>::NAME,)+
                }
            }

            fn validate(&self, vocab_size: usize) -> Result<(), $crate::core::ConfigError> {
                match self {
                    $(Self::$name(config) => {
                        $crate::core::ModelConfig::validate(config, vocab_size)
                    })+
                }
            }

            fn context(&self) -> usize {
                match self {
                    $(Self::$name(config) => $crate::core::ModelConfig::context(config),)+
                }
            }

            fn has_dropout(&self) -> bool {
                match self {
                    $(Self::$name(config) => config.has_dropout(),)+
                }
            }

            fn init<B: Backend>(
                &self,
                vocab_size: usize,
                device: &B::Device,
            ) -> Result<Self::Model<B>, $crate::core::ConfigError> {
                use $crate::core::Architecture;
                $crate::core::ModelConfig::validate(self, vocab_size)?;
                let (ends, layers) = match self {
                    $(Self::$name(config) => {
                        let connection = || $crate::core::Plain;
                        let layers = 0..config.n_layer();
                        let layers = layers.map(|i| config.block(i, connection, device));
                        (
                            Ends::$name(config.ends(vocab_size, device)),
                            layers.map(Block::$name).collect(),
                        )
                    })+
                };
                let model = $crate::core::Decoder::new(ends, $crate::core::Stack::new(layers));
                $crate::core::materialise(&model);
                Ok(model)
            }

            fn cost(&self, vocab_size: usize) -> $crate::core::Cost {
                match self {
                    $(Self::$name(config) => config.cost(vocab_size),)+
                }
            }
        }
    };
}

zoo! {
    /// The config of any model of the zoo, as the `model` field of a RON file gives it.
    pub enum ModelConfig {
        /// GPT-2, the baseline.
        Gpt2(residual_zoo_gpt2::Gpt2Config),
    }
}
