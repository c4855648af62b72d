//! The configuration file: a flat TOML table whose keys are the long flags of `serve`.

use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

use crate::error::LauncherError;

/// The one flag that cannot be in the file: it names the file.
const CONFIG_FLAG: &str = "config";
const HELP_FLAG: &str = "help";
/// Jaro-Winkler similarity from which a known key counts as meant by an unknown one.
const MIN_SIMILARITY: f64 = 0.7;

/// One checked value of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileValue {
    /// clap's id of the flag.
    pub arg_id: String,
    /// The value as it would be typed.
    pub text: String,
}

/// Reads `text`, the content of the file called `name`, against the flags of `serve`.
///
/// Errors name the file, the key and the nearest known key, or the value and what it should be.
pub fn read(serve: &Command, text: &str, name: &str) -> Result<Vec<FileValue>, LauncherError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        LauncherError::usage(format!(
            "`{name}` line {line} is not TOML: {}",
            error.message().trim().replace('\n', ", ")
        ))
    })?;
    table.iter().map(|(key, value)| read_value(serve, key, value, name)).collect()
}

fn read_value(serve: &Command, key: &str, value: &Value, name: &str) -> Result<FileValue, LauncherError> {
    let arg = known_flags(serve).find(|arg| arg.get_long() == Some(key)).ok_or_else(|| {
        LauncherError::usage(format!("unknown key `{key}` in `{name}`{}", nearest(serve, key)))
    })?;
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let text = match value {
        Value::Boolean(on) if is_switch => on.to_string(),
        Value::String(text) if !is_switch => text.clone(),
        Value::Integer(number) if !is_switch => number.to_string(),
        Value::Float(number) if !is_switch => number.to_string(),
        _ => {
            let wanted = if is_switch { "`true` or `false`" } else { "a string or a number" };
            return Err(LauncherError::usage(format!(
                "`{key}` in `{name}` is {}, expected {wanted}",
                value.type_str()
            )));
        }
    };
    check(arg, key, &text, name)?;
    Ok(FileValue { arg_id: arg.get_id().to_string(), text })
}

/// Lets the flag's own parser judge the value alone, so that the error can name the file rather than the flag.
fn check(arg: &Arg, key: &str, text: &str, name: &str) -> Result<(), LauncherError> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Ok(());
    }
    let alone = Command::new(CONFIG_FLAG).arg(arg.clone().env(None::<&str>));
    alone.try_get_matches_from([CONFIG_FLAG, &format!("--{key}={text}")]).map(drop).map_err(|error| {
        use clap::error::{ContextKind, ContextValue};
        let reason = match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(values)) if !values.is_empty() => {
                format!("expected one of {}", values.join(", "))
            }
            _ => std::error::Error::source(&error)
                .map_or_else(|| "not possible here".into(), ToString::to_string),
        };
        LauncherError::usage(format!("`{key}` in `{name}` is `{text}`: {reason}"))
    })
}

fn known_flags(serve: &Command) -> impl Iterator<Item = &Arg> {
    serve
        .get_arguments()
        .filter(|arg| arg.get_long().is_some_and(|long| long != CONFIG_FLAG && long != HELP_FLAG))
}

fn nearest(serve: &Command, key: &str) -> String {
    known_flags(serve)
        .filter_map(Arg::get_long)
        .map(|long| (strsim::jaro_winkler(key, long), long))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, long)| format!("; hint: `{long}` is the nearest known one"))
        .unwrap_or_else(|| "; hint: keys are the long flags of `trunkline serve --help`".into())
}
