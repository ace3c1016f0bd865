//! Compositions: LAuReL around any architecture, a recurrence around any layers, layers of
//! different architectures in turn.

mod recipe;
mod variants;

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Architecture, ConfigError, Cost, Decoder, Growth, Increment, Plain, Stack, Tensors, Update,
    check, materialise, not_widened,
};
use residual_zoo_laurel::LaurelConfig;
use residual_zoo_recurrent::RecurrentConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::body::{AnyConnection, Body, Layer};

/// A model config: one of the architectures `A`, or a composition of them.
///
/// In RON an architecture stands as it is, and compositions around it:
///
/// ```ron
/// Recurrent(
///   recurrence: (block: 16),
///   of: Laurel(connection: (rw: Softmax, g: Lr(r: 4)), of: Rmt(n_layer: 1)),
/// )
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Composed<A> {
    /// An architecture with plain connections.
    Plain(A),
    /// Layer i is layer i of entry i mod n. The entries have the same width, depth and context;
    /// the ends are those of the first, and with them learned positions: behind one without, such
    /// as a rotary TokenFormer, layers that rely on learned positions have none.
    Alternate(Vec<Composed<A>>),
    /// LAuReL in place of the plain connections.
    Laurel(LaurelOf<A>),
    /// The layers as τ of a recurrent transformer.
    Recurrent(RecurrentOf<A>),
}

/// LAuReL around the sublayers or the layers of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "A: Serialize + DeserializeOwned")]
pub struct LaurelOf<A> {
    /// The variant.
    #[serde(default)]
    pub connection: LaurelConfig,
    /// Where the connections are.
    #[serde(default)]
    pub placement: Placement,
    /// The model around which they are put.
    pub of: Box<Composed<A>>,
}

/// Where connections are put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Around each sublayer: LAuReL's definition.
    #[default]
    Sublayer,
    /// Around each layer, f(x) = layer(x) − x, with plain connections kept inside: what the
    /// parameter counts of the LAuReL paper fit.
    Layer,
}

/// A recurrent transformer around the layers of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "A: Serialize + DeserializeOwned")]
pub struct RecurrentOf<A> {
    /// Block size, α and form.
    #[serde(default)]
    pub recurrence: RecurrentConfig,
    /// The model whose layers are τ.
    pub of: Box<Composed<A>>,
}

impl<A: Architecture> Composed<A> {
    /// The architecture that `config` describes, with plain connections.
    pub fn of(config: impl Into<A>) -> Self {
        Self::Plain(config.into())
    }

    /// This model with LAuReL around every sublayer.
    pub fn laurel(self, connection: LaurelConfig) -> Self {
        Self::Laurel(LaurelOf {
            connection,
            placement: Placement::Sublayer,
            of: Box::new(self),
        })
    }

    /// This model with LAuReL around every layer.
    pub fn laurel_per_layer(self, connection: LaurelConfig) -> Self {
        Self::Laurel(LaurelOf {
            connection,
            placement: Placement::Layer,
            of: Box::new(self),
        })
    }

    /// The recurrent transformer whose τ are the layers of this model.
    pub fn recurrent(self, recurrence: RecurrentConfig) -> Self {
        Self::Recurrent(RecurrentOf {
            recurrence,
            of: Box::new(self),
        })
    }

    /// The architectures inside.
    pub fn architectures(&self) -> Vec<&A> {
        match self {
            Self::Plain(architecture) => vec![architecture],
            Self::Alternate(models) => models.iter().flat_map(Self::architectures).collect(),
            Self::Laurel(LaurelOf { of, .. }) | Self::Recurrent(RecurrentOf { of, .. }) => {
                of.architectures()
            }
        }
    }

    /// The architecture whose ends, width, depth and context the model has.
    fn first(&self) -> Result<&A, ConfigError> {
        let none = || ConfigError::new("Alternate", "has no entry; give at least one model");
        self.architectures().first().copied().ok_or_else(none)
    }

    /// The recurrence, if there is one, and the layers inside.
    fn recurrence(&self) -> (Option<&RecurrentConfig>, &Self) {
        match self {
            Self::Recurrent(RecurrentOf { recurrence, of }) => (Some(recurrence), of),
            other => (None, other),
        }
    }

    fn layer<B: Backend>(
        &self,
        layer: usize,
        device: &B::Device,
    ) -> Result<LayerOf<B, A>, ConfigError> {
        let recipe = self.recipe(layer)?;
        let width = recipe.architecture.width();
        let connection = |laurel: Option<&LaurelConfig>| match laurel {
            Some(laurel) => AnyConnection::Laurel(laurel.init(width, device)),
            None => AnyConnection::Plain(Plain),
        };
        let block = || connection(recipe.sublayer);
        let block = recipe.architecture.block(layer, block, device);
        Ok(match recipe.layer {
            Some(_) => Layer::Whole(Update::new(Increment::new(block), connection(recipe.layer))),
            None => Layer::Sublayers(block),
        })
    }

    /// The cost of all layers on sequences of `time` tokens.
    fn layers_cost(&self, time: usize) -> Cost {
        let Ok(first) = self.first() else {
            return Cost::default();
        };
        let layer = |layer: usize| {
            let Ok(recipe) = self.recipe(layer) else {
                return Cost::default();
            };
            let (architecture, width) = (recipe.architecture, recipe.architecture.width());
            let laurel = |laurel: Option<&LaurelConfig>, count: usize| {
                laurel.map_or_else(Cost::default, |laurel| laurel.cost(width) * count)
            };
            architecture.block_cost(time)
                + laurel(recipe.sublayer, architecture.n_sublayer())
                + laurel(recipe.layer, 1)
        };
        let period = self.period().min(first.n_layer());
        (0..period)
            .map(|i| layer(i) * (first.n_layer() - i).div_ceil(period))
            .fold(Cost::default(), |sum, cost| sum + cost)
    }
}

/// A layer of a composition of `A`.
pub type LayerOf<B, A> = Layer<B, BlockOf<B, A>>;
type BlockOf<B, A> = <A as Architecture>::Block<B, AnyConnection<B>>;

impl<A: Architecture> residual_zoo_core::ModelConfig for Composed<A> {
    type Model<B: Backend> = Decoder<B, A::Ends<B>, Body<B, BlockOf<B, A>>>;

    fn name(&self) -> String {
        match self {
            Self::Plain(architecture) => architecture.name(),
            Self::Alternate(models) => {
                let names: Vec<_> = models.iter().map(|model| model.name()).collect();
                names.join(" / ")
            }
            Self::Laurel(LaurelOf { connection, of, .. }) => {
                format!("{} ({})", connection.name(), of.name())
            }
            Self::Recurrent(RecurrentOf { of, .. }) => format!("recurrent ({})", of.name()),
        }
    }

    fn validate(&self, vocab_size: usize) -> Result<(), ConfigError> {
        check::at_least_one("vocab_size", vocab_size)?;
        self.first()?;
        self.check()?;
        self.check_equal_sizes()?;
        self.check_recipes()
    }

    fn context(&self) -> usize {
        self.first().map_or(0, |first| first.context())
    }

    fn has_dropout(&self) -> bool {
        self.architectures().iter().any(|a| a.dropout() > 0.0)
    }

    fn build<B: Backend>(
        &self,
        vocab_size: usize,
        n_output: usize,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError> {
        self.validate(vocab_size)?;
        check::at_least_one("n_output", n_output)?;
        let first = self.first()?;
        let (recurrence, layers) = self.recurrence();
        let ends = first.ends(vocab_size, n_output, device);
        let layers = (0..first.n_layer()).map(|layer| layers.layer(layer, device));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let body = match recurrence {
            Some(recurrence) => Body::Recurrent(recurrence.init(layers, device)),
            None => Body::Stack(Stack::new(layers)),
        };
        let model = Decoder::new(ends, body);
        materialise(&model);
        Ok(model)
    }

    fn cost_of(&self, vocab_size: usize, n_output: usize) -> Cost {
        let Ok(first) = self.first() else {
            return Cost::default();
        };
        let (recurrence, layers) = self.recurrence();
        let layers = |time: usize| layers.layers_cost(time);
        let body = match recurrence {
            Some(recurrence) => {
                recurrence.cost(layers, first.context())
                    + recurrence.carry_cost(first.width()) * first.n_layer()
            }
            None => layers(first.context()),
        };
        first.ends_cost(vocab_size, n_output) + body
    }

    fn growth(&self, name: &str) -> Option<Growth> {
        self.architectures().iter().find_map(|a| a.growth(name))
    }

    fn widen(&self, narrow: &Self, tensors: &Tensors) -> Result<Tensors, ConfigError> {
        match (self, narrow) {
            (Self::Plain(config), Self::Plain(narrow)) => config.widen(narrow, tensors),
            _ => Err(not_widened("a composition")),
        }
    }
}
