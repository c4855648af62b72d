//! The private folder of a launcher, and the removal of folders whose launcher died.
//!
//! The folder is created under the first usable of `XDG_RUNTIME_DIR`, the folder for temporary files and `/tmp`:
//!
//! ```text
//! trunkline-<pid>-<random>/    0700
//!     launcher.lock            0600; locked with flock while the launcher lives; contains its process id once locked
//!     control.sock             `trunkline reload` and `trunkline status` connect to it
//!     shard.sock               0600; created by the shard that the file is named after
//!     settings.json            0600; the settings of router and shards, written before each of their starts
//!     settings-m1.json         the same of the second model, and so on
//!     shard.1.sock             the same after a reload, and so on
//!     settings.1.json
//! ```
//!
//! The kernel releases the lock when the launcher ends for any reason, so a folder whose lock can be taken is stale.
//! The exception is a launcher that has created the folder but not yet written its id into the locked file: the file is
//! then empty or missing, and the id in the folder's name is that of a living process.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Pid, geteuid, test_kill_process};
use trunkline_settings::{MAX_REPLICAS, ServeSettings};

use crate::args::resolved::MAX_MODELS;
use crate::child::ShardId;
use crate::error::LauncherError;
use crate::log::Log;

const PREFIX: &str = "trunkline-";
pub const LOCK_FILE: &str = "launcher.lock";
const CONTROL_SOCKET: &str = "control.sock";
/// Settings that are not written completely.
const NEW_SETTINGS: &str = "settings.new";
const PRIVATE_DIR_MODE: u32 = 0o700;
const PRIVATE_FILE_MODE: u32 = 0o600;
/// The shard with the longest name, which a reload may start.
const LONGEST_NAMED: ShardId = ShardId { model: MAX_MODELS as u32 - 1, lane: MAX_REPLICAS - 1, rank: 0 };
/// `sizeof(sockaddr_un.sun_path)` is 108 on Linux, including the final NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Names to try when one is taken or was removed by another launcher before it could be locked.
const MAX_NAMES: usize = 8;
/// Most folders checked at a start, so that a million folders of another user in `/tmp` cannot delay it.
const MAX_SWEPT: usize = 1024;

/// A locked private folder. Dropping it removes the folder and its contents.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    /// Holds the lock while it is open.
    _lock: File,
}

impl RuntimeDir {
    /// Removes stale folders from all `bases`, then creates a folder in the first base that is writable and short
    /// enough for the sockets of any shard.
    pub fn create(bases: &[PathBuf], log: &Log) -> Result<Self, LauncherError> {
        bases.iter().for_each(|base| sweep(base, log));
        let mut reasons = Vec::new();
        for base in bases {
            match Self::create_in(base) {
                Ok(dir) => return Ok(dir),
                Err(source) => reasons.push(format!("`{}`: {source}", base.display())),
            }
        }
        Err(LauncherError::RuntimeDir { reasons: reasons.join(", ") })
    }

    fn create_in(base: &Path) -> io::Result<Self> {
        for _ in 0..MAX_NAMES {
            let path = base.join(format!("{PREFIX}{}-{:08x}", process::id(), random_u32()));
            check_socket_path(&socket_in(&path, LONGEST_NAMED, u32::MAX))?;
            match DirBuilder::new().mode(PRIVATE_DIR_MODE).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            match take_lock(&path) {
                Ok(lock) => return Ok(Self { path, _lock: lock }),
                // A launcher in another process-id namespace, where this process does not exist, removed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let _ = fs::remove_dir_all(&path);
                    return Err(error);
                }
            }
        }
        Err(io::Error::other(format!("no free name in {MAX_NAMES} attempts")))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a shard's socket after this number of reloads.
    pub fn socket(&self, shard: ShardId, generation: u32) -> PathBuf {
        socket_in(&self.path, shard, generation)
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        control_socket_in(&self.path)
    }

    /// Returns the path of the settings of a model after this number of reloads.
    pub(crate) fn settings(&self, model: u32, generation: u32) -> PathBuf {
        let name = if model == 0 { "settings".to_owned() } else { format!("settings-m{model}") };
        self.path.join(numbered(&name, generation, "json"))
    }

    /// Writes the children's settings, readable only by this user. A child that was started before reads the file of
    /// that time or this one.
    pub fn write_settings(&self, model: u32, generation: u32, settings: &ServeSettings) -> io::Result<()> {
        self.check()?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(PRIVATE_FILE_MODE);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let (new, path) = (self.path.join(NEW_SETTINGS), self.settings(model, generation));
        options.open(&new)?.write_all(&serde_json::to_vec_pretty(settings)?)?;
        fs::rename(new, path)
    }

    /// Fails if another folder has its path. Something that cleans temporary folders may have removed this one, and
    /// another user may have made one of the same name since.
    pub fn check(&self) -> io::Result<()> {
        if is_private(&self.path) {
            return Ok(());
        }
        let path = self.path.display();
        Err(io::Error::other(format!("`{path}` is no longer this launcher's private folder")))
    }

    /// Removes what the children of an earlier generation left behind.
    pub(crate) fn remove_files_of(&self, generation: u32, shards: impl Iterator<Item = ShardId>) {
        // What cannot be removed now goes with the folder.
        let _ = fs::remove_file(self.settings(0, generation));
        for shard in shards {
            let _ = fs::remove_file(self.socket(shard, generation));
        }
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        // The next start removes what cannot be removed now.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the locations for the folder, best first: `XDG_RUNTIME_DIR` is private and short, and `/tmp` is the fallback
/// for a temporary folder whose path is too long for a socket.
pub(crate) fn bases() -> Vec<PathBuf> {
    let xdg = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut bases: Vec<PathBuf> = Vec::new();
    let places = xdg.into_iter().chain([std::env::temp_dir(), PathBuf::from("/tmp")]);
    // Children get the path, and a relative one would depend on their working folder.
    for base in places.filter_map(|place| std::path::absolute(place).ok()) {
        if !bases.contains(&base) {
            bases.push(base);
        }
    }
    bases
}

fn socket_in(folder: &Path, shard: ShardId, generation: u32) -> PathBuf {
    folder.join(numbered(&shard.to_string(), generation, "sock"))
}

pub(crate) fn control_socket_in(folder: &Path) -> PathBuf {
    folder.join(CONTROL_SOCKET)
}

/// Returns a file's name. The first generation has no number.
fn numbered(name: &str, generation: u32, extension: &str) -> String {
    match generation {
        0 => format!("{name}.{extension}"),
        generation => format!("{name}.{generation}.{extension}"),
    }
}

/// Fails if a socket cannot be bound at `path` because the path is too long.
pub fn check_socket_path(path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().len();
    if bytes <= MAX_SOCKET_PATH_BYTES {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "a socket path in it would have {bytes} bytes, the limit is {MAX_SOCKET_PATH_BYTES}"
    )))
}

fn take_lock(path: &Path) -> io::Result<File> {
    let mut lock =
        OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE_MODE).open(path.join(LOCK_FILE))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if lock.metadata()?.nlink() == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    writeln!(lock, "{}", process::id())?;
    Ok(lock)
}

/// Returns a number that makes names unlikely to collide; `mkdir` makes the folder safe, not its name.
fn random_u32() -> u32 {
    (RandomState::new().build_hasher().finish() >> 32) as u32
}

/// Removes the folders of this user's dead launchers. A folder that cannot be removed is logged and left in place.
pub fn sweep(base: &Path, log: &Log) {
    let folders = candidates(base).take(MAX_SWEPT).filter(|(_, path)| is_private(path));
    for (_, path) in folders.filter(|(pid, path)| is_stale(path, *pid)) {
        match fs::remove_dir_all(&path) {
            Ok(()) => log.debug("removed the folder of a dead launcher", &[("path", &path.display())]),
            Err(error) => log.warn(
                "cannot remove the folder of a dead launcher",
                &[("path", &path.display()), ("error", &error)],
            ),
        }
    }
}

/// Returns the process ids and folders of this user's running launchers, among any number of folders of other users.
pub(crate) fn running(base: &Path) -> impl Iterator<Item = (i32, PathBuf)> {
    let folders = candidates(base).filter(|(_, path)| is_private(path));
    folders.filter(|(pid, path)| !is_stale(path, *pid) && control_socket_in(path).exists())
}

/// Returns what is named like the folder of a launcher, with the process id in its name.
fn candidates(base: &Path) -> impl Iterator<Item = (i32, PathBuf)> {
    fs::read_dir(base)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| Some((owner_in_name(entry.file_name().to_str()?)?, entry.path())))
}

/// Returns the process id in `trunkline-<pid>-<random>`.
pub fn owner_in_name(name: &str) -> Option<i32> {
    let (pid, random) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let is_random = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_random { pid.parse().ok().filter(|pid| *pid > 0) } else { None }
}

fn is_private(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| {
        metadata.is_dir()
            && metadata.uid() == geteuid().as_raw()
            && metadata.mode() & 0o777 == PRIVATE_DIR_MODE
    })
}

fn is_stale(path: &Path, pid: i32) -> bool {
    // A folder with this process's own id belongs to an earlier process, since this one has not created any yet.
    let owner_is_dead = || pid == process::id() as i32 || !is_alive(pid);
    match File::open(path.join(LOCK_FILE)) {
        Ok(mut lock) => {
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                return false;
            }
            let mut content = String::new();
            let was_locked = lock.read_to_string(&mut content).is_ok() && content.ends_with('\n');
            was_locked || owner_is_dead()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => owner_is_dead(),
        Err(_) => false,
    }
}

fn is_alive(pid: i32) -> bool {
    match Pid::from_raw(pid).map(test_kill_process) {
        Some(Err(error)) => error != rustix::io::Errno::SRCH,
        Some(Ok(())) => true,
        None => false,
    }
}
