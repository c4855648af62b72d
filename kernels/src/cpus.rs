//! The CPUs that this process may use: affinity, cgroup quota, cores, NUMA nodes.
//!
//! What the system says is read below a root, `/` outside of tests. Anything that cannot be read limits nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// More threads than this wait for each other longer than they compute; whoever knows better asks for more.
const MAX_DEFAULT_THREADS: usize = 64;
/// Highest CPU number that an affinity mask of ours can hold, plus 1.
const MAX_CPUS: usize = 8192;

/// A physical core, as far as this process may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its NUMA node.
    pub node: usize,
    /// Its usable CPUs, ascending: more than one with SMT.
    pub cpus: Vec<usize>,
}

/// What this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableCpus {
    /// Node by node, then by the first CPU.
    pub cores: Vec<Core>,
    /// Whole CPUs' worth of time that the tightest cgroup quota allows, rounded down, at least 1.
    pub quota: Option<usize>,
}

impl UsableCpus {
    /// Of the calling thread, a pool's own pinning of it left out.
    pub fn detect() -> Self {
        let unpinned = UNPINNED.with_borrow(Option::clone);
        Self::read(Path::new("/"), unpinned.or_else(affinity))
    }

    /// From the files below `root`, for a thread that may run on `cpus` only; `None` is not known, and the number of
    /// CPUs that the standard library knows counts.
    pub fn read(root: &Path, cpus: Option<Vec<usize>>) -> Self {
        let mut cpus = cpus
            .filter(|cpus| !cpus.is_empty())
            .unwrap_or_else(|| (0..std::thread::available_parallelism().map_or(1, usize::from)).collect());
        cpus.sort_unstable();
        let mut cores: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        let nodes = nodes(root);
        for cpu in cpus {
            let siblings =
                root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
            let siblings = read_to_string(siblings).unwrap_or_default();
            let core = cpu_list(&siblings).into_iter().min().unwrap_or(cpu);
            let node = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map_or(0, |(node, _)| *node);
            cores.entry((node, core)).or_default().push(cpu);
        }
        let cores = cores.into_iter().map(|((node, _), cpus)| Core { node, cpus }).collect();
        Self { cores, quota: quota(root) }
    }

    /// One thread per core, within the quota: two threads of one core share its units, so a second one adds nothing but
    /// a longer wait at each barrier.
    pub fn default_num_threads(&self) -> usize {
        self.cores.len().min(self.quota.unwrap_or(usize::MAX)).clamp(1, MAX_DEFAULT_THREADS)
    }

    /// Threads that may run at once.
    pub fn max_parallel_threads(&self) -> usize {
        let num_cpus = self.cores.iter().map(|core| core.cpus.len()).sum::<usize>();
        num_cpus.min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// CPUs for each of `num_threads` threads: a core for each, or a CPU for each where cores do not suffice. `None` if
    /// CPUs do not either.
    pub fn placement(&self, num_threads: usize) -> Option<Vec<Vec<usize>>> {
        if num_threads <= self.cores.len() {
            return Some(self.cores[..num_threads].iter().map(|core| core.cpus.clone()).collect());
        }
        let cpus: Vec<_> = self.cores.iter().flat_map(|core| &core.cpus).map(|cpu| vec![*cpu]).collect();
        (num_threads <= cpus.len()).then(|| cpus[..num_threads].to_vec())
    }

    /// True if `num_threads` threads take every core, so that pinning them leaves the system no worse choice.
    pub fn are_all_taken_by(&self, num_threads: usize) -> bool {
        let num_cpus: usize = self.cores.iter().map(|core| core.cpus.len()).sum();
        (self.cores.len()..=num_cpus).contains(&num_threads)
            && self.quota.is_none_or(|quota| quota >= num_threads)
    }

    /// NUMA nodes of the cores.
    pub fn nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.cores.iter().map(|core| core.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// Nodes and their CPUs.
fn nodes(root: &Path) -> Vec<(usize, Vec<usize>)> {
    let Ok(entries) = std::fs::read_dir(root.join("sys/devices/system/node")) else { return Vec::new() };
    let mut nodes = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        if let Some(number) = number {
            let cpus = cpu_list(&read_to_string(entry.path().join("cpulist")).unwrap_or_default());
            nodes.push((number, cpus));
        }
    }
    nodes.sort_unstable();
    nodes
}

/// CPUs of a list such as `0-3,8`, as the kernel writes it.
fn cpu_list(text: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend(first..=last.min(MAX_CPUS));
        }
    }
    cpus
}

/// The tightest quota of this process's cgroup and those above it, version 2 and 1.
fn quota(root: &Path) -> Option<usize> {
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let mut folders: Vec<PathBuf> = vec![mounts.clone(), mounts.join("cpu"), mounts.join("cpu,cpuacct")];
    for line in groups.lines() {
        // `0::/path` for version 2, `4:cpu,cpuacct:/path` for version 1.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => mounts.clone(),
            _ if controllers.split(',').any(|name| name == "cpu") => {
                let named = mounts.join(controllers);
                if named.exists() { named } else { mounts.join("cpu") }
            }
            _ => continue,
        };
        let mut folder = mount;
        for part in path.split('/').filter(|part| !part.is_empty() && *part != "..") {
            folder.push(part);
            folders.push(folder.clone());
        }
    }
    folders.iter().filter_map(|folder| folder_quota(folder)).min()
}

/// Version 2's `cpu.max`, or version 1's `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
fn folder_quota(folder: &Path) -> Option<usize> {
    let read = |name: &str| read_to_string(folder.join(name)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse::<usize>().ok()?, period.parse::<usize>().ok()?)
        }
        None => {
            (read("cpu.cfs_quota_us")?.trim().parse().ok()?, read("cpu.cfs_period_us")?.trim().parse().ok()?)
        }
    };
    Some(quota.checked_div(period)?.max(1))
}

thread_local! {
    /// What this thread may use, were it not pinned by [`pin`].
    static UNPINNED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

/// Keeps the calling thread on `cpus` until [`unpin`]. Refused, the thread runs where the system likes: slower, not
/// wrong.
pub fn pin(cpus: &[usize]) {
    let before = affinity();
    if before.is_some() && set_affinity(cpus).is_ok() {
        UNPINNED.with_borrow_mut(|unpinned| *unpinned = unpinned.take().or(before));
    }
}

/// Lets the calling thread go where it could before the first [`pin`].
pub fn unpin() {
    if let Some(before) = UNPINNED.with_borrow_mut(Option::take) {
        // Refused, the thread stays where it is; nobody could do better.
        let _refused = set_affinity(&before);
    }
}

/// CPUs that the calling thread may run on, ascending; `None` if the system does not tell.
#[cfg(target_os = "linux")]
pub fn affinity() -> Option<Vec<usize>> {
    let mut mask = [0u64; MAX_CPUS / 64];
    // SAFETY: the kernel writes at most the given number of bytes; the C type is only an array of words, too.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    let is_set = |cpu: &usize| mask[cpu / 64] >> (cpu % 64) & 1 == 1;
    (result == 0).then(|| (0..MAX_CPUS).filter(is_set).collect())
}

/// Lets the calling thread run on `cpus` only.
#[cfg(target_os = "linux")]
pub fn set_affinity(cpus: &[usize]) -> std::io::Result<()> {
    let mut mask = [0u64; MAX_CPUS / 64];
    for cpu in cpus.iter().filter(|cpu| **cpu < MAX_CPUS) {
        mask[cpu / 64] |= 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads the given number of bytes.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// CPUs that the calling thread may run on: not known on this system.
#[cfg(not(target_os = "linux"))]
pub fn affinity() -> Option<Vec<usize>> {
    None
}

/// Lets the calling thread run on `cpus` only: not possible on this system.
#[cfg(not(target_os = "linux"))]
pub fn set_affinity(_cpus: &[usize]) -> std::io::Result<()> {
    Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
}
