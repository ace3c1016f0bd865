//! The memory of the machine.

use sysinfo::{
    MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System, get_current_pid,
};

/// Bytes of memory, swap included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Memory of the machine, or of the control group of this process.
    pub total: u64,
    /// Memory that is still available.
    pub available: u64,
}

/// Returns the memory of the machine, or of the control group of this process; `None` if the system does not tell.
pub fn memory() -> Option<Memory> {
    let system = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::everything()),
    );
    // If memory cannot be read, as without /proc, the rest of the crate panics.
    if system.total_memory() == 0 {
        return None;
    }
    let mut found = Memory {
        total: system.total_memory() + system.total_swap(),
        available: system.available_memory() + system.free_swap(),
    };
    if let Some(group) = system.cgroup_limits() {
        found.total = found
            .total
            .min(group.total_memory.saturating_add(system.total_swap()));
        // The system can drop cached files of the group, so only its resident memory counts as used.
        let free = group.total_memory.saturating_sub(group.rss);
        found.available = found.available.min(free.saturating_add(group.free_swap));
    }
    Some(found)
}

/// Bytes of memory that this process has. `None` where the system does not tell.
pub fn own_memory() -> Option<u64> {
    let process = get_current_pid().ok()?;
    let mut system = System::new();
    let only = ProcessesToUpdate::Some(&[process]);
    system.refresh_processes_specifics(only, false, ProcessRefreshKind::nothing().with_memory());
    Some(system.process(process)?.memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_what_it_uses() {
        let before = own_memory().expect("known on every supported system");
        let used = vec![1u8; 1 << 26];
        let after = own_memory().expect("known on every supported system");
        assert!(
            after >= before + (1 << 25),
            "{before} {after} {}",
            used.len()
        );
    }

    #[test]
    fn this_machine_has_memory() {
        let Memory { total, available } = memory().expect("known on every supported system");
        assert!(
            available > 1 << 20 && available <= total,
            "{available} of {total}"
        );
    }
}
