//! The memory of the machine.

use std::fs;
use std::path::Path;

/// Returns the bytes of memory that this process could have: all of the machine, within the limits of its cgroups
/// (versions 1 and 2); 0 if the system does not say. Unlike what is available, it is the same at each start and reload.
///
/// `root` is the folder that holds `proc` and `sys`.
pub fn machine_memory(root: &Path) -> usize {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let memory = read(&root.join("proc/meminfo"));
    let kib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<usize>().ok());
    let groups = read(&root.join("proc/self/cgroup"));
    let limits = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (folder, name) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // A container may see its own group as the root.
        let ancestors = Path::new(group.trim_start_matches('/')).ancestors();
        let limit = |group: &Path| read(&root.join(folder).join(group).join(name)).trim().parse().ok();
        ancestors.filter_map(limit).min()
    });
    limits.chain(kib.map(|kib| kib.saturating_mul(1024))).min().unwrap_or(0)
}
