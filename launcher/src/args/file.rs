//! The configuration file: a flat TOML table whose keys are the long flags of `serve`.

use std::collections::BTreeMap;

use toml::{Spanned, Value};
use trunkline_settings::{Form, Setting};

use crate::error::LauncherError;

/// Jaro-Winkler similarity from which a known key is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.7;

/// The configuration file, checked.
#[derive(Debug)]
pub(crate) struct File {
    pub name: String,
    pub values: Vec<FileValue>,
}

/// One checked value of the file.
#[derive(Debug)]
pub(crate) struct FileValue {
    pub setting: &'static Setting,
    /// The value as it would be written after the flag.
    pub text: String,
    /// The line in which it stands, counted from 1.
    pub line: usize,
}

/// Reads `text`, the content of the file called `name`.
///
/// Errors name the file, the key and the most similar known key, or the value and what is valid.
pub(crate) fn read(text: &str, name: &str) -> Result<File, LauncherError> {
    let line_at = |byte: usize| 1 + text[..byte].matches('\n').count();
    let table: BTreeMap<String, Spanned<Value>> = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(span.start));
        LauncherError::usage(format!(
            "line {line} of `{name}` is not valid TOML: {}",
            error.message().trim().replace('\n', ", ")
        ))
    })?;
    let values = table.iter().map(|(key, value)| {
        let (setting, text) = read_value(key, value.get_ref(), name)?;
        Ok(FileValue { setting, text, line: line_at(value.span().start) })
    });
    Ok(File { name: name.to_owned(), values: values.collect::<Result<_, LauncherError>>()? })
}

fn read_value(key: &str, value: &Value, name: &str) -> Result<(&'static Setting, String), LauncherError> {
    let setting = settings().find(|setting| setting.key() == key).ok_or_else(|| {
        LauncherError::usage(format!("unknown key `{key}` in `{name}`; hint: {}", suggestion(key)))
    })?;
    let is_switch = matches!(setting.form, Form::Switch);
    let text = match value {
        Value::Boolean(on) if is_switch => on.to_string(),
        Value::String(text) if !is_switch => text.clone(),
        Value::Integer(number) if !is_switch => number.to_string(),
        Value::Float(number) if !is_switch => number.to_string(),
        _ => {
            let kind = value.type_str();
            let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
            let expected = if is_switch { "`true` or `false`" } else { "a string or a number" };
            return Err(LauncherError::usage(format!(
                "`{key}` in `{name}` is {article} {kind}; expected {expected}"
            )));
        }
    };
    let place = format!("`{key}` in `{name}`");
    setting.check(&text).map_err(|error| LauncherError::usage(error.at(&place)))?;
    Ok((setting, text))
}

fn settings() -> impl Iterator<Item = &'static Setting> {
    trunkline_settings::all().into_iter().map(|(setting, _)| setting)
}

fn suggestion(key: &str) -> String {
    settings()
        .map(|setting| (strsim::jaro_winkler(key, &setting.key()), setting.key()))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| format!("did you mean `{key}`?"))
        .unwrap_or_else(|| "valid keys are the long flags of `trunkline serve --help`".into())
}
