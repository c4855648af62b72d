//! The commands on a folder of `--kv-disk-path`. They need no server.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use trunkline_store::{ArchiveError, BlockKey, OpenError, Records, Store, StoreLock, records};

use super::damage::{self, Damage};
use super::forest::Forest;
use super::{CacheError, Id, render};

/// Most paths that an error lists.
const MAX_LISTED: usize = 3;

struct OneStore {
    dir: PathBuf,
    records: Records,
}

/// The stores of a folder by name, or the folder itself if it is a store.
struct Stores {
    readable: Vec<OneStore>,
    /// The errors of folders that look like stores and cannot be read.
    unreadable: Vec<CacheError>,
}

impl Stores {
    fn read(dir: &Path) -> Result<Self, CacheError> {
        let fail = |source| CacheError::Folder { dir: dir.to_owned(), source };
        let mut candidates = vec![dir.to_owned()];
        for entry in std::fs::read_dir(dir).map_err(fail)? {
            candidates.push(entry.map_err(fail)?.path());
        }
        candidates.sort();
        let mut stores = Self { readable: Vec::new(), unreadable: Vec::new() };
        for dir in candidates {
            match records(&dir) {
                Ok(records) => stores.readable.push(OneStore { dir, records }),
                Err(OpenError::System { source, .. })
                    if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(error @ OpenError::Exposed { .. }) => stores.unreadable.push(CacheError::Open(error)),
                Err(error) => stores.unreadable.push(CacheError::Unreadable(error)),
            }
        }
        if stores.readable.is_empty() {
            return Err(stores.unreadable.pop().unwrap_or(CacheError::NoStore { dir: dir.to_owned() }));
        }
        Ok(stores)
    }

    /// Finds the path whose id starts with `id` in any of the stores.
    fn find(&self, id: &str) -> Result<(&OneStore, Forest, BlockKey), CacheError> {
        // The number is a running server's.
        let Id { digits, .. } = Id::parse(id)?;
        let mut found = Vec::new();
        for store in &self.readable {
            let forest = Forest::new(&store.records.blocks);
            found.extend(forest.matching(&digits).into_iter().map(|key| (store, key)));
        }
        match found[..] {
            [] => Err(CacheError::UnknownId { id: id.to_owned() }),
            [(store, key)] => Ok((store, Forest::new(&store.records.blocks), key)),
            _ => Err(CacheError::AmbiguousId { id: id.to_owned(), count: found.len() }),
        }
    }
}

impl OneStore {
    fn attach_to_read(&self) -> Result<Store, CacheError> {
        Ok(Store::attach_to_read(&self.dir, self.records.geometry.clone())?)
    }

    /// Opens the store for writing, which fails while a server uses it. Damaged records are emptied; returns their
    /// number.
    fn own(&self) -> Result<(Store, usize), CacheError> {
        let (store, found) = Store::open(&self.dir, self.records.geometry.clone())?;
        Ok((store, found.num_damaged))
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) fn list(dir: &Path, out: &mut String) -> Result<(), CacheError> {
    let stores = Stores::read(dir)?.readable;
    let trees = stores.iter().map(|store| render::tree(&store.dir, &store.records, now()));
    *out += &trees.collect::<Vec<_>>().join("\n");
    Ok(())
}

pub(crate) fn show(dir: &Path, id: &str, out: &mut String) -> Result<(), CacheError> {
    let stores = Stores::read(dir)?;
    let (store, forest, key) = stores.find(id)?;
    let path = forest.path(key).ok_or_else(|| CacheError::UnknownId { id: id.to_owned() })?;
    *out += &render::path(&store.records.geometry, &path, now());
    Ok(())
}

pub(crate) fn verify(dir: &Path, out: &mut String) -> Result<(), CacheError> {
    let Stores { readable, mut unreadable } = Stores::read(dir)?;
    let (mut num_blocks, mut num_damaged) = (0, 0);
    for store in readable {
        let damage = damage::find(&store.dir, &store.records)?;
        *out += &render::verified(&store.dir, &store.records, &damage);
        num_blocks += store.records.blocks.len() + store.records.damaged_slots.len();
        num_damaged += damage.len();
    }
    if let Some(error) = unreadable.pop() {
        return Err(error);
    }
    if num_damaged > 0 {
        return Err(CacheError::Damaged { num_damaged, num_blocks });
    }
    Ok(())
}

/// Empties the damaged slots.
pub(crate) fn repair(dir: &Path, out: &mut String) -> Result<(), CacheError> {
    let Stores { readable, mut unreadable } = Stores::read(dir)?;
    for OneStore { dir, .. } in readable {
        let _lock = StoreLock::take(&dir)?;
        // A server may have written until it gave up the lock.
        let store = OneStore { records: records(&dir)?, dir };
        let damage = damage::find(&store.dir, &store.records)?;
        let open = Store::attach(&store.dir, store.records.geometry.clone())?;
        for Damage { slot, .. } in &damage {
            open.erase(*slot).map_err(|source| CacheError::Erase { dir: store.dir.clone(), source })?;
        }
        *out += &render::repaired(&store.dir, &records(&store.dir)?, &damage);
    }
    unreadable.pop().map_or(Ok(()), Err)
}

pub(crate) fn remove(dir: &Path, id: &str, out: &mut String) -> Result<(), CacheError> {
    let stores = Stores::read(dir)?;
    let (store, forest, last) = stores.find(id)?;
    let (open, num_damaged) = store.own()?;
    let own: BTreeSet<BlockKey> = forest.own_blocks(last).iter().map(|block| block.key).collect();
    // Any of these may follow a damaged block of this path. The next server to start would remove them, too.
    let lost: BTreeSet<BlockKey> =
        forest.unreachable(last).iter().map(|block| block.key).filter(|key| !own.contains(key)).collect();
    // A block may be stored twice.
    for block in &store.records.blocks {
        if own.contains(&block.key) || lost.contains(&block.key) {
            open.erase(block.slot).map_err(|source| CacheError::Erase { dir: store.dir.clone(), source })?;
        }
    }
    let geometry = &store.records.geometry;
    let _ = writeln!(out, "removed {}", render::blocks(geometry, own.len()));
    if !lost.is_empty() {
        let lost = render::blocks(geometry, lost.len());
        let _ = writeln!(out, "removed {lost}, which no path reaches any more and which may belong to it");
    }
    if num_damaged > 0 {
        let _ = writeln!(out, "emptied {}", render::plural(num_damaged as u64, "damaged slot"));
    }
    let ends = forest.possible_beginnings(last);
    if ends.is_empty() {
        return Ok(());
    }
    let mut listed: Vec<String> = ends.iter().take(MAX_LISTED).map(|key| format!("`{key}`")).collect();
    if ends.len() > MAX_LISTED {
        listed.push(format!("{} more", ends.len() - MAX_LISTED));
    }
    Err(CacheError::Unlinked { id: id.to_owned(), ends: listed.join(", ") })
}

pub(crate) fn remove_all(dir: &Path, out: &mut String) -> Result<(), CacheError> {
    let Stores { readable, mut unreadable } = Stores::read(dir)?;
    for store in readable {
        let _lock = StoreLock::take(&store.dir)?;
        std::fs::remove_dir_all(&store.dir)
            .map_err(|source| CacheError::Erase { dir: store.dir.clone(), source })?;
        let blocks = render::blocks(&store.records.geometry, store.records.blocks.len());
        let _ = writeln!(out, "removed {blocks} from `{}`", store.dir.display());
    }
    unreadable.pop().map_or(Ok(()), Err)
}

pub(crate) fn export(dir: &Path, id: &str, file: &Path, out: &mut String) -> Result<(), CacheError> {
    let stores = Stores::read(dir)?;
    let (store, forest, key) = stores.find(id)?;
    let path = forest.path(key).ok_or_else(|| CacheError::UnknownId { id: id.to_owned() })?;
    let num_bytes = trunkline_store::export(&store.attach_to_read()?, &path, file)?;
    let blocks = render::blocks(&store.records.geometry, path.len());
    let _ = writeln!(out, "wrote {blocks} to `{}` ({})", file.display(), render::size(num_bytes));
    Ok(())
}

pub(crate) fn import(dir: &Path, file: &Path, out: &mut String) -> Result<(), CacheError> {
    let mut refused = None;
    for store in Stores::read(dir)?.readable {
        match trunkline_store::import(&store.own()?.0, &store.records.blocks, file) {
            Ok(done) => {
                let new = render::blocks(&store.records.geometry, done.num_new);
                let _ = writeln!(out, "imported {new}; {} already present", done.num_known);
                return Ok(());
            }
            Err(error @ ArchiveError::Foreign { .. }) => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refused.map_or_else(|| CacheError::NoStore { dir: dir.to_owned() }, CacheError::from))
}
