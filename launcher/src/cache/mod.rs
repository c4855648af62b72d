//! `trunkline cache`: inspects and changes the KV cache in the folder of `--kv-disk-path` or in a running server.
//!
//! ```text
//! folder     the commands on a folder
//! damage     finds damaged slots
//! forest     the blocks of a store, arranged as paths
//! render     paths, sizes and ages as text
//! server     HTTP client of a running server
//! live       a running server's tree as text
//! trust      the certificates that the client trusts
//! ```

mod damage;
mod folder;
pub mod forest;
pub mod live;
pub mod render;
pub mod server;
pub mod trust;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use trunkline_bench::client::tls::Trust;
use trunkline_settings::Form;
use trunkline_store::{ArchiveError, OpenError, ReadError, WriteError};

use self::live::Pins;
use self::server::{Server, ServerError};

/// Fewest digits of an id that identify a path.
const MIN_ID_DIGITS: usize = 4;
/// The variable of `serve --kv-disk-path`.
const FOLDER_VARIABLE: &str = "TRUNKLINE_KV_DISK_PATH";
const WRONG_PLACE: &str = "expected a folder and an id, or `--url` and an id, or `--all` in place of the id";
const WRONG_NUMBER: &str = "there are too few or too many arguments";
// clap cannot describe a first argument that may be left out before others.
const PLACE_HELP: &str = "\
Arguments:
  [DIR]   The folder of `--kv-disk-path` [default: TRUNKLINE_KV_DISK_PATH, if set]; not with `--url`
  <ID>    An id shown by `ls`, or the first digits of its key";
const EXPORT_HELP: &str = "\
Arguments:
  [DIR]   The folder of `--kv-disk-path` [default: TRUNKLINE_KV_DISK_PATH, if set]
  <ID>    An id shown by `ls`, or the first digits of its key
  <FILE>  A file that does not exist yet; it will contain conversation content";
const IMPORT_HELP: &str = "\
Arguments:
  [DIR]   The folder of `--kv-disk-path`, which a server with the same model has used before
          [default: TRUNKLINE_KV_DISK_PATH, if set]
  <FILE>  A file written by `export`";
const NO_PLACE: &str = "no folder was given, nor is `TRUNKLINE_KV_DISK_PATH` set, nor was `--url` given";

/// Selects a running server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Ask the running server at this URL, such as http://localhost:8080
    #[arg(long)]
    url: Option<String>,
    /// Environment variable that contains the API key [default: TRUNKLINE_API_KEY, if set]
    #[arg(long, value_name = "VAR", requires = "url")]
    api_key_env: Option<String>,
    /// PEM file with the authority of the server's certificate, or with that certificate if it is self-signed
    #[arg(long, value_name = "FILE", requires = "url", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Accept every certificate; another server could then receive the API key
    #[arg(long, requires = "url")]
    insecure: bool,
}

impl ServerArgs {
    pub(crate) fn server(&self) -> Result<Option<Server>, CacheError> {
        let Some(url) = &self.url else { return Ok(None) };
        let trust = Trust::of(self.cacert.as_deref(), self.insecure);
        Ok(Some(Server::new(url, self.api_key_env.as_deref(), trust)?))
    }
}

/// The commands of `trunkline cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show the cached prefixes as a tree with lengths, sizes and ages
    ///
    /// For a running server (`--url`), also show hits, pins and the number of blocks on disk.
    Ls {
        /// The folder of `--kv-disk-path` [default: TRUNKLINE_KV_DISK_PATH, if set]
        #[arg(conflicts_with = "url")]
        dir: Option<PathBuf>,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one path in detail; for a running server with its text, if the server reveals it
    #[command(override_usage = "trunkline cache show [OPTIONS] [DIR] <ID>", after_help = PLACE_HELP)]
    Show {
        /// The folder and the id.
        #[arg(hide = true, num_args = 0..=2)]
        place: Vec<OsString>,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Pin a path in a running server, so that it is not evicted
    Pin {
        /// An id shown by `ls --url`, or the first digits of its key
        id: String,
        /// Duration of the pin, 1s to 1d; it does not shorten an existing pin
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = pin_seconds)]
        ttl: u64,
        /// Instead, remove the pins of the path and of everything that continues it
        #[arg(long, conflicts_with = "ttl")]
        end: bool,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Read every block, compare checksums and list what is damaged, without changing anything
    ///
    /// A server may use the folder meanwhile. The exit code is 1 if anything is damaged.
    Verify {
        /// The folder of `--kv-disk-path` [default: TRUNKLINE_KV_DISK_PATH, if set]
        dir: Option<PathBuf>,
    },
    /// Empty the slots that `verify` finds damaged; the folder must not be in use by a server
    Repair {
        /// The folder of `--kv-disk-path` [default: TRUNKLINE_KV_DISK_PATH, if set]
        dir: Option<PathBuf>,
    },
    /// Remove a path, everything that continues it, and the blocks before it that no other path shares
    ///
    /// A folder must not be in use by a server. A running server (`--url`) removes the path and everything that
    /// continues it, except blocks that are in use or, without `--pinned`, pinned.
    #[command(
        override_usage = "trunkline cache rm [OPTIONS] [DIR] <ID>\n       trunkline cache rm [OPTIONS] [DIR] --all",
        after_help = PLACE_HELP
    )]
    Rm {
        /// The folder and the id.
        #[arg(hide = true, num_args = 0..=2)]
        place: Vec<OsString>,
        /// Remove everything
        #[arg(long)]
        all: bool,
        /// With `--url`, also end the pins of what is removed; without this, pinned blocks stay
        #[arg(long, requires = "url")]
        pinned: bool,
        /// The running server, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Write one path to a file, for use on another machine with the same model
    #[command(override_usage = "trunkline cache export [DIR] <ID> <FILE>", after_help = EXPORT_HELP)]
    Export {
        /// The folder, the id and the file.
        #[arg(hide = true, num_args = 0..=3)]
        place: Vec<OsString>,
    },
    /// Read a path from a file; the folder must not be in use by a server
    #[command(override_usage = "trunkline cache import [DIR] <FILE>", after_help = IMPORT_HELP)]
    Import {
        /// The folder and the file.
        #[arg(hide = true, num_args = 0..=2)]
        place: Vec<OsString>,
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
    #[error("{0}; hint: the next server with that model starts it anew, or delete the folder")]
    Unreadable(#[source] OpenError),
    #[error(
        "the store in `{}` is used by another process; hint: stop the server that uses it first, or change what it has \
         cached with `--url`",
        folder.display()
    )]
    InUse { folder: PathBuf },
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
    Open(OpenError),
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
    #[error(
        "{num_damaged} of {num_blocks} blocks {} damaged; hint: `trunkline cache repair` empties the damaged slots; a server \
         that needs a damaged block computes it again",
        if *num_damaged == 1 { "is" } else { "are" }
    )]
    Damaged { num_damaged: usize, num_blocks: usize },
    #[error(
        "a block in the middle of `{id}` is lost, so its beginning may remain, at the end of {ends}; hint: remove that \
         path, too, or everything with `--all`"
    )]
    Unlinked {
        id: String,
        /// Ids of the paths, as a list.
        ends: String,
    },
}

impl From<OpenError> for CacheError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::InUse { folder } => Self::InUse { folder },
            error => Self::Open(error),
        }
    }
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
    let form = Form::seconds(1);
    let seconds = form.plain(text).and_then(|plain| plain.parse().ok());
    seconds.ok_or_else(|| format!("expected {}", form.expected()))
}

fn misplaced(command: &'static str, problem: &'static str) -> CacheError {
    CacheError::Place { problem, command }
}

/// An id as a user gives it: as the API has it (`10-27a3…`), or only digits of the key, which folders have, too.
struct Id {
    /// The number before the key, which is a running server's.
    number: Option<u64>,
    /// The first digits of the key, in lower case.
    digits: String,
}

impl Id {
    fn parse(id: &str) -> Result<Self, CacheError> {
        let unknown = || CacheError::UnknownId { id: id.to_owned() };
        let (number, digits) = match id.split_once('-') {
            Some((number, digits)) => (Some(server::parse_number(number).ok_or_else(unknown)?), digits),
            None => (None, id),
        };
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(unknown());
        }
        if digits.len() < MIN_ID_DIGITS {
            return Err(CacheError::ShortId { id: id.to_owned() });
        }
        Ok(Self { number, digits: digits.to_ascii_lowercase() })
    }
}

/// Returns the folder that was given, or else that of the variable.
fn folder(dir: Option<&Path>, command: &'static str) -> Result<PathBuf, CacheError> {
    let variable = || std::env::var_os(FOLDER_VARIABLE).filter(|dir| !dir.is_empty());
    let dir = dir.map(Path::to_owned).or_else(|| variable().map(PathBuf::from));
    dir.ok_or_else(|| misplaced(command, NO_PLACE))
}

/// Splits the arguments into the folder, which may be left out, and `N` others.
fn split<'a, const N: usize>(
    place: &'a [OsString],
    command: &'static str,
) -> Result<(PathBuf, [&'a Path; N]), CacheError> {
    let (dir, rest) = match place.len().checked_sub(N) {
        Some(0) => (None, place),
        Some(1) => (Some(Path::new(&place[0])), &place[1..]),
        _ => return Err(misplaced(command, WRONG_NUMBER)),
    };
    Ok((folder(dir, command)?, std::array::from_fn(|index| Path::new(&rest[index]))))
}

impl CacheCommand {
    /// Runs the command and appends its output to `out`, also if it fails.
    pub(crate) fn run(&self, out: &mut String) -> Result<(), CacheError> {
        match self {
            Self::Ls { dir, server } => match server.server()? {
                Some(server) => *out = live::list(&server)?,
                None => folder::list(&folder(dir.as_deref(), "ls")?, out)?,
            },
            Self::Show { place, server } => match (server.server()?, &place[..]) {
                (Some(server), [id]) => *out = live::show(&server, &id.to_string_lossy())?,
                (Some(_), _) => return Err(misplaced("show", WRONG_PLACE)),
                (None, place) => {
                    let (dir, [id]) = split(place, "show")?;
                    folder::show(&dir, &id.to_string_lossy(), out)?;
                }
            },
            Self::Pin { id, ttl, end, server } => match (server.server()?, end) {
                (Some(server), false) => *out = live::pin(&server, id, *ttl)?,
                (Some(server), true) => *out = live::unpin(&server, id)?,
                (None, _) => {
                    let problem = "only a running server can pin a path, but `--url` was not given";
                    return Err(misplaced("pin", problem));
                }
            },
            Self::Verify { dir } => folder::verify(&folder(dir.as_deref(), "verify")?, out)?,
            Self::Repair { dir } => folder::repair(&folder(dir.as_deref(), "repair")?, out)?,
            Self::Rm { place, all, pinned, server } => match (server.server()?, &place[..], all) {
                (Some(server), [id], false) => {
                    *out = live::remove(
                        &server,
                        &id.to_string_lossy(),
                        if *pinned { Pins::End } else { Pins::Keep },
                    )?;
                }
                (Some(server), [], true) => {
                    *out = live::remove_all(&server, if *pinned { Pins::End } else { Pins::Keep })?
                }
                (Some(_), ..) => return Err(misplaced("rm", WRONG_PLACE)),
                (None, [], false) => return Err(misplaced("rm", WRONG_PLACE)),
                (None, place, false) => {
                    let (dir, [id]) = split(place, "rm")?;
                    folder::remove(&dir, &id.to_string_lossy(), out)?;
                }
                (None, place, true) => {
                    let (dir, []) = split(place, "rm")?;
                    folder::remove_all(&dir, out)?;
                }
            },
            Self::Export { place } => {
                let (dir, [id, file]) = split(place, "export")?;
                folder::export(&dir, &id.to_string_lossy(), file, out)?;
            }
            Self::Import { place } => {
                let (dir, [file]) = split(place, "import")?;
                folder::import(&dir, file, out)?;
            }
        }
        Ok(())
    }
}
