//! The memory of the machine, and the limits of this process.

use std::path::Path;

use sysinfo::{
    MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System, get_current_pid,
};

/// The memory that this process may use, and the memory that is still available. Each is the smallest amount that the
/// [limits](Limit) allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The memory that this process may use.
    pub total: Amount,
    /// The memory that is still available.
    pub available: Amount,
}

/// An amount of memory, with the limit that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
    /// The number of bytes.
    pub bytes: u64,
    /// The limit that applies.
    pub limit: Limit,
}

/// A limit on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The memory of the machine, swap included.
    Machine,
    /// The control group of this process, or a group that contains it, swap included.
    Group,
    /// The limit on address space (`ulimit -v`).
    AddressSpace,
    /// The limit on data (`ulimit -d`).
    Data,
}

impl Limit {
    /// Returns words that follow an amount of memory, such as `on this machine, swap included`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Machine => "on this machine, swap included",
            Self::Group => "in the control group of this process, swap included",
            Self::AddressSpace => "within the limit on address space (`ulimit -v`)",
            Self::Data => "within the limit on data (`ulimit -d`)",
        }
    }
}

impl Memory {
    fn new(limit: Limit, total: u64, available: u64) -> Self {
        let amount = |bytes| Amount { bytes, limit };
        Self {
            total: amount(total),
            available: amount(available),
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            total: self.total.min(other.total),
            available: self.available.min(other.available),
        }
    }
}

/// Returns the memory that the machine, the control groups and the limits of the shell allow this process. Returns
/// `None` where the system does not report memory.
pub fn memory() -> Option<Memory> {
    let system = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::everything()),
    );
    // Where memory cannot be read, as without /proc, other functions of `sysinfo` panic.
    if system.total_memory() == 0 {
        return None;
    }
    let swap = [system.total_swap(), system.free_swap()];
    let machine = Memory::new(
        Limit::Machine,
        system.total_memory() + swap[0],
        system.available_memory() + swap[1],
    );
    // These files exist only on Linux.
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let limits = groups(&read, swap).into_iter().chain(of_shell(&read));
    Some(limits.fold(machine, Memory::least))
}

/// A function that reads a file; `None` if the file cannot be read.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Returns the limits of the control groups that contain this process. `swap` holds the machine's total and free swap
/// in bytes.
fn groups(read: Read, swap: [u64; 2]) -> Vec<Memory> {
    let list = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in list.lines() {
        // `0::/PATH` in version 2 of control groups, `4:memory:/PATH` in version 1.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, names) = match controllers {
            "" => ("/sys/fs/cgroup", ["memory.max", "anon"]),
            all if all.split(',').any(|name| name == "memory") => (
                "/sys/fs/cgroup/memory",
                ["memory.limit_in_bytes", "total_rss"],
            ),
            _ => continue,
        };
        // In a container, the group itself may be mounted at `root`, so its path may not exist.
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        limits.extend(
            groups.filter_map(|group| of_group(read, &Path::new(root).join(group), names, swap)),
        );
    }
    limits
}

/// Returns the limit of the control group in the directory `group`.
fn of_group(
    read: Read,
    group: &Path,
    [limit, held]: [&str; 2],
    [swap, free_swap]: [u64; 2],
) -> Option<Memory> {
    let number = |name: &str| -> Option<u64> { read(&group.join(name))?.trim().parse().ok() };
    // Anything but a number means that there is no limit.
    let limit = number(limit)?;
    let statistics = read(&group.join("memory.stat")).unwrap_or_default();
    // The kernel can drop cached files, so only the group's own memory counts, not its reported usage.
    let held = field(&statistics, held)
        .and_then(|held| held.parse().ok())
        .unwrap_or(0);
    let most_swap = number("memory.swap.max").unwrap_or(u64::MAX);
    let used_swap = number("memory.swap.current").unwrap_or(0);
    let free_swap = free_swap.min(most_swap.saturating_sub(used_swap));
    let available = limit.saturating_sub(held).saturating_add(free_swap);
    Some(Memory::new(
        Limit::Group,
        limit.saturating_add(swap.min(most_swap)),
        available,
    ))
}

/// Returns the limits that the shell sets on this process (`ulimit`).
fn of_shell(read: Read) -> Vec<Memory> {
    let limits = read(Path::new("/proc/self/limits")).unwrap_or_default();
    let status = read(Path::new("/proc/self/status")).unwrap_or_default();
    let kinds = [
        (Limit::AddressSpace, "Max address space", "VmSize:"),
        (Limit::Data, "Max data size", "VmData:"),
    ];
    let limit = |(limit, name, used): (Limit, &str, &str)| {
        // `unlimited` is not a number.
        let most: u64 = field(&limits, name)?.parse().ok()?;
        let used = field(&status, used).and_then(|kib| kib.parse::<u64>().ok());
        let used = used.map_or(0, |kib| kib.saturating_mul(1024));
        Some(Memory::new(limit, most, most.saturating_sub(used)))
    };
    kinds.into_iter().filter_map(limit).collect()
}

/// Returns the first word after `name` in a line that begins with `name`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = |line: &'a str| line.strip_prefix(name)?.strip_prefix(char::is_whitespace);
    text.lines().find_map(rest)?.split_whitespace().next()
}

/// Returns the number of bytes of memory that this process uses. Returns `None` where the system does not report them.
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
            available.bytes > 1 << 20 && available.bytes <= total.bytes,
            "{available:?} of {total:?}"
        );
    }

    /// Returns the limits in these files: the kind, the total bytes and the available bytes.
    fn limits(files: &[(&str, &str)]) -> Vec<(Limit, u64, u64)> {
        let read = |path: &Path| {
            let known = files.iter().find(|(name, _)| Path::new(name) == path);
            known.map(|(_, text)| (*text).to_owned())
        };
        let all = groups(&read, [100, 40]).into_iter().chain(of_shell(&read));
        all.map(|it| (it.total.limit, it.total.bytes, it.available.bytes))
            .collect()
    }

    #[test]
    fn the_groups_around_a_process_limit_it() {
        let list = (
            "/proc/self/cgroup",
            "4:cpu,memory:/a/b\n1:cpu:/x\n0::/user/shell\n",
        );
        let found = limits(&[
            list,
            ("/sys/fs/cgroup/user/shell/memory.max", "max\n"),
            ("/sys/fs/cgroup/user/memory.max", "5000\n"),
            (
                "/sys/fs/cgroup/user/memory.stat",
                "anon_thp 7\nanon 1000\nfile 900\n",
            ),
            ("/sys/fs/cgroup/user/memory.swap.max", "30\n"),
            ("/sys/fs/cgroup/user/memory.swap.current", "10\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000\n"),
            (
                "/sys/fs/cgroup/memory/memory.stat",
                "rss 1\ntotal_rss 6001\n",
            ),
        ]);
        assert_eq!(
            found,
            [(Limit::Group, 6100, 40), (Limit::Group, 5030, 4020)]
        );
        assert_eq!(limits(&[list]), []);
    }

    #[test]
    fn the_limits_of_the_shell_count() {
        let head = "Limit                     Soft Limit           Hard Limit           Units\n";
        let space = "Max address space         4096000              unlimited            bytes\n";
        let data = "Max data size             unlimited            unlimited            bytes\n";
        let limited = [head, data, space].concat();
        let found = limits(&[
            ("/proc/self/limits", &limited),
            (
                "/proc/self/status",
                "VmPeak:\t 9 kB\nVmSize:\t    1000 kB\n",
            ),
        ]);
        assert_eq!(
            found,
            [(Limit::AddressSpace, 4_096_000, 4_096_000 - 1_024_000)]
        );
        let unlimited = [head, data].concat();
        assert_eq!(limits(&[("/proc/self/limits", &unlimited)]), []);
    }
}
