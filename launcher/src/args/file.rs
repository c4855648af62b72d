//! The configuration file: a TOML table whose keys are the long flags of `serve`. Each table `[[model]]` in it has the
//! flags of one model.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};
use trunkline_settings::{
    AdapterAliases, AdapterSlots, Adapters, Compute, Form, Group, Model, Replies, Residency, Setting,
    ShardCache, StepLimits,
};

use crate::error::LauncherError;

/// The key of the tables of models.
const MODEL: &str = "model";
/// Jaro-Winkler similarity from which a known key is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.7;

/// The configuration file, checked.
#[derive(Debug)]
pub(crate) struct File {
    pub name: String,
    pub values: Vec<FileValue>,
    /// The values of each table `[[model]]`.
    pub models: Vec<Vec<FileValue>>,
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
    let invalid = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_at(span.start));
        LauncherError::usage(format!(
            "line {line} of `{name}` is not valid TOML: {}",
            error.message().trim().replace('\n', ", ")
        ))
    };
    let mut table: Table = toml::from_str(text).map_err(invalid)?;
    // Read again, because the places of values in tables within tables are lost.
    let models = match table.remove(MODEL) {
        Some(_) => toml::from_str::<Models>(text).map_err(invalid)?.model,
        None => Vec::new(),
    };
    let values = |table: &Table| -> Result<Vec<FileValue>, LauncherError> {
        let values = table.iter().map(|(key, value)| {
            let (setting, text) = read_value(key, value.get_ref(), name)?;
            Ok(FileValue { setting, text, line: line_at(value.span().start) })
        });
        values.collect()
    };
    let models = models.iter().map(|table| {
        let values = values(table)?;
        match values.iter().find(|value| !is_of_model(value.setting)) {
            Some(value) => Err(LauncherError::usage(format!(
                "`{}` in line {} of `{name}` holds for the whole server; hint: write it above the first `[[model]]`",
                value.setting.key(),
                value.line
            ))),
            None => Ok(values),
        }
    });
    Ok(File { name: name.to_owned(), models: models.collect::<Result<_, _>>()?, values: values(&table)? })
}

type Table = BTreeMap<String, Spanned<Value>>;

/// The tables `[[model]]`, whatever else the file has.
#[derive(Deserialize)]
struct Models {
    model: Vec<Table>,
}

/// Returns true if each model of a server may have its own value.
fn is_of_model(setting: &Setting) -> bool {
    fn has<G: Group>(setting: &Setting) -> bool {
        G::SETTINGS.iter().any(|own| own.name == setting.name)
    }
    let own_limits = ["max_input_tokens", "max_total_tokens", "target_itl_ms", "target_ttft_ms", "speculate"];
    has::<Model>(setting)
        || (has::<Residency>(setting) && !["models_memory", "models_folder", "pull"].contains(&setting.name))
        || own_limits.contains(&setting.name)
        || has::<StepLimits>(setting)
        || (has::<Replies>(setting) && setting.name != "watermark_key_file")
        || has::<Compute>(setting)
        || has::<ShardCache>(setting)
        || has::<Adapters>(setting)
        || has::<AdapterSlots>(setting)
        || has::<AdapterAliases>(setting)
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
