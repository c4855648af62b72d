//! `trunkline cache`: looks into the store of `--kv-disk-path` or into a running server, checks, pins, removes, and
//! moves conversations between machines.
//!
//! ```text
//! forest     the blocks of a store as paths
//! render     paths, sizes and ages as text
//! server     a running server, asked over HTTP
//! live       its tree as text
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

/// Digits that a path is called by, at least.
const MIN_ID_DIGITS: usize = 4;
const WRONG_PLACE: &str = "expected a folder and an id, or `--url` and an id, or `--all` in place of the id";

/// A running server instead of a folder.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Ask the server at this URL, such as http://localhost:8080, instead of reading a folder
    #[arg(long)]
    url: Option<String>,
    /// The variable that holds the API key [default: TRUNKLINE_API_KEY, if it is set]
    #[arg(long, value_name = "VAR", requires = "url")]
    api_key_env: Option<String>,
}

impl ServerArgs {
    fn server(&self) -> Result<Option<Server>, CacheError> {
        let url = self.url.as_deref();
        Ok(url.map(|url| Server::new(url, self.api_key_env.as_deref())).transpose()?)
    }
}

/// What to do with the cache, on disk or in a running server.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show what is kept: a tree of token runs with lengths, sizes and ages
    ///
    /// Of a running server (`--url`) with hits, pins, and which of it is on disk too.
    Ls {
        /// The folder of `--kv-disk-path`
        #[arg(required_unless_present = "url", conflicts_with = "url")]
        dir: Option<PathBuf>,
        /// Or a running server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one path, run by run; of a running server with its text, where it shows that
    Show {
        /// The folder of `--kv-disk-path` and the first digits of an id that `ls` shows; with `--url` the id alone
        #[arg(value_names = ["DIR", "ID"], num_args = 1..=2, required = true)]
        place: Vec<String>,
        /// Or a running server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Keep a path in a running server whatever else comes, within the server's limits
    Pin {
        /// First digits of an id that `ls --url` shows
        id: String,
        /// For so long, 1 to 86400; a pin that is there already is not cut short
        #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        ttl: u64,
        /// End the pins of the path and of what continues it instead
        #[arg(long, conflicts_with = "ttl")]
        end: bool,
        /// Or a running server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Read everything and compare checksums; exit code 1 if anything is damaged
    Verify {
        /// The folder of `--kv-disk-path`
        dir: PathBuf,
    },
    /// Forget a path: what continues it, and what is before it as far as no other path shares it
    ///
    /// Of a folder only while no server uses it. A running server (`--url`) forgets what is not in use and not pinned,
    /// and what continues it.
    Rm {
        /// The folder of `--kv-disk-path` and the first digits of an id that `ls` shows; with `--url` the id alone
        #[arg(value_names = ["DIR", "ID"], num_args = 0..=2)]
        place: Vec<String>,
        /// Forget everything
        #[arg(long)]
        all: bool,
        /// Or a running server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Write one path to a file, for another machine with the same model
    Export {
        /// The folder of `--kv-disk-path`
        dir: PathBuf,
        /// First digits of an id that `ls` shows
        id: String,
        /// A file that does not exist yet; what was said lies in there
        file: PathBuf,
    },
    /// Take a path from a file; only while no server uses the folder
    Import {
        /// The folder of `--kv-disk-path`, in which a server of the same model has run before
        dir: PathBuf,
        /// What `export` wrote
        file: PathBuf,
    },
}

/// Why a command on the cache failed.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The folder cannot be read.
    #[error("cannot read the folder `{}`: {source}; hint: give the folder of `--kv-disk-path`", dir.display())]
    Folder {
        /// As typed.
        dir: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// There is no store.
    #[error("`{}` holds no store; hint: give the folder of `--kv-disk-path`", dir.display())]
    NoStore {
        /// As typed.
        dir: PathBuf,
    },
    /// No path is called so.
    #[error("no path is called `{id}`; hint: `trunkline cache ls` shows them")]
    UnknownId {
        /// As typed.
        id: String,
    },
    /// Several are.
    #[error("`{id}` begins {count} ids; hint: give more of its digits, at least {MIN_ID_DIGITS}")]
    AmbiguousId {
        /// As typed.
        id: String,
        /// How many.
        count: usize,
    },
    /// A folder and an id, or a server and an id, were expected.
    #[error("{problem}; hint: `trunkline cache {command} --help`")]
    Place {
        /// What is wrong.
        problem: &'static str,
        /// Which command.
        command: &'static str,
    },
    /// A server cannot be asked.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A block cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A block cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An archive cannot be written or read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The system refuses.
    #[error("cannot erase from `{}`: {source}", dir.display())]
    Erase {
        /// The store.
        dir: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Some of the store is damaged.
    #[error(
        "{num_damaged} of {num_blocks} blocks are damaged; a server computes them again when it meets them"
    )]
    Damaged {
        /// So many.
        num_damaged: usize,
        /// Of so many.
        num_blocks: usize,
    },
}

impl CacheError {
    /// What was typed cannot be meant.
    pub fn is_users_mistake(&self) -> bool {
        match self {
            Self::Folder { .. }
            | Self::NoStore { .. }
            | Self::UnknownId { .. }
            | Self::AmbiguousId { .. }
            | Self::Place { .. } => true,
            Self::Server(error) => error.is_users_mistake(),
            _ => false,
        }
    }
}

fn misplaced(command: &'static str, problem: &'static str) -> CacheError {
    CacheError::Place { problem, command }
}

/// Whether that can be the beginning of an id.
fn check_digits(id: &str) -> Result<(), CacheError> {
    if id.is_empty() || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(CacheError::UnknownId { id: id.to_owned() });
    }
    Ok(())
}

/// One store: a model's part of the folder.
struct OneStore {
    dir: PathBuf,
    records: Records,
}

impl CacheCommand {
    /// Does it; returns what to print.
    pub fn run(&self) -> Result<String, CacheError> {
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
                (None, _) => Err(misplaced("pin", "only a running server pins, and `--url` was not given")),
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

/// The stores in a folder, or the folder itself if it is one; by name.
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

/// The one path that is called so, in whichever store.
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
        [(store, key)] if id.len() >= MIN_ID_DIGITS => Ok((store, Forest::new(&store.records.blocks), key)),
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
                // A server may have written the slot again meanwhile.
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
    Ok(format!("forgot {}\n", render::blocks(&store.records.geometry, blocks.len())))
}

fn remove_all(dir: &Path) -> Result<String, CacheError> {
    let mut out = String::new();
    for store in stores(dir)? {
        // The lock says that no server uses it.
        drop(own(&store)?);
        std::fs::remove_dir_all(&store.dir)
            .map_err(|source| CacheError::Erase { dir: store.dir.clone(), source })?;
        let blocks = render::blocks(&store.records.geometry, store.records.blocks.len());
        out += &format!("forgot {blocks} in `{}`\n", store.dir.display());
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
                return Ok(format!("took {new}; {} were there already\n", done.num_known));
            }
            Err(error @ ArchiveError::Foreign { .. }) => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refused.map_or_else(|| CacheError::NoStore { dir: dir.to_owned() }, CacheError::from))
}
