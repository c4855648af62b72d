//! Renders paths, sizes and ages as text.

use std::fmt::Write;
use std::path::Path;

use trunkline_store::{Geometry, Records, StoredBlock};

use super::damage::Damage;
use super::forest::{Branch, Forest};

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
    format!("{}, {bytes}", plural(count as u64, "block"))
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
    format!("{} ago", duration(now.saturating_sub(written_at)))
}

/// `3 min`
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// `1 block`, `1,234 blocks`
pub(crate) fn plural(count: u64, what: &str) -> String {
    format!("{} {what}{}", number(count), if count == 1 { "" } else { "s" })
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
    let num_damaged = records.damaged_slots.len();
    if num_damaged > 0 || lost > 0 {
        let _ = writeln!(
            out,
            "  ({num_damaged} damaged, {lost} unreachable: the next server to start removes them)",
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
            branch.last().key,
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
            block.key,
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
pub(crate) fn verified(dir: &Path, records: &Records, damage: &[Damage]) -> String {
    let num_blocks = records.blocks.len() + records.damaged_slots.len();
    let out = format!(
        "{}  {}: {} damaged, {} unreachable\n",
        dir.display(),
        blocks(&records.geometry, num_blocks),
        damage.len(),
        num_unreachable(records)
    );
    out + &damaged_slots(damage)
}

/// Renders the result of `repair` for one store, of which `records` are left.
pub(crate) fn repaired(dir: &Path, records: &Records, damage: &[Damage]) -> String {
    if damage.is_empty() {
        return format!("{}  nothing is damaged\n", dir.display());
    }
    let emptied = plural(damage.len() as u64, "damaged slot");
    let left = blocks(&records.geometry, records.blocks.len());
    let mut out = format!("{}  emptied {emptied}, kept {left}", dir.display());
    let num_unreachable = num_unreachable(records);
    if num_unreachable > 0 {
        let _ = write!(out, " ({num_unreachable} unreachable: the next server to start removes them)");
    }
    out + "\n" + &damaged_slots(damage)
}

fn num_unreachable(records: &Records) -> usize {
    records.blocks.len() - Forest::new(&records.blocks).num_reachable()
}

fn damaged_slots(damage: &[Damage]) -> String {
    let mut out = String::new();
    for Damage { slot, key, file, offset } in damage {
        let what = key.map_or_else(|| "record".to_owned(), |key| format!("block {key}"));
        let _ = writeln!(out, "  slot {slot}  {what}  `{}` at byte {offset}", file.display());
    }
    out
}
