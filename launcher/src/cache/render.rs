//! Renders paths, sizes and ages as text.

use std::fmt::Write;
use std::path::Path;

use trunkline_store::{BlockKey, Geometry, Records, StoredBlock};

use super::forest::{Branch, Forest};

/// Number of digits shown of an id.
const ID_DIGITS: usize = 12;
const KIB: f64 = 1024.0;
const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// `1.4 GiB`
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= KIB && unit + 1 < UNITS.len() {
        value /= KIB;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `94 blocks, 70.2 MiB`
pub(crate) fn blocks(geometry: &Geometry, count: usize) -> String {
    let bytes = size(count as u64 * geometry.slot_bytes());
    if count == 1 { format!("1 block, {bytes}") } else { format!("{count} blocks, {bytes}") }
}

/// `6016` as `6,016`
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `3 min ago`
pub fn age(written_at: u64, now: u64) -> String {
    let seconds = now.saturating_sub(written_at);
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn id(key: BlockKey) -> String {
    key.to_string()[..ID_DIGITS].to_owned()
}

/// Renders a store with its paths.
pub(crate) fn tree(dir: &Path, records: &Records, now: u64) -> String {
    let g = &records.geometry;
    let all = size(u64::from(g.num_slots) * g.slot_bytes());
    let forest = Forest::new(&records.blocks);
    let mut out = format!(
        "{}  {} of {all}, blocks of {} tokens\n",
        dir.display(),
        blocks(g, records.blocks.len()),
        g.block_size
    );
    let lost = records.blocks.len() - forest.num_reachable();
    if records.num_damaged > 0 || lost > 0 {
        let _ = writeln!(
            out,
            "  ({} damaged, {lost} unreachable: the next server to start removes them)",
            records.num_damaged
        );
    }
    draw(&mut out, g, &forest.branches(), "", now);
    out
}

fn draw(out: &mut String, geometry: &Geometry, branches: &[Branch], indent: &str, now: u64) {
    for (index, branch) in branches.iter().enumerate() {
        let is_last = index + 1 == branches.len();
        let (fork, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let _ = writeln!(
            out,
            "{indent}{fork}{}  {} tokens  {}  {}",
            id(branch.last().key),
            number(branch.num_tokens()),
            blocks(geometry, branch.blocks.len()),
            age(branch.written_at(), now)
        );
        draw(out, geometry, &branch.children, &format!("{indent}{below}"), now);
    }
}

/// Renders one path, block by block.
pub(crate) fn path(geometry: &Geometry, path: &[StoredBlock], now: u64) -> String {
    let tokens: u64 = path.iter().map(|block| u64::from(block.num_tokens)).sum();
    let mut out = format!("{} tokens, {}\n", number(tokens), blocks(geometry, path.len()));
    let mut position = 0;
    for block in path {
        let end = position + u64::from(block.num_tokens);
        let _ = writeln!(
            out,
            "{}  tokens {} to {}  slot {}  {}",
            id(block.key),
            number(position),
            number(end - 1),
            block.slot,
            age(block.written_at, now)
        );
        position = end;
    }
    out
}

/// Renders the result of `verify` for one store.
pub(crate) fn verified(dir: &Path, records: &Records, num_damaged: usize, num_reachable: usize) -> String {
    format!(
        "{}  {}: {num_damaged} damaged, {} unreachable\n",
        dir.display(),
        blocks(&records.geometry, records.blocks.len()),
        records.blocks.len() - num_reachable
    )
}
