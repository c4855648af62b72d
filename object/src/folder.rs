//! Objects as files of a folder, which several servers may share.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::objects::{Objects, Refusal};

/// The files hold conversation content, so only their owner may read them.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A folder of objects. It is created at the first write if it does not exist.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Uses `root`, an absolute path.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Runs blocking work on a thread that may block.
    fn run<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Path) -> Result<T, Refusal> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Refusal>> {
        let path = self.root.join(name);
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || work(&path)).await;
            done.unwrap_or_else(|error| Err(Refusal::Other(error.to_string())))
        })
    }
}

impl Objects for Folder {
    fn size<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<u64, Refusal>> {
        self.run(name, |path| Ok(fs::metadata(path).map_err(refusal)?.len()))
    }

    fn get<'a>(&'a self, name: &'a str, size: u64) -> BoxFuture<'a, Result<Bytes, Refusal>> {
        self.run(name, move |path| {
            let file = File::open(path).map_err(refusal)?;
            let found = file.metadata().map_err(refusal)?.len();
            if found != size {
                return Err(Refusal::Size(found));
            }
            let mut bytes = Vec::new();
            // The file may grow while it is read.
            file.take(size).read_to_end(&mut bytes).map_err(refusal)?;
            Ok(bytes.into())
        })
    }

    fn create<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>> {
        self.run(name, move |path| {
            if path.exists() {
                return Err(Refusal::Exists);
            }
            // A hard link fails if somebody else was quicker; a rename would overwrite their file.
            write_beside(path, &parts, |written| {
                fs::hard_link(written, path)?;
                fs::remove_file(written)
            })
        })
    }

    fn replace<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<(), Refusal>> {
        self.run(name, move |path| write_beside(path, &parts, |written| fs::rename(written, path)))
    }

    fn remove(&self, names: Vec<String>) -> BoxFuture<'_, Result<(), Refusal>> {
        self.run("", move |root| {
            names.iter().try_for_each(|name| match fs::remove_file(root.join(name)).map_err(refusal) {
                Ok(()) | Err(Refusal::NotFound) => Ok(()),
                Err(refusal) => Err(refusal),
            })
        })
    }
}

/// Writes a file with a name of its own in the folder of `path`, then calls `publish` with its path.
fn write_beside(
    path: &Path,
    parts: &[Bytes; 2],
    publish: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), Refusal> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!("tmp-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let written = path.with_extension(unique);
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(refusal)?;
    }
    let result = write(&written, parts).and_then(|()| publish(&written));
    result.map_err(|error| {
        // The first error is the one to report; a file that was never made cannot be removed either.
        drop(fs::remove_file(&written));
        refusal(error)
    })
}

fn write(path: &Path, parts: &[Bytes; 2]) -> io::Result<()> {
    // A new file follows no link.
    let create = || OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path);
    let mut file = match create() {
        // Another machine that shares the folder may have had a process of the same id.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            create()?
        }
        created => created?,
    };
    parts.iter().try_for_each(|part| file.write_all(part))
}

fn refusal(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound => Refusal::NotFound,
        io::ErrorKind::AlreadyExists => Refusal::Exists,
        io::ErrorKind::PermissionDenied => Refusal::Permission,
        _ => Refusal::Other(error.to_string()),
    }
}
