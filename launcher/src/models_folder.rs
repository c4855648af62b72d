//! The models in the folder of `--models-folder`, at the start and while the server runs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::error::LauncherError;

const CONFIG: &str = "config.json";
/// Part of the names of files that are no models, but add images to one.
const PROJECTOR: &str = "mmproj";

/// Returns the paths of the models, in the order of their names.
pub(crate) fn read(folder: &Path) -> Result<Vec<String>, LauncherError> {
    let unreadable = |problem: &dyn std::fmt::Display| {
        LauncherError::usage(format!("`--models-folder` `{}` cannot be read: {problem}", folder.display()))
    };
    let entries = fs::read_dir(folder).map_err(|error| unreadable(&error))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(|error| unreadable(&error))?;
    paths.retain(|path| is_model(path));
    paths.sort();
    let text = |path: PathBuf| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| unreadable(&format!("`{}` is not Unicode", path.display())))
    };
    paths.into_iter().map(text).collect()
}

/// The error of a folder without a model, where no other model is named.
pub(crate) fn empty(folder: &Path) -> LauncherError {
    LauncherError::usage(format!(
        "`--models-folder` `{}` has no model; expected `.gguf` files, or folders with `{CONFIG}`",
        folder.display()
    ))
}

/// The size and the latest change of a model's files, which tell a model from another one at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    bytes: u64,
    changed: SystemTime,
}

/// Looks at the folder again and again, and tells which models are there, once at the beginning and then whenever that
/// has changed, until `tell` returns false. A file that is being copied changes from one look to the next, so a change
/// is told once two looks agree.
pub(crate) fn watch(
    folder: PathBuf,
    pause: Duration,
    tell: impl Fn(BTreeMap<String, Stamp>) -> bool + Send + 'static,
) {
    thread::spawn(move || {
        let (mut last, mut told) = (None, None);
        loop {
            // A folder that cannot be read, such as one that is not mounted for a moment, tells nothing of its models.
            let now = read(&folder).ok().map(stamped);
            if let Some(models) = &now
                && now == last
                && now != told
            {
                if !tell(models.clone()) {
                    return;
                }
                told.clone_from(&now);
            }
            last = now;
            thread::sleep(pause);
        }
    });
}

fn stamped(models: Vec<String>) -> BTreeMap<String, Stamp> {
    let stamp = |model: String| stamp(Path::new(&model)).map(|stamp| (model, stamp)).ok();
    // A model that vanishes meanwhile is missing at the next look.
    models.into_iter().filter_map(stamp).collect()
}

/// Returns the stamp of a folder with all files in it, or of a file with those that its name begins.
fn stamp(path: &Path) -> io::Result<Stamp> {
    let (folder, prefix) = if path.is_dir() {
        (path, String::new())
    } else {
        (path.parent().unwrap_or(path), first_of(path).unwrap_or_default())
    };
    let mut stamp = Stamp { bytes: 0, changed: SystemTime::UNIX_EPOCH };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(&prefix) {
            continue;
        }
        let metadata = fs::metadata(entry.path())?;
        stamp.bytes = stamp.bytes.saturating_add(metadata.len());
        stamp.changed = stamp.changed.max(metadata.modified()?);
    }
    Ok(stamp)
}

/// Returns what the names of a model's files have in common: all of the name, or what is before the number of a part.
fn first_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let parts = name.strip_suffix(".gguf").and_then(|stem| stem.rsplit_once("-of-"));
    let prefix = parts.and_then(|(before, _)| before.rsplit_once('-')).map(|(prefix, _)| prefix);
    Some(prefix.unwrap_or(name).to_owned())
}

fn is_model(path: &Path) -> bool {
    if path.is_dir() {
        return path.join(CONFIG).is_file() || holds_gguf(path);
    }
    is_gguf(path) && path.is_file()
}

/// Returns true if a folder has one model in GGUF.
fn holds_gguf(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter(|entry| is_gguf(&entry.path())).count() == 1
}

/// Returns true for a file that is a model, or the first part of one.
fn is_gguf(path: &Path) -> bool {
    let Some(stem) =
        path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".gguf"))
    else {
        return false;
    };
    let part = stem.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-')).map(|(_, part)| part);
    let is_later_part = part.is_some_and(|part| {
        part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit()) && part != "00001"
    });
    !is_later_part && !stem.contains(PROJECTOR)
}
