//! The processes that train one run together, started by `mpirun` or `srun`.
//!
//! Rank 0 leads: it announces each action, and the others follow. [`join`] connects the processes, which needs the
//! cargo feature `mpi`.

use std::fmt;

/// The environment variables in which Open MPI, MPICH and Slurm's `srun` give the number of started processes. Slurm
/// does not set the last one for an `sbatch` script.
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];
/// Environment variables with the index of this process on its machine.
const LOCAL_RANKS: [&str; 3] = [
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
];

/// Returns the number of processes that started together with this one, itself included.
pub fn started() -> usize {
    SIZES.into_iter().find_map(number).unwrap_or(1)
}

/// Returns the index of this process on its machine, if the program that started the processes gives one.
pub fn local_rank() -> Option<usize> {
    LOCAL_RANKS.into_iter().find_map(number)
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A process of a team.
#[cfg(feature = "mpi")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Team {
    rank: usize,
    size: usize,
}

/// A process of a team. Without MPI, there is none.
#[cfg(not(feature = "mpi"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Team {}

/// The connection to the team. When the leader drops it, the others learn that the leader has ended. If a panic drops
/// it in any process, all processes end.
pub struct Membership {
    team: Team,
    #[cfg(feature = "mpi")]
    _universe: mpi::environment::Universe,
}

/// The reason why a process cannot join its team.
#[derive(Debug)]
pub struct NotJoined(String);

impl fmt::Display for NotJoined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotJoined {}

/// Joins the processes that were started together. Returns `None` if this is the only process. Call this function once.
///
/// # Errors
///
/// Returns an error if there are several processes and they cannot be connected.
pub fn join() -> Result<Option<Membership>, NotJoined> {
    match started() {
        0 | 1 => Ok(None),
        size => connect(size).map(Some),
    }
}

#[cfg(not(feature = "mpi"))]
fn connect(size: usize) -> Result<Membership, NotJoined> {
    Err(NotJoined(format!(
        "this is one of {size} processes, which needs the cargo feature `mpi`; build the program with \
         `cargo build --release --features mpi`"
    )))
}

#[cfg(feature = "mpi")]
fn connect(size: usize) -> Result<Membership, NotJoined> {
    use mpi::traits::Communicator;
    let failed = |problem: &str| NotJoined(format!("{size} processes were started, but {problem}"));
    let universe = mpi::initialize().ok_or_else(|| failed("MPI was initialized before"))?;
    let world = universe.world();
    let (rank, joined) = (world.rank() as usize, world.size() as usize);
    if joined != size {
        return Err(failed(&format!(
            "MPI connects {joined}; the program was built for a different MPI than the one that started it, or Slurm \
             needs `srun --mpi=pmix`"
        )));
    }
    Ok(Membership {
        team: Team { rank, size },
        _universe: universe,
    })
}

impl Membership {
    /// Returns this process as a member of the team.
    pub fn team(&self) -> Team {
        self.team
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        match std::thread::panicking() {
            // The other processes may be in the middle of a step.
            true => self.team.abort(101),
            false if self.team.leads() => self.team.send(&[]),
            false => {}
        }
    }
}

#[cfg(not(feature = "mpi"))]
#[expect(missing_docs, reason = "they are those with MPI")]
impl Team {
    pub fn rank(&self) -> usize {
        match *self {}
    }

    pub fn size(&self) -> usize {
        match *self {}
    }

    pub fn leads(&self) -> bool {
        match *self {}
    }

    pub fn send(&self, _: &[u8]) {
        match *self {}
    }

    pub fn receive(&self) -> Option<Vec<u8>> {
        match *self {}
    }

    pub fn broadcast<T>(&self, _: &mut [T]) {
        match *self {}
    }

    pub fn broadcast_from<T>(&self, _: usize, _: &mut [T]) {
        match *self {}
    }

    pub fn sum(&self, _: &mut [f32]) {
        match *self {}
    }

    pub fn gather(&self, _: [u8; 32]) -> Vec<[u8; 32]> {
        match *self {}
    }

    pub fn first_problem(&self, _: Option<String>) -> Option<(usize, String)> {
        match *self {}
    }

    pub fn abort(&self, _: i32) -> ! {
        match *self {}
    }
}

#[cfg(feature = "mpi")]
impl Team {
    /// Returns the index of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether the others follow this process.
    pub fn leads(&self) -> bool {
        self.rank == 0
    }
}

/// Maximum number of bytes per message, because MPI counts in 32 bits.
#[cfg(feature = "mpi")]
const MOST: usize = 1 << 30;

/// Maximum number of values that are summed at once: 64 MiB, held twice.
#[cfg(feature = "mpi")]
const BUCKET: usize = 1 << 24;

#[cfg(feature = "mpi")]
impl Team {
    fn world() -> mpi::topology::SimpleCommunicator {
        mpi::topology::SimpleCommunicator::world()
    }

    /// Sends a message from the leader to all others. An empty message says that the leader has ended.
    pub fn send(&self, message: &[u8]) {
        let mut length = message.len() as u64;
        self.broadcast(std::slice::from_mut(&mut length));
        // MPI requires a mutable buffer.
        let mut message = message.to_vec();
        self.broadcast(&mut message);
    }

    /// Receives the next message from the leader; `None` if the leader has ended.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut length = 0u64;
        self.broadcast(std::slice::from_mut(&mut length));
        let mut message = vec![0; length as usize];
        self.broadcast(&mut message);
        (length > 0).then_some(message)
    }

    /// Copies the leader's `values` to all processes.
    pub fn broadcast<T: mpi::traits::Equivalence>(&self, values: &mut [T]) {
        self.broadcast_from(0, values);
    }

    /// Copies the `values` of process `rank` to all processes.
    pub fn broadcast_from<T: mpi::traits::Equivalence>(&self, rank: usize, values: &mut [T]) {
        use mpi::traits::{Communicator, Root};
        let world = Self::world();
        let sender = world.process_at_rank(rank as i32);
        for part in values.chunks_mut(MOST / size_of::<T>()) {
            sender.broadcast_into(part);
        }
    }

    /// Replaces `values` with their sum over all processes, bit-identical in all processes.
    pub fn sum(&self, values: &mut [f32]) {
        use mpi::collective::SystemOperation;
        use mpi::traits::CommunicatorCollectives;
        let world = Self::world();
        for part in values.chunks_mut(BUCKET) {
            let own = part.to_vec();
            world.all_reduce_into(&own[..], part, SystemOperation::sum());
        }
    }

    /// Returns the `values` of all processes, in the order of ranks.
    pub fn gather(&self, values: [u8; 32]) -> Vec<[u8; 32]> {
        use mpi::traits::CommunicatorCollectives;
        let mut all = vec![0; 32 * self.size];
        Self::world().all_gather_into(&values[..], &mut all[..]);
        let all = all.chunks(32).map(|part| std::array::from_fn(|i| part[i]));
        all.collect()
    }

    /// Returns the first rank that has a `problem`, with the problem.
    pub fn first_problem(&self, problem: Option<String>) -> Option<(usize, String)> {
        let ranks = self.gather([u8::from(problem.is_some()); 32]);
        let rank = ranks.iter().position(|has| has[0] != 0)?;
        let mut text = problem.unwrap_or_default().into_bytes();
        let mut length = text.len() as u64;
        self.broadcast_from(rank, std::slice::from_mut(&mut length));
        text.resize(length as usize, 0);
        self.broadcast_from(rank, &mut text);
        Some((rank, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Ends all processes.
    pub fn abort(&self, code: i32) -> ! {
        use mpi::traits::Communicator;
        Self::world().abort(code)
    }
}
