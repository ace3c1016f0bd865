//! The modules of a composed model.

// A model has few of these values, so the larger variants need no box.
#![allow(clippy::large_enum_variant)]

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Cache, Connection, Increment, Plain, ResidualBlock, Stack, Stream, Update,
};
use residual_zoo_laurel::Laurel;
use residual_zoo_recurrent::{Recurrent, RecurrentCache};

/// One of the zoo's connections.
#[derive(Module, Debug)]
pub enum AnyConnection<B: Backend> {
    /// x + f(x).
    Plain(Plain),
    /// LAuReL.
    Laurel(Laurel<B>),
}

impl<B: Backend> Connection<B> for AnyConnection<B> {
    fn reach(&self) -> usize {
        match self {
            Self::Plain(plain) => Connection::<B>::reach(plain),
            Self::Laurel(laurel) => laurel.reach(),
        }
    }

    fn join(&self, stream: &Stream<B>, fx: Tensor<B, 3>) -> Tensor<B, 3> {
        match self {
            Self::Plain(plain) => plain.join(stream, fx),
            Self::Laurel(laurel) => laurel.join(stream, fx),
        }
    }
}

/// A layer made of the block `R`.
#[derive(Module, Debug)]
pub enum Layer<B: Backend, R> {
    /// The block as it is, with connections around its sublayers.
    Sublayers(R),
    /// The block as one branch, with a connection around it.
    Whole(Update<B, Increment<B, R>, AnyConnection<B>>),
}

impl<B: Backend, R: ResidualBlock<B>> ResidualBlock<B> for Layer<B, R> {
    type Cache = R::Cache;

    fn reach(&self) -> usize {
        match self {
            Self::Sublayers(block) => block.reach(),
            Self::Whole(update) => update.reach(),
        }
    }

    fn new_cache(&self) -> Self::Cache {
        match self {
            Self::Sublayers(block) => block.new_cache(),
            Self::Whole(update) => update.new_cache(),
        }
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        match self {
            Self::Sublayers(block) => block.forward(stream, cache),
            Self::Whole(update) => update.forward(stream, cache),
        }
    }
}

/// The part of a model between the embeddings: layers made of the block `R`.
#[derive(Module, Debug)]
pub enum Body<B: Backend, R> {
    /// Layers over the whole sequence.
    Stack(Stack<B, Layer<B, R>>),
    /// Layers over two blocks of the sequence at a time.
    Recurrent(Recurrent<B, Layer<B, R>>),
}

/// The cache of a [`Body`] whose layers have caches `C`.
#[derive(Clone)]
pub enum BodyCache<B: Backend, C> {
    /// The caches of the layers of a stack.
    Stack(Vec<C>),
    /// The cache of a recurrence.
    Recurrent(RecurrentCache<B, C>),
}

/// Rows of a recurrence settle their blocks together, so they stay at one position.
impl<B: Backend, C: Cache> Cache for BodyCache<B, C> {
    fn joins(&self) -> bool {
        matches!(self, Self::Stack(layers) if layers.joins())
    }

    fn join(&mut self, other: Self) {
        match (self, other) {
            (Self::Stack(layers), Self::Stack(other)) => layers.join(other),
            _ => unreachable!("a recurrence joins no other"),
        }
    }

    fn keep(&mut self, keep: &[bool]) {
        match self {
            Self::Stack(layers) => layers.keep(keep),
            Self::Recurrent(_) => unreachable!("a recurrence keeps all rows"),
        }
    }
}

impl<B: Backend, R: ResidualBlock<B>> ResidualBlock<B> for Body<B, R> {
    type Cache = BodyCache<B, R::Cache>;

    fn reach(&self) -> usize {
        match self {
            Self::Stack(stack) => stack.reach(),
            Self::Recurrent(recurrent) => recurrent.reach(),
        }
    }

    fn new_cache(&self) -> Self::Cache {
        match self {
            Self::Stack(stack) => BodyCache::Stack(stack.new_cache()),
            Self::Recurrent(recurrent) => BodyCache::Recurrent(recurrent.new_cache()),
        }
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        match (self, cache) {
            (Self::Stack(stack), None) => stack.forward(stream, None),
            (Self::Stack(stack), Some(BodyCache::Stack(cache))) => {
                stack.forward(stream, Some(cache))
            }
            (Self::Recurrent(recurrent), None) => recurrent.forward(stream, None),
            (Self::Recurrent(recurrent), Some(BodyCache::Recurrent(cache))) => {
                recurrent.forward(stream, Some(cache))
            }
            _ => unreachable!("the cache was made by another body"),
        }
    }
}
