//! The CPUs that this process may use: affinity, cgroup quota, cores and NUMA nodes.
//!
//! System files are read below a root directory, which is `/` outside tests. A file that cannot be read imposes no
//! limit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The largest default number of threads. More threads would spend more time waiting for each other than computing.
const MAX_DEFAULT_THREADS: usize = 64;
/// The number of CPUs in an affinity mask.
const MAX_CPUS: usize = 8192;

/// A physical core with the CPUs that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    pub node: usize,
    /// The usable CPUs of the core, ascending; more than one with SMT.
    pub cpus: Vec<usize>,
}

/// The CPU resources that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableCpus {
    /// The usable cores, sorted by node and first CPU.
    pub cores: Vec<Core>,
    /// The tightest cgroup quota in whole CPUs, rounded down but at least 1.
    pub quota: Option<usize>,
}

impl UsableCpus {
    /// Detects the CPUs of the calling thread as they were before [`pin`].
    pub fn detect() -> Self {
        let unpinned = UNPINNED.with_borrow(Option::clone);
        Self::read(Path::new("/"), unpinned.or_else(affinity))
    }

    /// Reads the files below `root`, for a thread that may run only on `cpus`. `None` means that the CPUs are not
    /// known; the standard library's estimate of their number is used instead.
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

    /// The default number of threads: one per core, within the quota. A second thread on a core would share its
    /// execution units and only lengthen the wait at each barrier.
    pub fn default_num_threads(&self) -> usize {
        self.cores.len().min(self.quota.unwrap_or(usize::MAX)).clamp(1, MAX_DEFAULT_THREADS)
    }

    pub fn max_parallel_threads(&self) -> usize {
        let num_cpus = self.cores.iter().map(|core| core.cpus.len()).sum::<usize>();
        num_cpus.min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// Assigns CPUs to each of `num_threads` threads: a core each, or a CPU each if there are too few cores. Returns
    /// `None` if there are too few CPUs.
    pub fn placement(&self, num_threads: usize) -> Option<Vec<Vec<usize>>> {
        if num_threads <= self.cores.len() {
            return Some(self.cores[..num_threads].iter().map(|core| core.cpus.clone()).collect());
        }
        let cpus: Vec<_> = self.cores.iter().flat_map(|core| &core.cpus).map(|cpu| vec![*cpu]).collect();
        (num_threads <= cpus.len()).then(|| cpus[..num_threads].to_vec())
    }

    /// Returns true if `num_threads` threads occupy every core and the quota allows it.
    pub fn are_all_taken_by(&self, num_threads: usize) -> bool {
        let num_cpus: usize = self.cores.iter().map(|core| core.cpus.len()).sum();
        (self.cores.len()..=num_cpus).contains(&num_threads)
            && self.quota.is_none_or(|quota| quota >= num_threads)
    }

    pub fn nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.cores.iter().map(|core| core.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

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

/// Parses a list of CPUs such as `0-3,8`, in the kernel's format.
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

/// Reads the tightest quota of this process's cgroup and its ancestors, for cgroup versions 1 and 2.
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

/// Reads `cpu.max` (version 2), or `cpu.cfs_quota_us` and `cpu.cfs_period_us` (version 1).
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
    /// The CPUs of this thread before [`pin`].
    static UNPINNED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

/// Restricts the calling thread to `cpus` until [`unpin`]. If the system refuses, the thread stays unpinned.
pub fn pin(cpus: &[usize]) {
    let before = affinity();
    if before.is_some() && set_affinity(cpus).is_ok() {
        UNPINNED.with_borrow_mut(|unpinned| *unpinned = unpinned.take().or(before));
    }
}

/// Restores the CPUs that the calling thread could use before the first [`pin`].
pub fn unpin() {
    if let Some(before) = UNPINNED.with_borrow_mut(Option::take) {
        // If the system refuses, the thread stays pinned; there is nothing else to try.
        let _refused = set_affinity(&before);
    }
}

/// The CPUs that the calling thread may run on, ascending; `None` if they are not known.
#[cfg(target_os = "linux")]
pub fn affinity() -> Option<Vec<usize>> {
    let mut mask = [0u64; MAX_CPUS / 64];
    // SAFETY: the kernel writes at most the given number of bytes, and `cpu_set_t` is an array of words as well.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    let is_set = |cpu: &usize| mask[cpu / 64] >> (cpu % 64) & 1 == 1;
    (result == 0).then(|| (0..MAX_CPUS).filter(is_set).collect())
}

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

/// The CPUs that the calling thread may run on, which are not known on this system.
#[cfg(not(target_os = "linux"))]
pub fn affinity() -> Option<Vec<usize>> {
    None
}

/// Fails: this system cannot restrict a thread to CPUs.
#[cfg(not(target_os = "linux"))]
pub fn set_affinity(_cpus: &[usize]) -> std::io::Result<()> {
    Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
}
