//! State that an incremental pass keeps between calls.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

/// State that an incremental pass keeps for each row of a batch.
///
/// Rows that began at different times can be continued together if their caches can be joined. A cache that holds all
/// rows at one position cannot be joined; it needs only `impl Cache for MyCache {}`.
pub trait Cache: Clone + Send {
    /// Whether rows at different positions fit into one cache. Only then may [`join`](Self::join) and
    /// [`keep`](Self::keep) be called.
    fn joins(&self) -> bool {
        false
    }

    /// Appends the rows of `other`.
    ///
    /// # Panics
    ///
    /// Panics if this cache does not [join](Self::joins).
    fn join(&mut self, other: Self) {
        drop(other);
        unreachable!("this cache joins no others");
    }

    /// Removes the rows whose entry of `keep` is false.
    ///
    /// # Panics
    ///
    /// Panics if this cache does not [join](Self::joins).
    fn keep(&mut self, keep: &[bool]) {
        let _ = keep;
        unreachable!("this cache keeps all rows");
    }
}

/// The cache of a branch without memory.
impl Cache for () {
    fn joins(&self) -> bool {
        true
    }

    fn join(&mut self, (): Self) {}

    fn keep(&mut self, _: &[bool]) {}
}

/// The cache of an optional part.
impl<C: Cache> Cache for Option<C> {
    fn joins(&self) -> bool {
        self.as_ref().is_none_or(C::joins)
    }

    fn join(&mut self, other: Self) {
        if let (Some(cache), Some(other)) = (self, other) {
            cache.join(other);
        }
    }

    fn keep(&mut self, keep: &[bool]) {
        if let Some(cache) = self {
            cache.keep(keep);
        }
    }
}

/// The caches of two sublayers.
impl<A: Cache, F: Cache> Cache for (A, F) {
    fn joins(&self) -> bool {
        self.0.joins() && self.1.joins()
    }

    fn join(&mut self, other: Self) {
        self.0.join(other.0);
        self.1.join(other.1);
    }

    fn keep(&mut self, keep: &[bool]) {
        self.0.keep(keep);
        self.1.keep(keep);
    }
}

/// The caches of layers.
impl<C: Cache> Cache for Vec<C> {
    fn joins(&self) -> bool {
        self.iter().all(C::joins)
    }

    fn join(&mut self, other: Self) {
        self.iter_mut()
            .zip(other)
            .for_each(|(layer, other)| layer.join(other));
    }

    fn keep(&mut self, keep: &[bool]) {
        self.iter_mut().for_each(|layer| layer.keep(keep));
    }
}

/// Number of positions that each row of a batch has seen, as pairs `(rows, positions)`. An empty list means that no row
/// has seen a position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(Vec<(usize, usize)>);

impl Seen {
    /// Number of positions, if it is the same for all rows.
    pub fn same(&self) -> Option<usize> {
        let Some(&(_, first)) = self.0.first() else {
            return Some(0);
        };
        self.0
            .iter()
            .all(|&(_, seen)| seen == first)
            .then_some(first)
    }

    /// Adds `rows` rows that have seen `seen` positions.
    pub fn push(&mut self, rows: usize, seen: usize) {
        self.0.push((rows, seen));
    }

    /// Returns the positions of the next `new` tokens, `[rows, new]`, or `[1, new]` if all rows share them.
    pub fn next<B: Backend>(&self, new: usize, device: &B::Device) -> Tensor<B, 2, Int> {
        let starts: Vec<usize> = match self.same() {
            Some(start) => vec![start],
            None => self.rows().collect(),
        };
        let positions = starts
            .iter()
            .flat_map(|start| *start as i32..(start + new) as i32);
        let positions = TensorData::new(positions.collect::<Vec<_>>(), [starts.len(), new]);
        Tensor::from_data(positions, device)
    }

    /// Number of positions that each row has seen.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        self.0
            .iter()
            .flat_map(|&(rows, seen)| std::iter::repeat_n(seen, rows))
    }

    /// Counts `new` more positions for each of the `rows` rows.
    pub fn advance(&mut self, rows: usize, new: usize) {
        if self.0.is_empty() {
            self.push(rows, 0);
        }
        self.0.iter_mut().for_each(|(_, seen)| *seen += new);
    }
}

impl Cache for Seen {
    fn joins(&self) -> bool {
        true
    }

    fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn keep(&mut self, keep: &[bool]) {
        let kept = self.rows().zip(keep).filter(|(_, keep)| **keep);
        self.0 = kept.map(|(seen, _)| (1, seen)).collect();
    }
}
