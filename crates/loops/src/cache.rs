//! The state of an incremental pass.

use residual_zoo_core::{Cache, Seen};

/// The cache of [`Loops`](crate::Loops) whose layers have caches of type `C`. Each layer of the prelude and of the coda
/// has one cache. Each layer of the core has one cache for each loop.
#[derive(Clone, Debug)]
pub struct LoopsCache<C> {
    pub(crate) seen: Seen,
    pub(crate) prelude: Vec<C>,
    /// The caches of all layers of the core, by loop.
    pub(crate) core: Vec<Vec<C>>,
    pub(crate) coda: Vec<C>,
}

impl<C: Cache> Cache for LoopsCache<C> {
    fn joins(&self) -> bool {
        self.prelude.joins() && self.core.joins() && self.coda.joins()
    }

    fn join(&mut self, other: Self) {
        self.seen.join(other.seen);
        self.prelude.join(other.prelude);
        self.core.join(other.core);
        self.coda.join(other.coda);
    }

    fn keep(&mut self, keep: &[bool]) {
        self.seen.keep(keep);
        self.prelude.keep(keep);
        self.core.keep(keep);
        self.coda.keep(keep);
    }
}
