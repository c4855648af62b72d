//! Reads the machine's caches and CPU name from Linux.

use std::fs::read_to_string;

pub struct Cache {
    /// Level of the cache; 1 is the nearest.
    pub level: u32,
    pub bytes: usize,
    /// Number of CPUs that share one instance.
    pub num_sharers: usize,
}

/// Common sizes, for systems that do not report them.
const USUAL: [Cache; 3] = [
    Cache { level: 1, bytes: 32 << 10, num_sharers: 1 },
    Cache { level: 2, bytes: 1 << 20, num_sharers: 1 },
    Cache { level: 3, bytes: 32 << 20, num_sharers: 8 },
];

/// Returns the data caches of the first CPU, nearest first.
pub fn of_this_machine() -> Vec<Cache> {
    let mut caches: Vec<Cache> = (0..8).filter_map(cache).collect();
    if caches.is_empty() {
        caches.extend(USUAL);
    }
    caches.sort_by_key(|cache| cache.level);
    caches
}

fn cache(index: usize) -> Option<Cache> {
    let read = |name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
        read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    if read("type")? == "Instruction" {
        return None;
    }
    let size = read("size")?;
    let (digits, unit) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len()));
    let factor = match unit {
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => 1,
    };
    let sharers = read("shared_cpu_list").map_or(1, |list| num_cpus(&list));
    Some(Cache {
        level: read("level")?.parse().ok()?,
        bytes: digits.parse::<usize>().ok()? * factor,
        num_sharers: sharers,
    })
}

/// Returns the number of CPUs in a list such as `0-3,8`.
fn num_cpus(list: &str) -> usize {
    let bounds = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
    });
    bounds.map(|(first, last)| last.saturating_sub(first) + 1).sum::<usize>().max(1)
}

pub fn cpu_name() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(": ")).map_or(std::env::consts::ARCH, |(_, name)| name).to_owned()
}
