//! The models in the folder of `--models-folder`.

use std::fs;
use std::path::{Path, PathBuf};

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
    if paths.is_empty() {
        return Err(LauncherError::usage(format!(
            "`--models-folder` `{}` has no model; expected `.gguf` files, or folders with `{CONFIG}`",
            folder.display()
        )));
    }
    let text = |path: PathBuf| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| unreadable(&format!("`{}` is not Unicode", path.display())))
    };
    paths.into_iter().map(text).collect()
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
