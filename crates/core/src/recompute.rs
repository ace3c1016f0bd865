//! Activation recomputation: a layer keeps only its inputs, and runs again in the backward pass (Chen et al.,
//! "Training deep nets with sublinear memory cost", 2016).
//!
//! [`record`] cuts a forward pass into parts: the embeddings, then layers, groups of layers or single updates of the
//! stream. Each [part](run) runs without a graph, and its outputs are leaves of the graph after it.
//! [`Recording::add_gradients`] goes back from the loss to these leaves. Then it runs the parts again with a graph,
//! from the last to the first. Each part passes the gradients of its outputs on to its inputs and parameters. The
//! second run of a part repeats its random numbers.
//!
//! Only one graph exists at a time. In Burn 0.21, a backward pass can free the nodes of another graph that has the
//! same parameter. The cause is `GraphLocator::merge_two`, which forgets where the first node of a graph is.
//!
//! On deterministic backends that do not fuse operations, values and gradients equal those of an uncut pass, bit for
//! bit, with one exception. The gradients of a tensor that several parts read are summed in another order. Such tensors
//! are the earlier streams of a connection, the blocks of tokens in a recurrence, and the parameters of a depth loop. A
//! backend that fuses operations can compute sums in another order if an activation is not kept.

use std::any::Any;
use std::cell::RefCell;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

use crate::autodiff::{add_gradients, merge_gradients};
use crate::statistics::Statistic;
use crate::{Ends, Plain, Precision, ResidualBlock, Stream, close, open};

/// The activations that are kept for the backward pass. In a depth loop, every loop keeps its own inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recompute {
    /// Keeps the inputs of each layer, and all activations of the last layer. If the inputs of all sublayers take no
    /// more memory than the gradients, only the inputs of the sublayers are kept. In a recurrence, the inputs of each
    /// pair of blocks are kept.
    Layers,
    /// Keeps the inputs of every nth layer, as in `Every(2)`, and all activations of the last group of up to n layers.
    /// In a recurrence, this is the same as `Layers`.
    Every(usize),
}

thread_local! {
    /// The `Recording` of the pass on this thread.
    static NOW: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// The seeds of a training pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeds {
    /// The seed of the random numbers that the device draws, for instance for dropout. Each micro-batch has its own.
    pub device: Option<u64>,
    /// The seed of choices that all micro-batches of a step share, such as the number of loops. A pass without this
    /// seed is not a training step.
    pub step: Option<u64>,
}

/// Everything that a backward pass needs besides the graph of the loss, and the updates of running statistics that the
/// forward pass noted.
pub struct Recording<B: Backend> {
    seeds: Seeds,
    seeded: u64,
    /// The cut of the pass; `None` if it is not cut.
    cut: Option<Recompute>,
    /// Whether each update of the stream is a part.
    updates: bool,
    /// Whether another stream follows the current one.
    followed: bool,
    precision: Precision,
    parts: Vec<Part<B>>,
    statistics: Vec<Statistic<B>>,
}

/// A part of a forward pass.
struct Part<B: Backend> {
    /// Leaves of the graph after the part, each `[batch, time, width]`.
    outputs: Vec<Tensor<B, 3>>,
    /// Computes the outputs with a graph.
    again: Box<dyn FnOnce() -> Vec<Tensor<B, 3>>>,
    /// The value of `Recording::seeded` at the beginning of the part.
    seeded: u64,
}

/// Records the forward pass `pass`, cut according to `cut`. If `seeds` has a device seed, the embeddings and each
/// update have their own seed, which does not depend on `cut`.
pub fn record<B: Backend, T>(
    seeds: Seeds,
    cut: Option<Recompute>,
    pass: impl FnOnce() -> T,
) -> (T, Recording<B>) {
    let recording = Recording {
        cut,
        ..Recording::uncut(seeds, 0)
    };
    recording.during(pass)
}

/// Runs `stream`, the layers of a stream that another stream follows. If this pass is cut, none of these layers keeps
/// all its activations, because the backward pass does not begin with them.
pub fn followed<B: Backend, T>(stream: impl FnOnce() -> T) -> T {
    now(|recording: &mut Recording<B>| recording.followed = true);
    let result = stream();
    now(|recording: &mut Recording<B>| recording.followed = false);
    result
}

/// Closes `stream`, as a part of its own if this pass is cut and another stream follows.
pub(crate) fn end<B: Backend, E: Ends<B>>(ends: &E, stream: Stream<B>) -> Tensor<B, 3> {
    match now(|recording: &mut Recording<B>| recording.cut.is_some() && recording.followed) {
        Some(true) => {
            run_on(ends, stream, |ends, stream| {
                Stream::new(close(ends, stream))
            })
            .x
        }
        _ => close(ends, stream),
    }
}

/// Opens the stream of x with `ends`, for the tokens `ids`. Then updates the stream with each of `layers`.
pub(crate) fn layers<B: Backend, R: ResidualBlock<B>, E: Ends<B>>(
    ends: &E,
    layers: &[R],
    x: Tensor<B, 3>,
    ids: Option<Tensor<B, 2, Int>>,
) -> Stream<B> {
    let Some(cut) = now(|recording: &mut Recording<B>| recording.cut).flatten() else {
        return in_turn(layers, open(ends, x, ids));
    };
    let size = match cut {
        Recompute::Layers => 1,
        Recompute::Every(size) => size.max(1),
    };
    let parameters = || layers.iter().map(Module::<B>::num_params).sum();
    let elements = x.shape().num_elements();
    if cut == Recompute::Layers && updates_are_free(layers.len(), elements, parameters()) {
        return by_updates(ends, layers, Stream::new(x).with_ids(ids));
    }
    let followed = now(|recording: &mut Recording<B>| recording.followed).unwrap_or(false);
    let cut_ones = match followed {
        true => layers.len(),
        false => layers.len().saturating_sub(1) / size * size,
    };
    let (first, last) = layers.split_at(cut_ones);
    let stream = by_layers(ends, first.chunks(size), Stream::new(x).with_ids(ids));
    // The backward pass begins with the last layers, so their activations are kept.
    now(|recording: &mut Recording<B>| recording.cut = None);
    let stream = in_turn(last, stream);
    now(|recording: &mut Recording<B>| recording.cut = Some(cut));
    stream
}

/// Whether [`Recompute::Layers`] cuts layers into updates, for `layers` layers with `parameters` parameters and a
/// stream of `elements` elements. It does if the inputs of two updates per layer take no more memory than the layers'
/// gradients.
///
/// At the start of the backward pass, all inputs and no gradients exist; at its end, all gradients and no inputs. If
/// the inputs take less memory than the gradients, memory peaks at the end. Smaller parts need less memory there.
pub fn updates_are_free(layers: usize, elements: usize, parameters: usize) -> bool {
    2 * layers * elements <= parameters
}

/// Opens the stream from `outer` with `ends`, and makes each update of the stream a part of its own.
fn by_updates<B: Backend, R: ResidualBlock<B>, E: Ends<B>>(
    ends: &E,
    layers: &[R],
    outer: Stream<B>,
) -> Stream<B> {
    let stream = run_on(ends, outer, |ends, Stream { x, ids, .. }| {
        open(ends, x, ids)
    });
    now(|recording: &mut Recording<B>| recording.updates = true);
    let stream = in_turn(layers, stream);
    now(|recording: &mut Recording<B>| recording.updates = false);
    stream
}

/// Updates the stream by `update` with the parameters of `module`. If this pass is cut at each update, the update is a
/// part of its own.
pub fn update<B: Backend, M: Module<B> + 'static>(
    module: &M,
    stream: Stream<B>,
    update: impl Fn(&M, Stream<B>) -> Stream<B> + 'static,
) -> Stream<B> {
    if !now(|recording: &mut Recording<B>| recording.updates).unwrap_or(false) {
        return update(module, stream);
    }
    run_on(module, stream, update)
}

/// Runs `part` with the parameters of `module` on a stream, as [`run`] does. The result has the ids of the stream.
fn run_on<B: Backend, M: Module<B> + 'static>(
    module: &M,
    stream: Stream<B>,
    part: impl Fn(&M, Stream<B>) -> Stream<B> + 'static,
) -> Stream<B> {
    let ids = stream.ids.clone();
    let of = ids.clone();
    let all = run(module, stream.into_all(), move |module, all| {
        part(module, Stream::of_all(all).with_ids(of.clone())).into_all()
    });
    Stream::of_all(all).with_ids(ids)
}

/// Opens the stream from `outer` with `ends`, and runs each group of layers in `parts` as a part.
fn by_layers<'a, B: Backend, R: ResidualBlock<B>, E: Ends<B>>(
    ends: &E,
    mut parts: impl Iterator<Item = &'a [R]>,
    outer: Stream<B>,
) -> Stream<B> {
    // The first part opens the stream.
    let stream = match parts.next() {
        Some(layers) => {
            let part = (ends.clone(), layers.to_vec());
            run_on(&part, outer, |(ends, layers), Stream { x, ids, .. }| {
                in_turn(layers, open(ends, x, ids))
            })
        }
        None => open(ends, outer.x, outer.ids),
    };
    parts.fold(stream, |stream, layers| {
        run_on(&layers.to_vec(), stream, |layers, stream| {
            in_turn(layers, stream)
        })
    })
}

fn in_turn<B: Backend, R: ResidualBlock<B>>(layers: &[R], stream: Stream<B>) -> Stream<B> {
    layers
        .iter()
        .fold(stream, |stream, layer| layer.forward(stream, None))
}

/// Seeds the next random numbers of the device, for instance for dropout. Returns whether this pass has a seed for
/// them.
pub fn seed_device<B: Backend>(device: &B::Device) -> bool {
    let seed = now(|recording: &mut Recording<B>| {
        let seed = recording.seeds.device?.wrapping_add(recording.seeded);
        recording.seeded += 1;
        Some(seed)
    });
    let seed = seed.flatten();
    if let Some(seed) = seed {
        B::seed(device, seed);
    }
    seed.is_some()
}

/// Returns the seed of choices that all micro-batches of a step share; `None` outside training steps.
pub fn step_seed<B: Backend>() -> Option<u64> {
    now(|recording: &mut Recording<B>| recording.seeds.step).flatten()
}

/// Whether this pass is cut into parts.
pub fn is_cut<B: Backend>() -> bool {
    now(|recording: &mut Recording<B>| recording.cut.is_some()).unwrap_or(false)
}

/// Runs `part` with the parameters of `module` on `inputs`, each `[batch, time, width]`. If this pass is cut, `part`
/// becomes one of its parts, and all inputs must be results of other parts.
///
/// # Panics
///
/// Panics if this pass is cut and an input is not the result of a part.
pub fn run<B: Backend, M: Module<B> + 'static>(
    module: &M,
    inputs: Vec<Tensor<B, 3>>,
    part: impl Fn(&M, Vec<Tensor<B, 3>>) -> Vec<Tensor<B, 3>> + 'static,
) -> Vec<Tensor<B, 3>> {
    if !is_cut::<B>() {
        return part(module, inputs);
    }
    assert!(
        inputs.iter().all(Tensor::is_require_grad),
        "an input of a part is not the result of a part"
    );
    let (quiet_module, quiet_inputs) = (module.clone().no_grad(), quiet(&inputs));
    let seeds = now(|recording: &mut Recording<B>| (recording.seeds, recording.seeded));
    let (seeds, seeded) = seeds.unwrap_or_default();
    let inner = Recording::<B>::uncut(seeds, seeded);
    let (outputs, inner) = inner.during(|| part(&quiet_module, quiet_inputs));
    let outputs: Vec<_> = outputs.into_iter().map(Tensor::require_grad).collect();
    let module = module.clone();
    now(|recording| {
        recording.seeded = inner.seeded;
        recording.statistics.extend(inner.statistics);
        recording.parts.push(Part {
            outputs: outputs.clone(),
            again: Box::new(move || part(&module, inputs)),
            seeded,
        });
    });
    outputs
}

/// Runs `pass` with the parameters of `module` on `inputs`, each `[batch, time, width]`, without a graph. No gradient
/// reaches the parameters or the inputs through the result. If the surrounding pass is cut, the result is the output of
/// a part, and `pass` does not run again.
pub fn without_gradient<B: Backend, M: Module<B>>(
    module: &M,
    inputs: Vec<Tensor<B, 3>>,
    pass: impl FnOnce(&M, Vec<Tensor<B, 3>>) -> Tensor<B, 3>,
) -> Tensor<B, 3> {
    let cut = now(|recording: &mut Recording<B>| recording.cut.take()).flatten();
    let result = pass(&module.clone().no_grad(), quiet(&inputs));
    now(|recording: &mut Recording<B>| recording.cut = cut);
    run(&Plain, vec![], move |_, _| vec![result.clone()]).remove(0)
}

/// Returns the values of `inputs`, without their graph. `detach` alone leaves a leaf unchanged, and a leaf can require
/// a gradient.
fn quiet<B: Backend>(inputs: &[Tensor<B, 3>]) -> Vec<Tensor<B, 3>> {
    let inputs = inputs.iter().cloned();
    inputs.map(|x| x.detach().set_require_grad(false)).collect()
}

/// Adds an update of a running statistic to the recording of this pass, if there is one.
pub(crate) fn note<B: Backend>(statistic: Statistic<B>) {
    now(|recording: &mut Recording<B>| recording.statistics.push(statistic));
}

/// Calls `f` with the recording of this pass, if there is one.
fn now<B: Backend, T>(f: impl FnOnce(&mut Recording<B>) -> T) -> Option<T> {
    NOW.with_borrow_mut(|now| now.as_mut()?.downcast_mut().map(f))
}

/// Restores the recording of the surrounding pass, even after a panic.
struct Around(Option<Box<dyn Any>>);

impl Drop for Around {
    fn drop(&mut self) {
        NOW.set(self.0.take());
    }
}

impl<B: Backend> Recording<B> {
    /// Takes the updates of running statistics that the pass noted, in order.
    pub fn take_statistics(&mut self) -> Vec<Statistic<B>> {
        std::mem::take(&mut self.statistics)
    }

    fn uncut(seeds: Seeds, seeded: u64) -> Self {
        Self {
            seeds,
            seeded,
            cut: None,
            updates: false,
            followed: false,
            precision: Precision::now(),
            parts: Vec::new(),
            statistics: Vec::new(),
        }
    }

    /// Records `pass`.
    fn during<T>(self, pass: impl FnOnce() -> T) -> (T, Self) {
        let around = Around(NOW.replace(Some(Box::new(self))));
        let result = pass();
        let now = NOW.take().and_then(|now| now.downcast().ok());
        drop(around);
        let recording = now.unwrap_or_else(|| unreachable!("it was put there"));
        (result, *recording)
    }
}

impl<B: AutodiffBackend> Recording<B> {
    /// Adds the gradients of `loss`, `[1]`, with respect to the parameters of `model` to `sum`.
    pub fn add_gradients<M: Module<B>>(
        self,
        loss: Tensor<B, 1>,
        model: &M,
        sum: &mut GradientsParams,
    ) {
        let Self {
            seeds,
            precision,
            mut parts,
            ..
        } = self;
        let mut gradients = loss.backward();
        if parts.is_empty() {
            return add_gradients(gradients, model, sum);
        }
        // The gradients so far of each part's outputs. They are complete only when the loop reaches the part, because
        // later parts may read its outputs too.
        let no_gradient = |part: &Part<B>| vec![None; part.outputs.len()];
        let mut of_outputs: Vec<Vec<Option<Tensor<B::InnerBackend, 3>>>> =
            parts.iter().map(no_gradient).collect();
        let mut own = GradientsParams::new();
        loop {
            for (part, of_outputs) in parts.iter().zip(&mut of_outputs) {
                for (output, sum) in part.outputs.iter().zip(of_outputs) {
                    if let Some(new) = output.grad_remove(&mut gradients) {
                        *sum = Some(match sum.take() {
                            Some(sum) => sum + new,
                            None => new,
                        });
                    }
                }
            }
            add_gradients(gradients, model, &mut own);
            let (Some(part), Some(of_outputs)) = (parts.pop(), of_outputs.pop()) else {
                break;
            };
            drop(part.outputs);
            let again = Recording::<B>::uncut(seeds, part.seeded);
            let (outputs, _) = precision.during(|| again.during(part.again));
            let device = outputs[0].device();
            // The sum starts from a new leaf, because the outputs may depend on no leaf at all.
            let mut product = Tensor::<B, 1>::zeros([1], &device).require_grad();
            for (output, gradient) in outputs.into_iter().zip(of_outputs) {
                if let Some(gradient) = gradient {
                    product = product + (output * Tensor::from_inner(gradient)).sum();
                }
            }
            gradients = product.backward();
        }
        merge_gradients::<B, M>(own, model, sum);
    }
}
