//! Modules of a composed model.

// A model has few of these values, so the larger variants need no box.
#![allow(clippy::large_enum_variant)]

use burn::module::Module;
use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, Cache, Connection, Embeddings, Ends, Increment, Past, ResidualBlock, Seen,
    Stack, Stream, Update, WithEnds, recompute,
};
use residual_zoo_loops::{Loops, LoopsCache};
use residual_zoo_recurrent::{Recurrent, RecurrentCache};
use residual_zoo_vit::PatchEmbeddings;

/// The embeddings of a model that embeds token ids with `E`.
#[derive(Module, Debug)]
pub enum Tables<B: Backend, E> {
    /// Embeddings of token ids.
    Ids(E),
    /// Embeddings of image patches.
    Patches(PatchEmbeddings<B>),
}

impl<B: Backend, E: Embeddings<B>> Embeddings<B> for Tables<B, E> {
    fn embed(&self, ids: Tensor<B, 2, Int>, seen: &Seen) -> Tensor<B, 3> {
        match self {
            Self::Ids(embeddings) => embeddings.embed(ids, seen),
            Self::Patches(embeddings) => embeddings.embed(ids, seen),
        }
    }

    fn embed_images(&self, images: Tensor<B, 4>) -> Tensor<B, 3> {
        match self {
            Self::Ids(embeddings) => embeddings.embed_images(images),
            Self::Patches(embeddings) => embeddings.embed_images(images),
        }
    }

    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match self {
            Self::Ids(embeddings) => embeddings.unembed(x),
            Self::Patches(embeddings) => embeddings.unembed(x),
        }
    }

    fn final_norm(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match self {
            Self::Ids(embeddings) => embeddings.final_norm(x),
            Self::Patches(embeddings) => embeddings.final_norm(x),
        }
    }
}

/// The connection `C` of an update, on a stream with ends `E`.
#[derive(Module, Debug)]
pub enum MaybeWithEnds<B: Backend, C, E> {
    /// On the stream of the surrounding layers.
    OnStream(C),
    /// On its own stream.
    Alone(WithEnds<B, C, E>),
}

impl<B: Backend, C: Connection<B>, E: Ends<B>> Connection<B> for MaybeWithEnds<B, C, E> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        match self {
            Self::OnStream(connection) => connection.update(stream, f),
            Self::Alone(connection) => connection.update(stream, f),
        }
    }
}

/// A layer that consists of the block `R`, with connections `C`.
#[derive(Module, Debug)]
pub enum Layer<B: Backend, R, C> {
    /// The block itself, with connections around its sublayers.
    Sublayers(R),
    /// The block as one branch, with a connection around it.
    Whole(Update<B, Increment<B, R>, C>),
}

impl<B: Backend, R: ResidualBlock<B>, C: Connection<B>> ResidualBlock<B> for Layer<B, R, C> {
    /// The cache of the block, and the earlier positions that a connection around it reads.
    type Cache = (R::Cache, Vec<Past<B>>);

    fn new_cache(&self) -> Self::Cache {
        match self {
            Self::Sublayers(block) => (block.new_cache(), Vec::new()),
            Self::Whole(update) => update.new_cache(),
        }
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        match self {
            Self::Sublayers(block) => block.forward(stream, cache.map(|(cache, _)| cache)),
            Self::Whole(update) => update.forward(stream, cache),
        }
    }
}

/// The part of a model between the embeddings and the unembedding: layers that consist of the block `R`, with
/// connections `C`, on a stream with ends `E`.
#[derive(Module, Debug)]
pub enum Body<B: Backend, R, C, E> {
    /// Layers over the whole sequence.
    Stack(Stack<B, Layer<B, R, C>, E>),
    /// Layers of an image model, on one stream after another.
    Streams(Vec<Stack<B, Layer<B, R, C>, E>>),
    /// Layers over two blocks of the sequence at a time.
    Recurrent(Recurrent<B, Layer<B, R, C>, E>),
    /// Layers, some of which run several times in depth.
    Loops(Loops<B, Layer<B, R, C>, E>),
}

/// The cache of a [`Body`] whose layers have caches `C`.
#[derive(Clone)]
pub enum BodyCache<B: Backend, C> {
    /// The caches of the layers of a stack.
    Stack(Vec<C>),
    /// The cache of a recurrence.
    Recurrent(RecurrentCache<B, C>),
    /// The cache of a depth loop.
    Loops(LoopsCache<C>),
}

/// In a recurrence, all sequences of a batch settle their blocks together, so they stay at the same position.
impl<B: Backend, C: Cache> Cache for BodyCache<B, C> {
    fn joins(&self) -> bool {
        match self {
            Self::Stack(layers) => layers.joins(),
            Self::Loops(loops) => loops.joins(),
            Self::Recurrent(_) => false,
        }
    }

    fn join(&mut self, other: Self) {
        match (self, other) {
            (Self::Stack(layers), Self::Stack(other)) => layers.join(other),
            (Self::Loops(loops), Self::Loops(other)) => loops.join(other),
            _ => unreachable!("a recurrence joins no other"),
        }
    }

    fn keep(&mut self, keep: &[bool]) {
        match self {
            Self::Stack(layers) => layers.keep(keep),
            Self::Loops(loops) => loops.keep(keep),
            Self::Recurrent(_) => unreachable!("a recurrence keeps all rows"),
        }
    }
}

impl<B: Backend, R: ResidualBlock<B>, C: Connection<B>, E: Ends<B>> ResidualBlock<B>
    for Body<B, R, C, E>
{
    type Cache = BodyCache<B, <Layer<B, R, C> as ResidualBlock<B>>::Cache>;

    fn new_cache(&self) -> Self::Cache {
        match self {
            Self::Stack(stack) => BodyCache::Stack(stack.new_cache()),
            // Images have no incremental pass.
            Self::Streams(_) => BodyCache::Stack(Vec::new()),
            Self::Recurrent(recurrent) => BodyCache::Recurrent(recurrent.new_cache()),
            Self::Loops(loops) => BodyCache::Loops(loops.new_cache()),
        }
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        match (self, cache) {
            (Self::Stack(stack), None) => stack.forward(stream, None),
            (Self::Streams(stacks), None) => {
                let last = stacks.len().saturating_sub(1);
                let stacks = stacks.iter().enumerate();
                stacks.fold(stream, |stream, (i, stack)| match i == last {
                    true => stack.forward(stream, None),
                    false => recompute::followed::<B, _>(|| stack.forward(stream, None)),
                })
            }
            (Self::Stack(stack), Some(BodyCache::Stack(cache))) => {
                stack.forward(stream, Some(cache))
            }
            (Self::Recurrent(recurrent), None) => recurrent.forward(stream, None),
            (Self::Recurrent(recurrent), Some(BodyCache::Recurrent(cache))) => {
                recurrent.forward(stream, Some(cache))
            }
            (Self::Loops(loops), None) => loops.forward(stream, None),
            (Self::Loops(loops), Some(BodyCache::Loops(cache))) => {
                loops.forward(stream, Some(cache))
            }
            _ => unreachable!("the cache was made by another body"),
        }
    }

    fn forward_in<T: Embeddings<B>>(
        &self,
        stream: Stream<B>,
        cache: Option<&mut Self::Cache>,
        embeddings: &T,
    ) -> Stream<B> {
        match (self, cache) {
            (Self::Loops(loops), None) => loops.forward_in(stream, None, embeddings),
            (Self::Loops(loops), Some(BodyCache::Loops(cache))) => {
                loops.forward_in(stream, Some(cache), embeddings)
            }
            (_, cache) => self.forward(stream, cache),
        }
    }
}
