//! Compositions: LAuReL around any architecture, a recurrence around any layers, layers of
//! different architectures in turn.

use std::fmt;
use std::marker::PhantomData;

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Architecture, ConfigError, Cost, Decoder, Growth, Increment, Plain, Stack, Update, check,
    materialise,
};
use residual_zoo_laurel::LaurelConfig;
use residual_zoo_recurrent::RecurrentConfig;
use serde::de::value::EnumAccessDeserializer;
use serde::de::{self, DeserializeOwned, EnumAccess, IntoDeserializer, VariantAccess};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// What layer i of a composition is made of.
struct Recipe<'a, A> {
    architecture: &'a A,
    /// Around its sublayers.
    sublayer: Option<&'a LaurelConfig>,
    /// Around the layer.
    layer: Option<&'a LaurelConfig>,
}

impl<A: Architecture> Recipe<'_, A> {
    /// Checks that no connection reads streams from before the layer. In a recurrence each layer
    /// starts a stream of its own, so it would never have them.
    fn check_within_one_layer(&self) -> Result<(), ConfigError> {
        let places = [
            (self.sublayer, self.architecture.n_sublayer(), "sublayers"),
            (self.layer, 1, "a layer"),
        ];
        for (laurel, streams, place) in places {
            let k = laurel.map_or(1, |laurel| laurel.g.k());
            if k > streams {
                let problem = format!(
                    "is {k}, but around {place} inside of a recurrence, where each layer starts \
                     a stream of its own, there are at most {streams}"
                );
                return Err(ConfigError::new("connection.g.k", problem));
            }
        }
        Ok(())
    }
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

    /// What this level is called in RON.
    fn kind(&self) -> &'static str {
        let [alternate, laurel, recurrent] = COMPOSITIONS;
        match self {
            Self::Plain(_) => "model",
            Self::Alternate(_) => alternate,
            Self::Laurel(_) => laurel,
            Self::Recurrent(_) => recurrent,
        }
    }

    fn recipe(&self, layer: usize) -> Result<Recipe<'_, A>, ConfigError> {
        let forbidden = |problem: &str| Err(ConfigError::new(self.kind(), problem));
        match self {
            Self::Plain(architecture) => Ok(Recipe {
                architecture,
                sublayer: None,
                layer: None,
            }),
            Self::Alternate(models) => {
                let entry = layer % models.len().max(1);
                match models.get(entry) {
                    Some(model) => {
                        let recipe = model.recipe(layer);
                        recipe.map_err(|error| error.within(&format!("[{entry}]")))
                    }
                    None => forbidden("is an alternation without an entry"),
                }
            }
            Self::Laurel(LaurelOf {
                connection,
                placement,
                of,
            }) => {
                let mut recipe = of.recipe(layer).map_err(|error| error.within("of"))?;
                let (place, inside) = match placement {
                    Placement::Sublayer => (&mut recipe.sublayer, recipe.layer),
                    Placement::Layer => (&mut recipe.layer, None),
                };
                if place.replace(connection).is_some() || inside.is_some() {
                    return forbidden(
                        "has LAuReL in the same place already; only one with placement Layer can \
                         go around one with placement Sublayer",
                    );
                }
                Ok(recipe)
            }
            Self::Recurrent(_) => forbidden(
                "is a recurrent model; a recurrence is about whole sequences, so it can only be \
                 outermost",
            ),
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

    /// After how many layers the recipes repeat.
    fn period(&self) -> usize {
        match self {
            Self::Plain(_) => 1,
            Self::Alternate(models) => models.len(),
            Self::Laurel(LaurelOf { of, .. }) | Self::Recurrent(RecurrentOf { of, .. }) => {
                of.period()
            }
        }
    }

    /// Checks what stands at this level and below.
    fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Plain(architecture) => architecture.validate(),
            Self::Alternate(models) => {
                if models.iter().any(|model| model.period() > 1) {
                    let problem = "has an alternation among its entries; write one list";
                    return Err(ConfigError::new("Alternate", problem));
                }
                models.iter().enumerate().try_for_each(|(i, model)| {
                    let checked = model.check();
                    checked.map_err(|error| error.within(&format!("[{i}]")))
                })
            }
            Self::Laurel(LaurelOf { connection, of, .. }) => {
                let checked = connection.validate();
                checked.map_err(|error| error.within("connection"))?;
                of.check().map_err(|error| error.within("of"))
            }
            Self::Recurrent(RecurrentOf { recurrence, of }) => {
                let checked = recurrence.validate();
                checked.map_err(|error| error.within("recurrence"))?;
                of.check().map_err(|error| error.within("of"))
            }
        }
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
        let first = self.first()?;
        self.check()?;
        for other in self.architectures() {
            let equal = [
                ("width of the stream", first.width(), other.width()),
                ("n_layer", first.n_layer(), other.n_layer()),
                ("context", first.context(), other.context()),
            ];
            for (what, a, b) in equal {
                if a != b {
                    let problem = format!(
                        "has models of unequal {what}: {a} in the first ({}), {b} in another ({})",
                        first.name(),
                        other.name()
                    );
                    return Err(ConfigError::new("Alternate", problem));
                }
            }
        }
        let (recurrence, layers) = self.recurrence();
        let (period, n_layer) = (layers.period(), first.n_layer());
        if period > n_layer {
            let problem = format!("has {period} entries for {n_layer} layers");
            return Err(ConfigError::new("Alternate", problem));
        }
        let (recurrence, inside) = (recurrence.is_some(), |error: ConfigError| {
            if recurrence.is_some() {
                error.within("of")
            } else {
                error
            }
        });
        (0..period).try_for_each(|layer| {
            let recipe = layers.recipe(layer).map_err(inside)?;
            if recurrence {
                recipe.check_within_one_layer()?;
            }
            Ok(())
        })
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
            Some(recurrence) => recurrence.cost(layers, first.context()),
            None => layers(first.context()),
        };
        first.ends_cost(vocab_size, n_output) + body
    }

    fn growth(&self, name: &str) -> Option<Growth> {
        self.architectures().iter().find_map(|a| a.growth(name))
    }
}

// Serde's derive has no way to put the variants of `A` beside its own.

const NAME: &str = "ModelConfig";
const COMPOSITIONS: [&str; 3] = ["Alternate", "Laurel", "Recurrent"];

impl<A: Serialize + DeserializeOwned> Serialize for Composed<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [alternate, laurel, recurrent] = COMPOSITIONS;
        match self {
            Self::Plain(architecture) => architecture.serialize(serializer),
            Self::Alternate(models) => {
                serializer.serialize_newtype_variant(NAME, 0, alternate, models)
            }
            Self::Laurel(of) => serializer.serialize_newtype_variant(NAME, 1, laurel, of),
            Self::Recurrent(of) => serializer.serialize_newtype_variant(NAME, 2, recurrent, of),
        }
    }
}

impl<'de, A: Serialize + DeserializeOwned> Deserialize<'de> for Composed<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum(NAME, &COMPOSITIONS, Variants(PhantomData))
    }
}

struct Variants<A>(PhantomData<A>);

impl<'de, A: Serialize + DeserializeOwned> de::Visitor<'de> for Variants<A> {
    type Value = Composed<A>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an architecture, or one of {}", COMPOSITIONS.join(", "))
    }

    fn visit_enum<E: EnumAccess<'de>>(self, access: E) -> Result<Composed<A>, E::Error> {
        let (Identifier(name), content) = access.variant()?;
        let [alternate, laurel, recurrent] = COMPOSITIONS;
        if name == alternate {
            content.newtype_variant().map(Composed::Alternate)
        } else if name == laurel {
            content.newtype_variant().map(Composed::Laurel)
        } else if name == recurrent {
            content.newtype_variant().map(Composed::Recurrent)
        } else {
            let variant = EnumAccessDeserializer::new(Named { name, content });
            A::deserialize(variant).map(Composed::Plain)
        }
    }
}

/// The name of a variant.
struct Identifier(String);

impl<'de> Deserialize<'de> for Identifier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Identifier;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a model")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Identifier, E> {
                Ok(Identifier(name.into()))
            }
        }
        deserializer.deserialize_identifier(Text)
    }
}

/// A variant whose name has been read, as if it had not.
struct Named<V> {
    name: String,
    content: V,
}

impl<'de, V: VariantAccess<'de>> EnumAccess<'de> for Named<V> {
    type Error = V::Error;
    type Variant = V;

    fn variant_seed<S: de::DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, V), V::Error> {
        let name: de::value::StringDeserializer<V::Error> = self.name.into_deserializer();
        let unknown = |error| {
            let compositions = COMPOSITIONS.join("`, `");
            de::Error::custom(format!("{error}; compositions are `{compositions}`"))
        };
        let name = seed.deserialize(name).map_err(unknown)?;
        Ok((name, self.content))
    }
}
