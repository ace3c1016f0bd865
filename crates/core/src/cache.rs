//! State that an incremental pass keeps between calls.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

/// State that an incremental pass keeps for each row of a batch. A row is one sequence of the batch.
///
/// Rows that began at different times can be continued together if their caches can be joined. A cache that keeps all
/// rows at the same position cannot be joined; `impl Cache for MyCache {}` is enough for such a cache.
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

    /// Removes the rows whose entry in `keep` is false.
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

/// The cache of an optional module.
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

/// The caches of two modules, such as sublayers.
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

/// The last positions of a tensor `[rows, time, channels]` that a sum over positions reads again; `None` before the
/// first position.
#[derive(Clone, Debug)]
pub struct Past<B: Backend>(Option<Tensor<B, 3>>);

impl<B: Backend> Default for Past<B> {
    fn default() -> Self {
        Self(None)
    }
}

impl<B: Backend> Past<B> {
    /// Prepends the `count` earlier positions to z `[rows, time, channels]`. Returns `[rows, count + time, channels]`,
    /// and keeps the last `count` positions of this result in `past`. Positions before the first one are zero. Without
    /// a `past`, z is the whole sequence.
    pub fn before(past: Option<&mut Self>, z: Tensor<B, 3>, count: usize) -> Tensor<B, 3> {
        if count == 0 {
            return z;
        }
        let [rows, time, channels] = z.dims();
        let nothing = || Tensor::zeros([rows, count, channels], &z.device());
        let before = past.as_ref().and_then(|past| past.0.clone());
        let all = Tensor::cat(vec![before.unwrap_or_else(nothing), z], 1);
        if let Some(past) = past {
            past.0 = Some(all.clone().narrow(1, time, count));
        }
        all
    }
}

impl<B: Backend> Cache for Past<B> {
    fn joins(&self) -> bool {
        true
    }

    fn join(&mut self, other: Self) {
        let parts: Vec<_> = [self.0.take(), other.0].into_iter().flatten().collect();
        self.0 = (!parts.is_empty()).then(|| Tensor::cat(parts, 0));
    }

    fn keep(&mut self, keep: &[bool]) {
        let kept = keep.iter().enumerate().filter(|(_, keep)| **keep);
        let kept: Vec<i32> = kept.map(|(row, _)| row as i32).collect();
        let Some(past) = self.0.take() else { return };
        if !kept.is_empty() {
            let rows = TensorData::new(kept.clone(), [kept.len()]);
            let rows = Tensor::<B, 1, Int>::from_data(rows, &past.device());
            self.0 = Some(past.select(0, rows));
        }
    }
}

/// Number of positions that each row of a batch has seen, as pairs `(rows, positions)`. An empty list means that no row
/// has seen a position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(Vec<(usize, usize)>);

impl Seen {
    /// Returns the number of positions, if it is the same for all rows.
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

    /// Returns the number of positions that each row has seen.
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
