//! The forms of res, the matrix that mixes the streams.

use burn::tensor::activation::softmax;
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::ConfigError;
use residual_zoo_core::ops::mix::mix;
use serde::{Deserialize, Serialize};

/// The form of res, the doubly stochastic matrix that mixes the n streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MhcResidual {
    /// The matrix of mHC. A finite number of Sinkhorn's normalisations makes it doubly stochastic up to a small error.
    #[default]
    Sinkhorn,
    /// I, so streams are not mixed: Identity HC (iHC).
    Identity,
    /// A convex combination of all n! permutations, for up to 5 streams: mHC-lite.
    Permutations,
    /// A convex combination of these permutations, such as `Chosen([[0, 1, 2], [1, 2, 0], [2, 0, 1]])`. In the
    /// matrix of a permutation `order`, row s has its 1 in column `order[s]`.
    Chosen(Vec<Vec<usize>>),
    /// The Kronecker product of factors of these sizes, such as `Kronecker([2, 2])`: KromHC. The sizes multiply to n.
    /// Each factor is a convex combination of all its permutations. The KromHC code takes only factors of 2.
    Kronecker(Vec<usize>),
}

/// Maximum number of permutations in a softmax, 5!. With all 6! permutations of 6 streams, the map to z_res would have
/// 4320 D parameters. GPT-2's feed-forward network of width D has 8 D².
const MOST: usize = 120;

impl MhcResidual {
    /// Returns the length of z_res.
    pub(super) fn columns(&self, n: usize) -> usize {
        match self {
            Self::Sinkhorn => n * n,
            Self::Identity => 0,
            Self::Permutations => factorial(n),
            Self::Chosen(orders) => orders.len(),
            Self::Kronecker(factors) => {
                let counts = factors.iter().map(|f| factorial(*f));
                counts.fold(0, usize::saturating_add)
            }
        }
    }

    /// Returns the permutations of each factor of res; empty for `Sinkhorn` and `Identity`.
    fn factors(&self, n: usize) -> Vec<Vec<Vec<usize>>> {
        match self {
            Self::Sinkhorn | Self::Identity => Vec::new(),
            Self::Permutations => vec![orders(n)],
            Self::Chosen(orders) => vec![orders.clone()],
            Self::Kronecker(factors) => factors.iter().map(|f| orders(*f)).collect(),
        }
    }

    /// Computes res `[batch, time, n, n]` from z_res `[batch, time, columns]`; `None` for `Sinkhorn` and `Identity`.
    pub(super) fn convex<B: Backend>(&self, z: Tensor<B, 3>, n: usize) -> Option<Tensor<B, 4>> {
        let mut at = 0;
        let mut next = |orders: Vec<Vec<usize>>| {
            let u = combination(z.clone().narrow(2, at, orders.len()), &orders);
            at += orders.len();
            u
        };
        let factors: Vec<_> = self.factors(n).into_iter().map(&mut next).collect();
        factors.into_iter().reduce(kronecker)
    }

    /// Returns b_res: 0 on the diagonal, or for identity permutations, and `others` elsewhere.
    pub(super) fn near_identity(&self, n: usize, others: f64) -> Vec<f64> {
        let b = |is_identity| if is_identity { 0.0 } else { others };
        match self {
            Self::Sinkhorn => (0..n * n).map(|at| b(at / n == at % n)).collect(),
            _ => {
                let all = self.factors(n).into_iter().flatten();
                all.map(|order| b(order.is_sorted())).collect()
            }
        }
    }

    /// Whether res can be the identity.
    pub(super) fn has_identity(&self) -> bool {
        match self {
            Self::Chosen(orders) => orders.iter().any(|order| order.is_sorted()),
            _ => true,
        }
    }

    /// Checks that this form fits `n` streams. `Permutations` allows at most 5 streams. `Chosen` must list 2 to 120
    /// distinct permutations of the streams, and `Kronecker` factors from 2 to 5 whose product is `n`.
    pub(super) fn validate(&self, n: usize) -> Result<(), ConfigError> {
        let wrong = |problem| Err(ConfigError::new("residual", problem));
        match self {
            Self::Sinkhorn | Self::Identity => Ok(()),
            Self::Permutations if factorial(n) > MOST => wrong(format!(
                "is Permutations, a softmax over n! permutations, but `n` is {n}, and {n}! is above {MOST}; use {}",
                instead(n)
            )),
            Self::Permutations => Ok(()),
            Self::Chosen(orders) => {
                let wrong_one = orders.iter().find(|order| {
                    let mut sorted = (*order).clone();
                    sorted.sort_unstable();
                    !sorted.into_iter().eq(0..n)
                });
                let twice = orders
                    .iter()
                    .enumerate()
                    .find(|(i, order)| orders[..*i].contains(order));
                match (orders.len(), wrong_one, twice) {
                    (2..=MOST, None, None) => Ok(()),
                    (_, Some(order), _) => wrong(format!(
                        "has {order:?}, which is not a permutation of the `n` = {n} streams 0 to {}",
                        n.saturating_sub(1)
                    )),
                    (_, _, Some((_, order))) => wrong(format!("has {order:?} twice")),
                    (count, ..) => wrong(format!(
                        "has {count} permutations; it must have from 2 to {MOST}"
                    )),
                }
            }
            Self::Kronecker(factors) => {
                let product = factors.iter().try_fold(1usize, |a, f| a.checked_mul(*f));
                let unfit = factors
                    .iter()
                    .find(|f| !(2..=MOST).contains(&factorial(**f)));
                match (unfit, product) {
                    (Some(factor), _) => wrong(format!(
                        "has the factor {factor}; each factor must be from 2 to 5, because it takes a softmax over all its \
                         permutations"
                    )),
                    (None, Some(product)) if product == n => Ok(()),
                    _ => wrong(format!(
                        "is Kronecker({factors:?}), but the product of the factors must be `n` = {n}"
                    )),
                }
            }
        }
    }
}

/// Names the forms of res that fit n streams, for an error message.
fn instead(n: usize) -> String {
    let mut factors = Vec::new();
    let mut rest = n;
    for f in [2, 3, 5] {
        while rest.is_multiple_of(f) {
            factors.push(f);
            rest /= f;
        }
    }
    match rest {
        1 => format!("Kronecker({factors:?}), a list of `Chosen` permutations, or up to 5 streams"),
        _ => "a list of `Chosen` permutations, or up to 5 streams".into(),
    }
}

/// Computes n!, saturated at `usize::MAX`.
fn factorial(n: usize) -> usize {
    (1..=n.min(MOST)).fold(1, usize::saturating_mul)
}

/// Returns all permutations of n streams in lexicographic order, so the identity is the first.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let longer = |order: Vec<usize>| {
        let rest = (0..n).filter(|next| !order.contains(next));
        let all = rest.map(|next| [&order[..], &[next]].concat());
        all.collect::<Vec<_>>()
    };
    let first = vec![Vec::new()];
    (0..n).fold(first, |orders, _| {
        orders.into_iter().flat_map(longer).collect()
    })
}

/// Computes Σ_k softmax(z)_k Π_k, `[batch, time, n, n]`, for z `[batch, time, permutations]`.
fn combination<B: Backend>(z: Tensor<B, 3>, orders: &[Vec<usize>]) -> Tensor<B, 4> {
    let [batch, time, count] = z.dims();
    let n = orders[0].len();
    let mut ones = vec![0.0f32; count * n * n];
    for (k, order) in orders.iter().enumerate() {
        for (row, column) in order.iter().enumerate() {
            ones[(k * n + row) * n + column] = 1.0;
        }
    }
    let ones = Tensor::from_data(TensorData::new(ones, [1, 1, count, n * n]), &z.device());
    // A matrix product may round its factors, and the rows and columns would then not sum to 1. `mix` does not.
    mix(ones, softmax(z, 2).unsqueeze_dim(3)).reshape([batch, time, n, n])
}

/// Returns the Kronecker product of a `[batch, time, n, n]` and b `[batch, time, m, m]`, `[batch, time, n · m, n · m]`.
fn kronecker<B: Backend>(a: Tensor<B, 4>, b: Tensor<B, 4>) -> Tensor<B, 4> {
    let ([batch, time, n, _], [_, _, m, _]) = (a.dims(), b.dims());
    let a: Tensor<B, 5> = a.reshape([batch * time, n, 1, n, 1]);
    let b = b.reshape([batch * time, 1, m, 1, m]);
    (a * b).reshape([batch, time, n * m, n * m])
}
