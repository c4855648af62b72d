//! `trunkline cache`: inspects and changes the KV cache in the folder of `--kv-disk-path` or in a running server.
//!
//! ```text
//! forest     the blocks of a store, arranged as paths
//! render     paths, sizes and ages as text
//! server     HTTP client of a running server
//! live       a running server's tree as text
//! ```

pub mod forest;
pub mod live;
pub mod render;
pub mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use trunkline_store::{ArchiveError, BlockKey, OpenError, ReadError, Records, Store, WriteError, records};

use self::forest::Forest;
use self::server::{Server, ServerError};

/// Fewest digits of an id that identify a path.
const MIN_ID_DIGITS: usize = 4;
const WRONG_PLACE: &str = "expected a folder and an id, or `--url` and an id, or `--all` in place of the id";

/// Selects a running server instead of a folder.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Use the running server at this URL, such as http://localhost:8080, instead of a folder
    #[arg(long)]
    url: Option<String>,
    /// Environment variable that contains the API key [default: TRUNKLINE_API_KEY, if set]
    #[arg(long, value_name = "VAR", requires = "url")]
    api_key_env: Option<String>,
}

impl ServerArgs {
    fn server(&self) -> Result<Option<Server>, CacheError> {
        let url = self.url.as_deref();
        Ok(url.map(|url| Server::new(url, self.api_key_env.as_deref())).transpose()?)
    }
}

/// The commands of `trunkline cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show the cached prefixes as a tree with lengths, sizes and ages
    ///
    /// For a running server (`--url`), also show hits, pins and the number of blocks on disk.
    Ls {
        /// The folder of `--kv-disk-path`
        #[arg(required_unless_present = "url", conflicts_with = "url")]
        dir: Option<PathBuf>,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one path in detail; for a running server with its text, if the server reveals it
    Show {
        /// The folder of `--kv-disk-path` and the first digits of an id shown by `ls`; with `--url` only the id
        #[arg(value_names = ["DIR", "ID"], num_args = 1..=2, required = true)]
        place: Vec<String>,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Pin a path in a running server, so that it is not evicted
    Pin {
        /// First digits of an id shown by `ls --url`
        id: String,
        /// Duration of the pin, 1 to 86400; it does not shorten an existing pin
        #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = pin_seconds)]
        ttl: u64,
        /// Instead, remove the pins of the path and of everything that continues it
        #[arg(long, conflicts_with = "ttl")]
        end: bool,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Read every block and compare checksums; exit with code 1 if any is damaged
    Verify {
        /// The folder of `--kv-disk-path`
        dir: PathBuf,
    },
    /// Remove a path, everything that continues it, and the blocks before it that no other path shares
    ///
    /// A folder must not be in use by a server. A running server (`--url`) removes the path and everything that
    /// continues it, except blocks that are in use or pinned.
    Rm {
        /// The folder of `--kv-disk-path` and the first digits of an id shown by `ls`; with `--url` only the id
        #[arg(value_names = ["DIR", "ID"], num_args = 0..=2)]
        place: Vec<String>,
        /// Remove everything
        #[arg(long)]
        all: bool,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Write one path to a file, for use on another machine with the same model
    Export {
        /// The folder of `--kv-disk-path`
        dir: PathBuf,
        /// First digits of an id shown by `ls`
        id: String,
        /// A file that does not exist yet; it will contain conversation content
        file: PathBuf,
    },
    /// Read a path from a file; the folder must not be in use by a server
    Import {
        /// The folder of `--kv-disk-path`, which a server with the same model has used before
        dir: PathBuf,
        /// A file written by `export`
        file: PathBuf,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("cannot read the folder `{}`: {source}; hint: give the folder of `--kv-disk-path`", dir.display())]
    Folder {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` contains no KV cache; hint: give the folder of `--kv-disk-path`", dir.display())]
    NoStore { dir: PathBuf },
    #[error("no path has the id `{id}`; hint: `trunkline cache ls` lists the ids")]
    UnknownId { id: String },
    #[error("`{id}` is too short; hint: give at least {MIN_ID_DIGITS} digits of the id")]
    ShortId { id: String },
    #[error("{count} ids start with `{id}`; hint: give more digits of the id")]
    AmbiguousId { id: String, count: usize },
    #[error("{problem}; hint: see `trunkline cache {command} --help`")]
    Place { problem: &'static str, command: &'static str },
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("cannot erase from `{}`: {source}", dir.display())]
    Erase {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{num_damaged} of {num_blocks} blocks are damaged; a server that needs one computes it again")]
    Damaged { num_damaged: usize, num_blocks: usize },
}

impl CacheError {
    pub(crate) fn is_users_mistake(&self) -> bool {
        match self {
            Self::Folder { .. }
            | Self::NoStore { .. }
            | Self::UnknownId { .. }
            | Self::ShortId { .. }
            | Self::AmbiguousId { .. }
            | Self::Place { .. } => true,
            Self::Archive(error) => matches!(error, ArchiveError::NoArchive { .. }),
            Self::Server(error) => error.is_users_mistake(),
            _ => false,
        }
    }
}

fn pin_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 1 to 86400, such as `300`".to_owned())
}

fn misplaced(command: &'static str, problem: &'static str) -> CacheError {
    CacheError::Place { problem, command }
}

/// Checks that `id` can be the start of an id.
fn check_digits(id: &str) -> Result<(), CacheError> {
    if id.is_empty() || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(CacheError::UnknownId { id: id.to_owned() });
    }
    if id.len() < MIN_ID_DIGITS {
        return Err(CacheError::ShortId { id: id.to_owned() });
    }
    Ok(())
}

struct OneStore {
    dir: PathBuf,
    records: Records,
}

impl CacheCommand {
    pub(crate) fn run(&self) -> Result<String, CacheError> {
        match self {
            Self::Ls { dir, server } => match (server.server()?, dir) {
                (Some(server), _) => live::list(&server),
                (None, Some(dir)) => list(dir),
                (None, None) => Err(misplaced("ls", "neither a folder nor `--url` was given")),
            },
            Self::Show { place, server } => match (server.server()?, &place[..]) {
                (Some(server), [id]) => live::show(&server, id),
                (None, [dir, id]) => show(dir.as_ref(), id),
                _ => Err(misplaced("show", WRONG_PLACE)),
            },
            Self::Pin { id, ttl, end, server } => match (server.server()?, end) {
                (Some(server), false) => live::pin(&server, id, *ttl),
                (Some(server), true) => live::unpin(&server, id),
                (None, _) => {
                    Err(misplaced("pin", "only a running server can pin a path, but `--url` was not given"))
                }
            },
            Self::Verify { dir } => verify(dir),
            Self::Rm { place, all, server } => match (server.server()?, &place[..], all) {
                (Some(server), [id], false) => live::remove(&server, id),
                (Some(server), [], true) => live::remove_all(&server),
                (None, [dir, id], false) => remove(dir.as_ref(), id),
                (None, [dir], true) => remove_all(dir.as_ref()),
                _ => Err(misplaced("rm", WRONG_PLACE)),
            },
            Self::Export { dir, id, file } => export(dir, id, file),
            Self::Import { dir, file } => import(dir, file),
        }
    }
}

/// Returns the stores in a folder by name, or the folder itself if it is a store.
fn stores(dir: &Path) -> Result<Vec<OneStore>, CacheError> {
    let fail = |source| CacheError::Folder { dir: dir.to_owned(), source };
    let mut candidates = vec![dir.to_owned()];
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        candidates.push(entry.map_err(fail)?.path());
    }
    candidates.sort();
    let mut stores = Vec::new();
    for dir in candidates {
        if let Ok(records) = records(&dir) {
            stores.push(OneStore { dir, records });
        }
    }
    if stores.is_empty() {
        return Err(CacheError::NoStore { dir: dir.to_owned() });
    }
    Ok(stores)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn list(dir: &Path) -> Result<String, CacheError> {
    let stores = stores(dir)?;
    let trees = stores.iter().map(|store| render::tree(&store.dir, &store.records, now()));
    Ok(trees.collect::<Vec<_>>().join("\n"))
}

/// Finds the path whose id starts with `id` in any of the stores.
fn find<'a>(stores: &'a [OneStore], id: &str) -> Result<(&'a OneStore, Forest, BlockKey), CacheError> {
    let unknown = || CacheError::UnknownId { id: id.to_owned() };
    check_digits(id)?;
    let mut found = Vec::new();
    for store in stores {
        let forest = Forest::new(&store.records.blocks);
        found.extend(forest.matching(id).into_iter().map(|key| (store, key)));
    }
    match found[..] {
        [] => Err(unknown()),
        [(store, key)] => Ok((store, Forest::new(&store.records.blocks), key)),
        _ => Err(CacheError::AmbiguousId { id: id.to_owned(), count: found.len() }),
    }
}

fn show(dir: &Path, id: &str) -> Result<String, CacheError> {
    let stores = stores(dir)?;
    let (store, forest, key) = find(&stores, id)?;
    let path = forest.path(key).ok_or_else(|| CacheError::UnknownId { id: id.to_owned() })?;
    Ok(render::path(&store.records.geometry, &path, now()))
}

fn verify(dir: &Path) -> Result<String, CacheError> {
    let mut out = String::new();
    let (mut num_blocks, mut num_damaged) = (0, 0);
    for store in stores(dir)? {
        // Reading a damaged block empties its slot, as a server would.
        let open = Store::attach(&store.dir, store.records.geometry.clone())?;
        let mut bytes = vec![0; store.records.geometry.block_bytes as usize];
        let mut damaged = store.records.num_damaged;
        for block in &store.records.blocks {
            match open.read(block.slot, block.key, &mut bytes) {
                Ok(_) => {}
                // A server may have overwritten the slot in the meantime.
                Err(ReadError::OtherBlock { .. } | ReadError::Empty { .. }) => {}
                Err(ReadError::Damaged { .. }) => damaged += 1,
                Err(error) => return Err(error.into()),
            }
        }
        let reachable = Forest::new(&store.records.blocks).num_reachable();
        out += &render::verified(&store.dir, &store.records, damaged, reachable);
        num_blocks += store.records.blocks.len() + store.records.num_damaged;
        num_damaged += damaged;
    }
    if num_damaged > 0 {
        return Err(CacheError::Damaged { num_damaged, num_blocks });
    }
    Ok(out)
}

/// Opens a store for writing, which fails while a server uses it.
fn own(store: &OneStore) -> Result<Store, CacheError> {
    Ok(Store::open(&store.dir, store.records.geometry.clone())?.0)
}

fn remove(dir: &Path, id: &str) -> Result<String, CacheError> {
    let stores = stores(dir)?;
    let (store, forest, key) = find(&stores, id)?;
    let open = own(store)?;
    let blocks = forest.own_blocks(key);
    for block in &blocks {
        open.erase(block.slot).map_err(|source| CacheError::Erase { dir: store.dir.clone(), source })?;
    }
    Ok(format!("removed {}\n", render::blocks(&store.records.geometry, blocks.len())))
}

fn remove_all(dir: &Path) -> Result<String, CacheError> {
    let mut out = String::new();
    for store in stores(dir)? {
        // Taking the lock shows that no server uses the store.
        drop(own(&store)?);
        std::fs::remove_dir_all(&store.dir)
            .map_err(|source| CacheError::Erase { dir: store.dir.clone(), source })?;
        let blocks = render::blocks(&store.records.geometry, store.records.blocks.len());
        out += &format!("removed {blocks} from `{}`\n", store.dir.display());
    }
    Ok(out)
}

fn export(dir: &Path, id: &str, file: &Path) -> Result<String, CacheError> {
    let stores = stores(dir)?;
    let (store, forest, key) = find(&stores, id)?;
    let path = forest.path(key).ok_or_else(|| CacheError::UnknownId { id: id.to_owned() })?;
    let open = Store::attach(&store.dir, store.records.geometry.clone())?;
    let num_bytes = trunkline_store::export(&open, &path, file)?;
    let blocks = render::blocks(&store.records.geometry, path.len());
    Ok(format!("wrote {blocks} to `{}` ({})\n", file.display(), render::size(num_bytes)))
}

fn import(dir: &Path, file: &Path) -> Result<String, CacheError> {
    let stores = stores(dir)?;
    let mut refused = None;
    for store in &stores {
        match trunkline_store::import(&own(store)?, &store.records.blocks, file) {
            Ok(done) => {
                let new = render::blocks(&store.records.geometry, done.num_new);
                return Ok(format!("imported {new}; {} already present\n", done.num_known));
            }
            Err(error @ ArchiveError::Foreign { .. }) => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refused.map_or_else(|| CacheError::NoStore { dir: dir.to_owned() }, CacheError::from))
}
