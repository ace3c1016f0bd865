//! Compositions: layers of one or several architectures, optionally with a connection around each
//! sublayer or layer, inside a recurrence, or on the patches of images.

use std::ops::RangeFrom;

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Architecture, ConfigError, ConnectionOf, Cost, Decoder, Design, EndsOf, Frame, Increment,
    ModelConfig, Reads, Shape, Sites, Stack, Tensors, Update, Vocabulary,
};
use residual_zoo_recurrent::RecurrentConfig;
use residual_zoo_vit::{PatchEmbeddings, Patches};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::ConnectionConfig;
use crate::body::{Body, Layer, Tables};

/// The config of any model of a zoo `A`.
///
/// In RON, a model of one architecture with plain connections is written as that architecture, such as
/// `Gpt2(n_layer: 4)`. Any other model is written as
///
/// ```ron
/// Composed(
///   layers: [Rmt(n_layer: 1)],
///   connection: PerSublayer(Laurel(weights: DoubleSoftmax, augmentation: LowRank(rank: 4))),
///   recurrence: (block: 16),
/// )
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(into = "A::Written", bound = "A: List")]
pub struct Composition<A: List> {
    /// Layer i is made by entry i mod n. All entries have the same width, depth and context. The first
    /// entry makes the embeddings, including learned positions. If the first entry has none, such as a
    /// rotary TokenFormer, layers that need learned positions do not get any.
    pub layers: Vec<A>,
    /// The connection. `None` means the plain one.
    pub connection: Option<PlacedConnection<A::Connections>>,
    /// The recurrence around all layers, which are its τ.
    pub recurrence: Option<RecurrentConfig>,
    /// The patches of images, if the model reads images instead of token ids. Its layers then have no causal mask, and the
    /// `context` of the architecture does not matter.
    pub patches: Option<Patches>,
}

/// A connection and its placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "connection")]
pub enum PlacedConnection<D = ConnectionConfig> {
    /// Around each sublayer, as most connections are defined.
    PerSublayer(D),
    /// Around each layer, f(x) = layer(x) − x, with plain connections inside. This fits the parameter
    /// counts of the LAuReL paper.
    PerLayer(D),
}

/// A list of architectures, as [`zoo!`](crate::zoo) declares it.
pub trait List: Architecture {
    /// The form of a composition in a file: a variant for each architecture, and `Composed`.
    type Written: Serialize + DeserializeOwned + From<Composition<Self>> + Into<Composition<Self>>;
    /// The connections, as [`connections!`](macro@crate::connections) declares them.
    type Connections: Design;

    /// The architectures, and what each is, as their documentation says.
    const NAMES: &'static [(&'static str, &'static str)];
}

impl<'de, A: List> Deserialize<'de> for Composition<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        A::Written::deserialize(deserializer).map(Into::into)
    }
}

impl<D> PlacedConnection<D> {
    fn config(&self) -> &D {
        match self {
            Self::PerSublayer(connection) | Self::PerLayer(connection) => connection,
        }
    }
}

impl<A: List> Composition<A> {
    /// The model of one architecture with plain connections.
    pub fn of(architecture: impl Into<A>) -> Self {
        Self::in_turn([architecture.into()])
    }

    /// Layers of several architectures in turn.
    pub fn in_turn(layers: impl Into<Vec<A>>) -> Self {
        Self {
            layers: layers.into(),
            connection: None,
            recurrence: None,
            patches: None,
        }
    }

    /// This model with `connection` around every sublayer.
    pub fn per_sublayer(self, connection: impl Into<A::Connections>) -> Self {
        Self {
            connection: Some(PlacedConnection::PerSublayer(connection.into())),
            ..self
        }
    }

    /// This model with `connection` around every layer.
    pub fn per_layer(self, connection: impl Into<A::Connections>) -> Self {
        Self {
            connection: Some(PlacedConnection::PerLayer(connection.into())),
            ..self
        }
    }

    /// The recurrent transformer whose τ are the layers of this model.
    pub fn recurrent(self, recurrence: RecurrentConfig) -> Self {
        Self {
            recurrence: Some(recurrence),
            ..self
        }
    }

    /// This model on the patches of images, a vision transformer.
    pub fn on_patches(self, patches: Patches) -> Self {
        Self {
            patches: Some(patches),
            ..self
        }
    }

    /// The architecture, if this is one architecture with plain connections, no recurrence and no patches.
    pub fn plain(&self) -> Option<&A> {
        let Self {
            layers,
            connection: None,
            recurrence: None,
            patches: None,
        } = self
        else {
            return None;
        };
        match layers.as_slice() {
            [architecture] => Some(architecture),
            _ => None,
        }
    }

    /// The entry that makes layer `layer`.
    fn entry(&self, layer: usize) -> &A {
        &self.layers[layer % self.layers.len()]
    }

    /// The connections on a stream.
    fn sites(&self) -> Sites {
        let Shape {
            width,
            n_layer,
            n_sublayer,
            ..
        } = self.shape();
        let around_layers = matches!(self.connection, Some(PlacedConnection::PerLayer(_)));
        let all = |per_layer| Sites {
            around_layers,
            recurrent: self.recurrence.is_some(),
            mixed: self.layers.len() > 1,
            ..Sites::sublayers(
                width,
                // Each layer of a recurrence has a stream of its own.
                self.recurrence.as_ref().map_or(n_layer, |_| 1),
                per_layer,
            )
        };
        let sites = all(if around_layers { 1 } else { n_sublayer });
        match self
            .connection
            .as_ref()
            .map(|placed| placed.config().frame(&sites))
        {
            Some(frame) if !frame.feed_forward => all(1),
            _ => sites,
        }
    }

    /// What the connection needs of the model, and what it reads.
    fn frame(&self) -> Frame {
        let placed = self.connection.as_ref();
        let frame = placed.map(|placed| placed.config().frame(&self.sites()));
        Frame {
            causal: self.patches.is_none(),
            ..frame.unwrap_or_default()
        }
    }

    /// The numbers of the connections of layer `layer` on its stream.
    fn numbers(&self, layer: usize) -> RangeFrom<usize> {
        let on_stream = self.recurrence.as_ref().map_or(layer, |_| 0);
        on_stream * self.sites().per_layer..
    }

    fn layer<B: Backend>(&self, layer: usize, device: &B::Device) -> LayerOf<B, A> {
        let (entry, sites, frame) = (self.entry(layer), self.sites(), self.frame());
        let mut numbers = self.numbers(layer);
        let mut next = |design: &A::Connections| {
            let i = numbers.next().unwrap_or_default();
            Some(design.connection(&sites, i, device))
        };
        match &self.connection {
            None => Layer::Sublayers(entry.block(layer, &frame, || None, device)),
            Some(PlacedConnection::PerSublayer(design)) => {
                Layer::Sublayers(entry.block(layer, &frame, || next(design), device))
            }
            Some(PlacedConnection::PerLayer(design)) => {
                let block = entry.block(layer, &frame, || None, device);
                Layer::Whole(Update::new(Increment::new(block), next(design)))
            }
        }
    }

    fn ends<B: Backend>(&self, device: &B::Device) -> Option<EndsOf<B, A::Connections>> {
        let placed = self.connection.as_ref()?;
        Some(placed.config().ends(&self.sites(), device))
    }

    /// The cost of all layers on sequences of `time` tokens.
    fn layers_cost(&self, time: usize) -> Cost {
        let (n_layer, period) = (self.shape().n_layer, self.layers.len());
        let frame = self.frame();
        let entries = self.layers.iter().enumerate().take(n_layer);
        let layers = entries
            .map(|(i, entry)| entry.block_cost(time, &frame) * (n_layer - i).div_ceil(period))
            .fold(Cost::default(), |sum, cost| sum + cost);
        let streams = self.recurrence.as_ref().map_or(1, |_| n_layer);
        match &self.connection {
            Some(placed) => layers + placed.config().cost(&self.sites()) * streams,
            None => layers,
        }
    }

    fn validate_layers(&self) -> Result<(), ConfigError> {
        let error = |problem: String| Err(ConfigError::new("layers", problem));
        let Some(first) = self.layers.first() else {
            return error("is empty; name at least one architecture".into());
        };
        for (i, entry) in self.layers.iter().enumerate() {
            let valid = entry.validate();
            valid.map_err(|error| match self.plain() {
                Some(_) => error,
                None => error.within(&format!("layers.{i}")),
            })?;
            let (a, b) = (first.shape(), entry.shape());
            let equal = [
                ("width of the stream", a.width, b.width),
                ("n_layer", a.n_layer, b.n_layer),
                ("context", a.context, b.context),
            ];
            if let Some((what, a, b)) = equal.into_iter().find(|(_, a, b)| a != b) {
                return error(format!(
                    "must have the same {what} in all entries; it is {a} in entry 0 ({}) and {b} in entry \
                     {i} ({})",
                    first.name(),
                    entry.name()
                ));
            }
        }
        let tuned = self.layers.iter().find_map(A::tuned);
        if let (Some(field), None) = (tuned, self.plain()) {
            let problem = format!(
                "has an entry with `{field}`, which freezes the other weights of its layers; the rest of a composition would \
                 still be trained, so set it only in a model of one architecture with plain connections"
            );
            return error(problem);
        }
        let (entries, n_layer) = (self.layers.len(), first.shape().n_layer);
        if entries > n_layer {
            return error(format!(
                "has {entries} entries, but the model has only {n_layer} layers"
            ));
        }
        Ok(())
    }
}

/// A layer of a composition of `A`.
pub type LayerOf<B, A> = Layer<B, BlockOf<B, A>, Option<ConnectionIn<B, A>>>;
type ConnectionIn<B, A> = ConnectionOf<B, <A as List>::Connections>;
type BlockOf<B, A> = <A as Architecture>::Block<B, Option<ConnectionIn<B, A>>>;
type BodyOf<B, A> =
    Body<B, BlockOf<B, A>, Option<ConnectionIn<B, A>>, Option<EndsOf<B, <A as List>::Connections>>>;

impl<A: List> ModelConfig for Composition<A> {
    type Model<B: Backend> = Decoder<B, Tables<B, A::Embeddings<B>>, BodyOf<B, A>>;

    fn name(&self) -> String {
        let layers: Vec<_> = self.layers.iter().map(A::name).collect();
        let mut name = layers.join(" / ");
        if let Some(connection) = &self.connection {
            name = format!("{} ({name})", connection.config().name());
        }
        if self.recurrence.is_some() {
            name = format!("recurrent ({name})");
        }
        if self.patches.is_some() {
            name = format!("ViT ({name})");
        }
        name
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.validate_layers()?;
        if let Some(connection) = &self.connection {
            let valid = connection.config().validate(&self.sites());
            valid.map_err(|error| error.within("connection"))?;
        }
        if let Some(recurrence) = &self.recurrence {
            let valid = recurrence.validate();
            valid.map_err(|error| error.within("recurrence"))?;
        }
        if let Some(patches) = &self.patches {
            patches
                .validate()
                .map_err(|error| error.within("patches"))?;
            if self.recurrence.is_some() {
                let problem = "is set, but patches have no order in time; leave it out";
                return Err(ConfigError::new("recurrence", problem));
            }
            let first = self.entry(0);
            if first.tables(1.into(), &self.frame()).is_none() {
                let problem = format!(
                    "do not go with {}, which reads only text; put another architecture first",
                    first.name()
                );
                return Err(ConfigError::new("patches", problem));
            }
        }
        Ok(())
    }

    fn reads(&self, vocabulary: Vocabulary) -> Result<(), ConfigError> {
        match (vocabulary.reads, &self.patches) {
            (Reads::Ids(_), None) => Ok(()),
            (Reads::Images(image), Some(patches)) => {
                let fits = patches.fit(image);
                fits.map_err(|error| error.within("model.patches"))
            }
            (Reads::Images(_), None) => Err(ConfigError::new(
                "model",
                "reads token ids, but the data are images; give it patches, as in \
                 Composed(layers: [Gpt2(n_layer: 4)], patches: (size: 4))",
            )),
            (Reads::Ids(_), Some(_)) => Err(ConfigError::new(
                "model.patches",
                "are of images, but the data are token ids; leave them out",
            )),
        }
    }

    /// A recurrence closes its last block without a carry.
    fn revises(&self) -> bool {
        self.recurrence.is_some()
    }

    fn shape(&self) -> Shape {
        let dropout = self.layers.iter().map(|entry| entry.shape().dropout);
        let dropout = dropout.fold(0.0, f64::max);
        match self.layers.first() {
            Some(first) => Shape {
                dropout,
                ..first.shape()
            },
            None => Shape {
                context: 0,
                width: 0,
                n_layer: 0,
                n_sublayer: 0,
                dropout,
            },
        }
    }

    fn assemble<B: Backend>(&self, vocabulary: Vocabulary, device: &B::Device) -> Self::Model<B> {
        let (entry, frame) = (self.entry(0), self.frame());
        let tables = entry.tables(vocabulary, &frame);
        let embeddings = match (vocabulary.reads, &self.patches, tables) {
            (Reads::Images(image), Some(patches), Some(tables)) => {
                Tables::Patches(PatchEmbeddings::new(patches, image, &tables, device))
            }
            _ => Tables::Ids(entry.embeddings(vocabulary, &frame, device)),
        };
        let layers = (0..self.shape().n_layer).map(|layer| self.layer(layer, device));
        let body = match &self.recurrence {
            Some(recurrence) => {
                let layers = layers.map(|layer| (layer, self.ends(device)));
                Body::Recurrent(recurrence.init(layers.collect(), device))
            }
            None => Body::Stack(Stack::between(self.ends(device), layers.collect())),
        };
        Decoder::new(embeddings, body)
    }

    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        let Some(first) = self.layers.first() else {
            return Cost::default();
        };
        let vocabulary = vocabulary.into();
        if let (Reads::Images(image), Some(patches)) = (vocabulary.reads, &self.patches) {
            let positions = patches.positions(image);
            let mut layers = self.layers_cost(positions);
            layers.forward_flops = layers.forward_flops.saturating_mul(positions);
            let tables = first.tables(vocabulary, &self.frame());
            let ends = tables.map(|tables| patches.cost(image, &tables));
            return layers + ends.unwrap_or_default();
        }
        let layers = |time: usize| self.layers_cost(time);
        let context = first.shape().context;
        let body = match &self.recurrence {
            Some(recurrence) => recurrence.cost(layers, context),
            None => layers(context),
        };
        first.embeddings_cost(vocabulary, &self.frame()) + body
    }

    /// That of the architecture that has the parameter; those of connections and recurrences have 1.
    fn rate(&self, name: &str) -> f64 {
        let layer = name.split('.').find_map(|part| part.parse().ok());
        let is_connection = [".connection.", ".ends."]
            .iter()
            .any(|part| name.contains(part));
        match (self.layers.is_empty(), is_connection) {
            (false, false) => self.entry(layer.unwrap_or(0)).rate(name),
            _ => 1.0,
        }
    }

    /// The stream widens only in a plain model, because the parameters of connections and recurrences do
    /// not widen.
    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        if self.shape().width != smaller.shape().width && self.plain().is_none() {
            let problem = "is composed, so its stream cannot be widened; this needs a model of one \
                           architecture with plain connections";
            return Err(ConfigError::new("model", problem));
        }
        let mut entries = self.layers.iter().zip(&smaller.layers);
        entries.try_for_each(|(entry, smaller)| entry.grows_from(smaller))
    }

    /// Entry i grows from entry i of the smaller model.
    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        let mut entries = self.layers.iter().zip(&smaller.layers);
        entries.try_fold(weights, |weights, (entry, smaller)| {
            entry.grow(smaller, weights, fresh)
        })
    }
}
