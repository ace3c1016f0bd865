//! Compositions: layers of one or several architectures, optionally with connections, in a recurrence, in a depth loop,
//! or on the patches of images.

mod validate;

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Architecture, AttentionSize, ConfigError, ConnectionOf, Cost, Decoder, Design, EndsOf, Frame,
    Increment, ModelConfig, Reads, Shape, Sites, Stack, StreamSize, Update, Vocabulary, WithEnds,
    unit,
};
use residual_zoo_loops::{LoopsConfig, Part};
use residual_zoo_recurrent::RecurrentConfig;
use residual_zoo_vit::{PatchEmbeddings, Patches};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::ConnectionConfig;
use crate::body::{Body, Layer, MaybeWithEnds, Tables};

/// The config of any model of a zoo `A`.
///
/// In RON, a [plain](Self::plain) model has the name of its only architecture, such as `Gpt2(n_layer: 4)`. Any other
/// model is written as follows:
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
    /// The architectures of the layers: layer i uses entry i mod n of the n entries. All entries have the same width,
    /// depth and context. The first entry makes the embeddings, including learned positions. If the first entry has no
    /// learned positions, as in a rotary TokenFormer, no layer gets learned positions.
    pub layers: Vec<A>,
    /// The connection; `None` means the plain connection.
    pub connection: Option<PlacedConnection<A::Connections>>,
    /// The recurrence around each layer; `None` means no recurrence. Each layer is a separate τ, the transformer that
    /// the recurrence runs on two blocks at a time.
    pub recurrence: Option<RecurrentConfig>,
    /// The depth loop over the layers; `None` means no depth loop.
    pub loops: Option<LoopsConfig>,
    /// The patches of images, if the model reads images instead of token ids. The layers then have no causal mask, and
    /// the `context` of the architecture does not matter.
    pub patches: Option<Patches>,
}

/// A connection and its placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "connection")]
pub enum PlacedConnection<D = ConnectionConfig> {
    /// Around each sublayer, as most connections are defined.
    PerSublayer(D),
    /// Around each layer, with f(x) = layer(x) − x and plain connections inside. The parameter counts of the LAuReL
    /// paper fit this placement.
    PerLayer(D),
}

/// A list of architectures, declared with [`zoo!`](crate::zoo).
pub trait List: Architecture {
    /// The form of a composition in a file: a variant for each architecture, and `Composed`.
    type Written: Serialize + DeserializeOwned + From<Composition<Self>> + Into<Composition<Self>>;
    /// The connections, declared with [`connections!`](macro@crate::connections).
    type Connections: Design;

    /// Name and description of each architecture, from its documentation.
    const NAMES: &'static [(&'static str, &'static str)];
}

impl<'de, A: List> Deserialize<'de> for Composition<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        A::Written::deserialize(deserializer).map(Into::into)
    }
}

impl<D> PlacedConnection<D> {
    /// Whether trained weights of `before` fit this connection.
    pub(crate) fn continues(&self, before: &Self) -> bool
    where
        D: Design,
    {
        match (self, before) {
            (Self::PerSublayer(this), Self::PerSublayer(before))
            | (Self::PerLayer(this), Self::PerLayer(before)) => this.continues(before),
            _ => false,
        }
    }

    fn config(&self) -> &D {
        match self {
            Self::PerSublayer(connection) | Self::PerLayer(connection) => connection,
        }
    }
}

impl<A: List> Composition<A> {
    /// Makes a model of one architecture with plain connections.
    pub fn of(architecture: impl Into<A>) -> Self {
        Self::in_turn([architecture.into()])
    }

    /// Makes a model with layers of several architectures in turn.
    pub fn in_turn(layers: impl Into<Vec<A>>) -> Self {
        Self {
            layers: layers.into(),
            connection: None,
            recurrence: None,
            loops: None,
            patches: None,
        }
    }

    /// Puts `connection` around every sublayer.
    pub fn per_sublayer(self, connection: impl Into<A::Connections>) -> Self {
        Self {
            connection: Some(PlacedConnection::PerSublayer(connection.into())),
            ..self
        }
    }

    /// Puts `connection` around every layer.
    pub fn per_layer(self, connection: impl Into<A::Connections>) -> Self {
        Self {
            connection: Some(PlacedConnection::PerLayer(connection.into())),
            ..self
        }
    }

    /// Puts a recurrence around each layer of this model. Each layer is a separate τ of the recurrent transformer.
    pub fn recurrent(self, recurrence: RecurrentConfig) -> Self {
        Self {
            recurrence: Some(recurrence),
            ..self
        }
    }

    /// Uses the layers of this model several times in depth.
    pub fn looped(self, loops: LoopsConfig) -> Self {
        Self {
            loops: Some(loops),
            ..self
        }
    }

    /// Sets the number of loops outside training steps, for example for a trained model. The number of loops in
    /// training steps stays the same.
    ///
    /// # Errors
    ///
    /// Returns an error if the model has no depth loop, or cannot have this number of loops.
    pub fn set_loops(&mut self, times: usize) -> Result<(), ConfigError> {
        let name = self.name();
        let n_layer = self.shape().n_layer;
        let Some(loops) = &mut self.loops else {
            let problem =
                format!("is given, but the model, {name}, has no depth loop; leave it out");
            return Err(ConfigError::new("loops", problem));
        };
        let changed = LoopsConfig {
            evaluated: Some(times),
            ..loops.clone()
        };
        let valid = changed.validate(n_layer);
        valid.map_err(|error| ConfigError::new("loops", error.problem))?;
        *loops = changed;
        Ok(())
    }

    /// Makes this model a vision transformer, on the patches of images.
    pub fn on_patches(self, patches: Patches) -> Self {
        Self {
            patches: Some(patches),
            ..self
        }
    }

    /// Returns the architecture, if this model has only one, with plain connections and without recurrence, loops or
    /// patches.
    pub fn plain(&self) -> Option<&A> {
        let Self {
            layers,
            connection: None,
            recurrence: None,
            loops: None,
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

    /// Returns the architecture of layer `layer`.
    pub(crate) fn entry(&self, layer: usize) -> &A {
        &self.layers[layer % self.layers.len()]
    }

    /// Whether the layers themselves read images, without patches.
    fn reads_images(&self) -> bool {
        self.layers.iter().any(A::reads_images)
    }

    /// Returns the parts of the depth loop; `None` without a depth loop.
    fn parts(&self) -> Option<Vec<Part>> {
        let loops = self.loops.as_ref()?;
        Some(loops.parts(self.shape().n_layer))
    }

    /// Returns the streams of the model. In a recurrence, each layer has its own stream. These streams have the
    /// same size, so the function returns only the first. For each part of a depth loop, the function also returns only
    /// the first stream.
    fn streams(&self) -> Vec<StreamSize> {
        let streams = self.layers.first().map(A::streams).unwrap_or_default();
        if let (Some(parts), Some(whole)) = (self.parts(), streams.first()) {
            let stream = |part: Part| StreamSize {
                n_layer: part.layers,
                ..*whole
            };
            return parts.into_iter().map(stream).collect();
        }
        match &self.recurrence {
            Some(_) => vec![StreamSize {
                n_layer: 1,
                ..streams[0]
            }],
            None => streams,
        }
    }

    /// Returns the stream of layer `layer`, and the index of the layer on this stream.
    fn stream_of(&self, layer: usize) -> (StreamSize, usize) {
        if self.recurrence.is_some() {
            return (self.streams()[0], 0);
        }
        let mut before = 0;
        if let Some(parts) = self.parts() {
            let found = parts.iter().zip(self.streams()).find_map(|(part, stream)| {
                let at = layer - before;
                before += part.layers * part.streams;
                (layer < before).then_some((stream, at % part.layers))
            });
            return found.unwrap_or_else(|| unreachable!("the parts have all layers"));
        }
        let mut streams = self.streams().into_iter();
        let found = streams.find_map(|stream| {
            let at = layer - before;
            before += stream.n_layer;
            (layer < before).then_some((stream, at))
        });
        found.unwrap_or_else(|| unreachable!("the streams have all layers"))
    }

    /// Returns the attention size of the first entry. `three_inputs` is true only if it is true in every entry.
    fn attention(&self) -> Option<AttentionSize> {
        let mut all = self.layers.iter().map(A::attention);
        let first = all.next()??;
        let three_inputs = |size: Option<AttentionSize>| size.is_some_and(|size| size.three_inputs);
        Some(AttentionSize {
            three_inputs: first.three_inputs && all.all(three_inputs),
            ..first
        })
    }

    /// Describes the connections on a stream.
    fn sites(&self, stream: StreamSize, vocabulary: Vocabulary) -> Sites {
        let around_layers = matches!(self.connection, Some(PlacedConnection::PerLayer(_)));
        let per_layer = match self.requirements(stream).feed_forward {
            true => self.updates_per_layer(),
            false => 1,
        };
        Sites {
            attention: self.attention(),
            around_layers,
            recurrent: self.recurrence.is_some(),
            mixed: self.layers.len() > 1,
            ids: (self.patches.is_none() && !self.reads_images() && self.recurrence.is_none())
                .then_some(vocabulary.ids()),
            // Each layer of a recurrence, each part of a loop and each stage of a ResNet has its own stream.
            into_norm: !self.reads_images() && self.recurrence.is_none() && self.loops.is_none(),
            ..Sites::sublayers(stream.width, stream.n_layer, per_layer)
        }
    }

    /// Returns the number of updates of the stream in a layer that has all its sublayers.
    fn updates_per_layer(&self) -> usize {
        match self.connection {
            Some(PlacedConnection::PerLayer(_)) => 1,
            _ => self.shape().n_sublayer,
        }
    }

    /// Returns the requirements of the connection on a stream.
    fn requirements(&self, stream: StreamSize) -> Frame {
        let updates = stream.n_layer * self.updates_per_layer();
        let placed = self.connection.as_ref();
        placed.map_or_else(Frame::default, |placed| placed.config().frame(updates))
    }

    /// Returns the requirements of the connection on the first stream, with the input of the model.
    fn frame(&self, vocabulary: Vocabulary) -> Frame {
        let stream = self.streams().first().copied();
        let frame = stream.map(|stream| self.requirements(stream));
        frame.unwrap_or_default().reading(vocabulary)
    }

    fn layer<B: Backend>(
        &self,
        layer: usize,
        vocabulary: Vocabulary,
        frame: &Frame,
        device: &B::Device,
    ) -> LayerOf<B, A> {
        let entry = self.entry(layer);
        let (stream, at) = self.stream_of(layer);
        // The first layer of a stream projects its own values, whatever the connection supplies to the other layers.
        let frame = &Frame {
            own_values: frame.own_values || at == 0,
            ..*frame
        };
        let sites = self.sites(stream, vocabulary);
        // Indices of the connections on the stream.
        let mut numbers = at * sites.per_layer..;
        let mut next = |design: &A::Connections| {
            let i = numbers.next().unwrap_or_default();
            let connection = design.connection(&sites, i, device);
            Some(match stream.alone {
                true => {
                    MaybeWithEnds::Alone(WithEnds::new(connection, design.ends(&sites, device)))
                }
                false => MaybeWithEnds::OnStream(connection),
            })
        };
        match &self.connection {
            None => Layer::Sublayers(entry.block(layer, frame, || None, device)),
            Some(PlacedConnection::PerSublayer(design)) => {
                Layer::Sublayers(entry.block(layer, frame, || next(design), device))
            }
            Some(PlacedConnection::PerLayer(design)) => {
                let block = entry.block(layer, frame, || None, device);
                Layer::Whole(Update::new(Increment::new(block), next(design)))
            }
        }
    }

    fn ends<B: Backend>(
        &self,
        stream: StreamSize,
        vocabulary: Vocabulary,
        device: &B::Device,
    ) -> Option<EndsOf<B, A::Connections>> {
        let placed = self.connection.as_ref().filter(|_| !stream.alone)?;
        Some(
            placed
                .config()
                .ends(&self.sites(stream, vocabulary), device),
        )
    }

    /// Returns the cost of all layers and connections: per position of sequences of `time` positions, or per image if
    /// the layers themselves read images.
    fn layers_cost(&self, time: usize, vocabulary: Vocabulary, frame: &Frame) -> Cost {
        let (period, mut layer) = (self.layers.len(), 0);
        // Groups of consecutive layers that differ only in their entries. For each group: the number of layers, the
        // number of streams, and the number of passes, in total and with a backward pass.
        let alike: Vec<(usize, usize, [usize; 2])> = match self.parts() {
            Some(parts) => parts
                .iter()
                .map(|part| {
                    (
                        part.layers * part.streams,
                        part.streams,
                        [part.times, part.trained],
                    )
                })
                .collect(),
            None => {
                let streams = self.layers.first().map(A::streams).unwrap_or_default();
                let streams = streams.iter().map(|stream| (stream.n_layer, 1, [1, 1]));
                streams.collect()
            }
        };
        let layers = alike.into_iter().flat_map(|(n_layer, streams, passes)| {
            let first = layer;
            layer += n_layer;
            let entries = 0..period.min(n_layer);
            entries.map(move |i| (first + i, (n_layer - i).div_ceil(period), streams, passes))
        });
        let with_values = Frame {
            own_values: true,
            ..*frame
        };
        let layers = layers.map(|(i, like_it, streams, [times, trained])| {
            // With a connection that supplies values, `layers` must have exactly one entry, so all layers of a group
            // are the same. The first layer of each stream has its own values.
            let first = match frame.own_values {
                true => 0,
                false => streams.min(like_it),
            };
            let layer = |frame| self.entry(i).block_cost(i, time, frame);
            let layers = layer(&with_values) * first + layer(frame) * (like_it - first);
            layers.applied_cut(times, trained)
        });
        let layers = layers.fold(Cost::default(), |sum, cost| sum + cost);
        layers + self.connections_cost(time, vocabulary, frame)
    }

    fn connections_cost(&self, time: usize, vocabulary: Vocabulary, frame: &Frame) -> Cost {
        let Some(placed) = &self.connection else {
            return Cost::default();
        };
        if let Some(parts) = self.parts() {
            let parts = parts.iter().zip(self.streams()).map(|(part, stream)| {
                let cost = placed.config().cost(&self.sites(stream, vocabulary));
                (cost * part.streams).applied_cut(part.times, part.trained)
            });
            return parts.fold(Cost::default(), |sum, cost| sum + cost);
        }
        let mut last = 0;
        let streams = self.streams().into_iter().map(|stream| {
            last += stream.n_layer;
            let cost = placed.config().cost(&self.sites(stream, vocabulary));
            let positions = match self.reads_images() {
                true => self.entry(0).positions(last - 1, time, frame),
                false => 1,
            };
            cost.applied(positions)
        });
        let cost = streams.fold(Cost::default(), |sum, cost| sum + cost);
        cost * self.recurrence.as_ref().map_or(1, |_| self.shape().n_layer)
    }
}

/// A layer of a composition of `A`.
pub type LayerOf<B, A> = Layer<B, BlockOf<B, A>, Option<ConnectionIn<B, A>>>;
type ConnectionIn<B, A> = MaybeWithEnds<
    B,
    ConnectionOf<B, <A as List>::Connections>,
    EndsOf<B, <A as List>::Connections>,
>;
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
        if self.loops.is_some() {
            name = format!("looped ({name})");
        }
        if self.patches.is_some() {
            name = format!("ViT ({name})");
        }
        name
    }

    fn validate_fields(&self) -> Result<(), ConfigError> {
        self.validate_layers()?;
        if self.reads_images() {
            self.validate_of_images()?;
        }
        if let Some(loops) = &self.loops {
            self.validate_loops(loops)?;
        }
        if let Some(connection) = &self.connection {
            for stream in self.streams() {
                let valid = connection.config().validate(&self.sites(stream, 1.into()));
                valid.map_err(|error| error.within("connection"))?;
            }
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
            if first.tables(1.into(), &Frame::default()).is_none() {
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
            (Reads::Images(_), None) if self.reads_images() => Ok(()),
            (Reads::Ids(_), None) if self.reads_images() => Err(ConfigError::new(
                "model",
                format!(
                    "is a {}, which reads images, but the data are token ids",
                    self.entry(0).name()
                ),
            )),
            (Reads::Ids(_), None) => Ok(()),
            (Reads::Images(image), Some(patches)) => {
                let fits = patches.fit(image);
                fits.map_err(|error| error.within("model.patches"))
            }
            (Reads::Images(_), None) => Err(ConfigError::new(
                "model",
                "reads token ids, but the data are images; give it patches, as in \
                 Composed(layers: [Gpt2(n_layer: 4)], patches: (size: 4)), or use a ResNet",
            )),
            (Reads::Ids(_), Some(_)) => Err(ConfigError::new(
                "model.patches",
                "are for images, but the data are token ids; leave them out",
            )),
        }
    }

    fn has_statistics(&self) -> bool {
        self.layers.iter().any(A::has_statistics)
    }

    /// Constrains the parameters of architectures that have constraints. Connections and recurrences have no
    /// constraints.
    fn constrain<B: Backend>(&self, model: Self::Model<B>) -> Self::Model<B> {
        match self.layers.iter().any(A::is_constrained) {
            true => unit::normalise(model),
            false => model,
        }
    }

    /// Whether appended tokens can change earlier outputs. They can in a recurrence, which computes the last block
    /// without a carry, and with a carry once another block follows.
    fn revises(&self) -> bool {
        self.recurrence.is_some()
    }

    fn draws(&self) -> bool {
        self.shape().dropout > 0.0 || self.loops.as_ref().is_some_and(LoopsConfig::draws)
    }

    fn copies(&self) -> usize {
        let placed = self.connection.as_ref();
        placed.map_or(1, |placed| placed.config().copies())
    }

    fn passes(&self) -> usize {
        let n_layer = self.shape().n_layer;
        self.parts().map_or(n_layer, |parts| {
            let passes = parts
                .iter()
                .map(|part| part.streams * part.layers * part.times);
            passes.sum()
        })
    }

    fn repeats(&self) -> Option<usize> {
        self.loops.as_ref().map(|_| self.layers.len())
    }

    fn hashed(&self) -> Self {
        Self {
            layers: self.layers.iter().map(A::hashed).collect(),
            ..self.clone()
        }
    }

    fn outside_training(&self) -> Self {
        Self {
            loops: self.loops.as_ref().map(LoopsConfig::outside_training),
            ..self.clone()
        }
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
        let (entry, frame) = (self.entry(0), self.frame(vocabulary));
        let tables = entry.tables(vocabulary, &frame);
        let embeddings = match (vocabulary.reads, &self.patches, tables) {
            (Reads::Images(image), Some(patches), Some(tables)) => {
                Tables::Patches(PatchEmbeddings::new(patches, image, &tables, device))
            }
            _ => Tables::Ids(entry.embeddings(vocabulary, &frame, device)),
        };
        let of_layer = |layer| match &self.loops {
            Some(_) => self
                .requirements(self.stream_of(layer).0)
                .reading(vocabulary),
            None => frame,
        };
        let mut layers = (0..self.shape().n_layer)
            .map(|layer| self.layer(layer, vocabulary, &of_layer(layer), device));
        let streams = self.streams();
        if let (Some(loops), Some(parts)) = (&self.loops, self.parts()) {
            let layers = layers.collect();
            let ends = parts.iter().zip(streams).flat_map(|(part, stream)| {
                (0..part.streams).map(move |_| self.ends(stream, vocabulary, device))
            });
            let width = self.shape().width;
            let body = loops.init(layers, ends.collect(), width, device);
            return Decoder::new(embeddings, Body::Loops(body));
        }
        let body = match (&self.recurrence, streams.as_slice()) {
            (Some(recurrence), [stream, ..]) => {
                let layers = layers.map(|layer| (layer, self.ends(*stream, vocabulary, device)));
                Body::Recurrent(recurrence.init(layers.collect(), device))
            }
            (None, [stream]) => Body::Stack(Stack::between(
                self.ends(*stream, vocabulary, device),
                layers.collect(),
            )),
            _ => {
                let streams = streams.into_iter().map(|stream| {
                    let ends = self.ends(stream, vocabulary, device);
                    Stack::between(ends, layers.by_ref().take(stream.n_layer).collect())
                });
                Body::Streams(streams.collect())
            }
        };
        Decoder::new(embeddings, body)
    }

    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        let Some(first) = self.layers.first() else {
            return Cost::default();
        };
        let vocabulary = vocabulary.into();
        let frame = self.frame(vocabulary);
        if let (Reads::Images(image), Some(patches)) = (vocabulary.reads, &self.patches) {
            let positions = patches.positions(image);
            let layers = self
                .layers_cost(positions, vocabulary, &frame)
                .applied(positions);
            let tables = first.tables(vocabulary, &frame);
            let ends = tables.map(|tables| patches.cost(image, &tables));
            return layers + ends.unwrap_or_default();
        }
        let layers = |time: usize| self.layers_cost(time, vocabulary, &frame);
        let context = first.shape().context;
        let body = match &self.recurrence {
            Some(recurrence) => recurrence.cost(layers, context),
            None => layers(context),
        };
        let Shape { width, n_layer, .. } = first.shape();
        let loops = self.loops.as_ref();
        let loops = loops.map(|loops| loops.cost(width, n_layer));
        first.embeddings_cost(vocabulary, &frame) + body + loops.unwrap_or_default()
    }
}
