//! The depth map of a model shows how much of each earlier output every branch reads. All connections call their branch
//! through a [`BranchFn`](crate::BranchFn), so maps exist for models with any connection:
//!
//! ```text
//! h_i ≈ Σ_{j < i} w_ij f_j        f_0 = x_0,  f_j the output of branch j,  h_i the input of branch i before its norm
//! ```
//!
//! In the last row, h_i is the end of the stream, before the final norm. If q, k and v of an attention sublayer read
//! different inputs, h_i is the input of v. The weights are fitted by least squares over all positions and channels.
//! They are exact if each connection weights whole outputs by numbers that do not depend on the position. For example,
//! every w is 1 with plain connections. For other connections, the sum only approximates h_i.

use std::any::type_name;
use std::cell::RefCell;

use burn::tensor::{Tensor, backend::Backend};
use thiserror::Error;

/// The depth map of one stream: the weights w_ij in h_i ≈ Σ_{j < i} w_ij f_j. f_0 is x_0, the start of the stream, and
/// f_j is the output of branch j. h_i is the input of branch i before its norm or, in the last row, the end of the
/// stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DepthMap {
    /// The type of each branch, in order of depth.
    pub branches: Vec<String>,
    /// w_ij, with a row for each branch and one for the end of the stream. Row i has a weight for x_0 and for each
    /// branch before branch i. The weight of an output that is zero, or a linear combination of earlier outputs, is
    /// zero.
    pub weights: Vec<Vec<f64>>,
    /// The share of h_i that each weighted output accounts for, w_ij ⟨f_j, h_i⟩ / ⟨h_i, h_i⟩. A share is negative if
    /// the weighted output points against h_i.
    pub shares: Vec<Vec<f64>>,
    /// Whether the least-squares weights of each row are unique, apart from the weights of outputs that are zero. They
    /// are not unique if a non-zero output is a linear combination of earlier outputs. There is always such an output
    /// if there are more non-zero outputs than numbers in each output.
    pub unique: Vec<bool>,
}

impl DepthMap {
    /// Returns, for each h_i, the share of its squared norm that all outputs together account for: 1 if the weights are
    /// exact.
    pub fn explained(&self) -> Vec<f64> {
        let sum = |shares: &Vec<f64>| shares.iter().sum();
        self.shares.iter().map(sum).collect()
    }
}

/// The reason why a model has no depth map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DepthError {
    /// Outputs of one stream have different sizes, as in a ResNet of several stages.
    #[error("outputs of different sizes cannot be added")]
    Sizes,
    /// The model opened no stream.
    #[error("the model opens no stream")]
    Nothing,
    /// Two passes opened different streams, because the streams of the model depend on its input.
    #[error("its streams depend on the input")]
    Other,
}

thread_local! {
    /// The streams of the recorded pass on this thread.
    static NOW: RefCell<Option<Vec<Seen>>> = const { RefCell::new(None) };
}

/// The vectors of one stream, over all positions and channels.
#[derive(Default)]
struct Seen {
    branches: Vec<String>,
    /// f_0, f_1, …
    outputs: Vec<Vec<f32>>,
    /// h_1, h_2, …
    inputs: Vec<Vec<f32>>,
}

/// Fits the depth maps of a model to the passes that are added.
#[derive(Clone, Debug, Default)]
pub struct DepthFit {
    streams: Vec<Sums>,
}

/// The scalar products of one stream, summed over passes.
#[derive(Clone, Debug, PartialEq)]
struct Sums {
    branches: Vec<String>,
    /// ⟨f_j, f_k⟩ for k ≤ j.
    outputs: Vec<Vec<f64>>,
    /// ⟨f_j, h_i⟩ for j < i.
    inputs: Vec<Vec<f64>>,
    /// ⟨h_i, h_i⟩.
    squares: Vec<f64>,
}

impl DepthFit {
    /// Adds a pass of the model. Each pass must open the same streams, one after the other; a recurrence opens one for
    /// each window of each layer.
    ///
    /// # Errors
    ///
    /// Returns an error if the pass opens no stream or other streams than before, or if the size of a stream changes.
    pub fn add(&mut self, pass: impl FnOnce()) -> Result<(), DepthError> {
        let before = NOW.replace(Some(Vec::new()));
        pass();
        let streams = NOW.replace(before).unwrap_or_default();
        let new = streams
            .iter()
            .map(Sums::of)
            .collect::<Result<Vec<_>, _>>()?;
        if new.is_empty() {
            return Err(DepthError::Nothing);
        }
        if self.streams.is_empty() {
            self.streams = new;
            return Ok(());
        }
        let names = |streams: &[Sums]| -> Vec<Vec<String>> {
            streams.iter().map(|sums| sums.branches.clone()).collect()
        };
        if names(&self.streams) != names(&new) {
            return Err(DepthError::Other);
        }
        for (sums, new) in self.streams.iter_mut().zip(&new) {
            sums.add(new);
        }
        Ok(())
    }

    /// Returns the map of each stream.
    pub fn maps(&self) -> Vec<DepthMap> {
        self.streams.iter().map(Sums::map).collect()
    }
}

/// Whether this pass is recorded.
pub(crate) fn is_recorded() -> bool {
    NOW.with_borrow(Option::is_some)
}

/// Notes x_0 of a new stream.
pub(crate) fn opened<B: Backend>(x: &Tensor<B, 3>) {
    note(x, |streams, x| {
        streams.push(Seen {
            outputs: vec![x],
            ..Seen::default()
        });
    });
}

/// Computes f(x) with `f`, and notes x and f(x). The streams inside the branch `M` are not noted.
pub(crate) fn branch<B: Backend, M>(
    x: Tensor<B, 3>,
    f: impl FnOnce(Tensor<B, 3>) -> Tensor<B, 3>,
) -> Tensor<B, 3> {
    if !is_recorded() {
        return f(x);
    }
    read(&x);
    let outer = NOW.take();
    let y = f(x);
    NOW.set(outer);
    note(&y, |streams, y| {
        if let Some(stream) = streams.last_mut() {
            stream.branches.push(short_name::<M>());
            stream.outputs.push(y);
        }
    });
    y
}

/// Notes the input of a branch, or the end of the stream.
pub(crate) fn read<B: Backend>(x: &Tensor<B, 3>) {
    note(x, |streams, x| {
        if let Some(stream) = streams.last_mut() {
            stream.inputs.push(x);
        }
    });
}

fn note<B: Backend>(x: &Tensor<B, 3>, to: impl FnOnce(&mut Vec<Seen>, Vec<f32>)) {
    NOW.with_borrow_mut(|now| {
        if let Some(streams) = now {
            to(streams, x.to_data().iter().collect());
        }
    });
}

/// Returns the name of a type without its path and parameters.
fn short_name<M>() -> String {
    let name = type_name::<M>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name).to_owned()
}

impl Sums {
    fn of(seen: &Seen) -> Result<Self, DepthError> {
        let (outputs, inputs) = (&seen.outputs, &seen.inputs);
        let size = outputs[0].len();
        if outputs.iter().chain(inputs).any(|one| one.len() != size) {
            return Err(DepthError::Sizes);
        }
        let with = |one: &Vec<f32>, count: usize| -> Vec<f64> {
            outputs.iter().take(count).map(|f| dot(f, one)).collect()
        };
        let of = |vectors: &[Vec<f32>]| -> Vec<Vec<f64>> {
            let each = vectors.iter().enumerate();
            each.map(|(i, one)| with(one, i + 1)).collect()
        };
        Ok(Self {
            branches: seen.branches.clone(),
            outputs: of(outputs),
            inputs: of(inputs),
            squares: inputs.iter().map(|h| dot(h, h)).collect(),
        })
    }

    fn add(&mut self, new: &Self) {
        let rows = self.outputs.iter_mut().chain(&mut self.inputs);
        let rows = rows.chain([&mut self.squares]);
        let added = new.outputs.iter().chain(&new.inputs).chain([&new.squares]);
        for (row, new) in rows.zip(added) {
            for (sum, new) in row.iter_mut().zip(new) {
                *sum += new;
            }
        }
    }

    /// Solves the normal equations of each row, Σ_k ⟨f_j, f_k⟩ w_k = ⟨f_j, h_i⟩, with outputs of unit norm.
    fn map(&self) -> DepthMap {
        let unit = |row: &Vec<f64>| match row.last() {
            Some(square) if *square > 0.0 => square.sqrt().recip(),
            _ => 0.0,
        };
        let units: Vec<f64> = self.outputs.iter().map(unit).collect();
        let scaled = |row: &Vec<f64>, by: f64| -> Vec<f64> {
            row.iter()
                .zip(&units)
                .map(|(x, unit)| x * unit * by)
                .collect()
        };
        let products = self.outputs.iter().zip(&units);
        let products: Vec<Vec<f64>> = products.map(|(row, unit)| scaled(row, *unit)).collect();
        let mut map = DepthMap {
            branches: self.branches.clone(),
            ..DepthMap::default()
        };
        for (row, square) in self.inputs.iter().zip(&self.squares) {
            let with = scaled(row, 1.0);
            let (solved, independent) = solve(&products, &with);
            let is_unique = |(is_independent, unit): (&bool, &f64)| *is_independent || *unit == 0.0;
            map.unique
                .push(independent.iter().zip(&units).all(is_unique));
            // An input that is zero has shares of zero.
            let square = square.max(f64::MIN_POSITIVE);
            let shares = solved.iter().zip(&with).map(|(w, with)| w * with / square);
            map.shares.push(shares.collect());
            map.weights.push(scaled(&solved, 1.0));
        }
        map
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}

/// Solves A x = b by Cholesky decomposition, given the lower half of a positive semidefinite A with a diagonal of ones
/// and zeros. A can have more rows than b. Returns x, and whether each row is independent of the rows before it. A
/// dependent row has a pivot of at most 1e-9, and its x is zero.
fn solve(a: &[Vec<f64>], b: &[f64]) -> (Vec<f64>, Vec<bool>) {
    let count = b.len();
    let mut l = vec![vec![0.0; count]; count];
    let mut independent = vec![false; count];
    let mut y = vec![0.0; count];
    for i in 0..count {
        for j in 0..i {
            let before: f64 = (0..j).map(|k| l[i][k] * l[j][k]).sum();
            if independent[j] {
                l[i][j] = (a[i][j] - before) / l[j][j];
            }
        }
        let before: f64 = l[i].iter().map(|x| x * x).sum();
        let pivot = a[i][i] - before;
        independent[i] = pivot > 1e-9;
        if independent[i] {
            l[i][i] = pivot.sqrt();
            let before: f64 = (0..i).map(|k| l[i][k] * y[k]).sum();
            y[i] = (b[i] - before) / l[i][i];
        }
    }
    let mut x = vec![0.0; count];
    for i in (0..count).rev().filter(|i| independent[*i]) {
        let after: f64 = (i + 1..count).map(|k| l[k][i] * x[k]).sum();
        x[i] = (y[i] - after) / l[i][i];
    }
    (x, independent)
}
