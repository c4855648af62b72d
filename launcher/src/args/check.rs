//! `trunkline config check`: each setting with its value and the place that sets it.

use std::collections::BTreeMap;

use trunkline_settings::{
    AdapterAliases, AdapterSlots, Adapters, Aliases, Compute, ForeignShards, Group, KEY_VARIABLE, Limits,
    Logging, Model, Replies, Residency, RouterCache, Server, ShardCache, StepLimits, WATERMARK_KEY_VARIABLE,
};

use super::file::File;
use super::parsed::{Given, ParsedSettings};
use crate::error::LauncherError;
use crate::table;

/// Stands for an optional value that is absent and whose help text names no default.
const NONE: &str = "none";
const HIDDEN: &str = "(not shown)";

/// Returns a table of all settings of `trunkline serve`, and of the variables with secrets that are set.
pub(crate) fn render(parsed: &ParsedSettings, file: Option<&File>) -> Result<String, LauncherError> {
    let mut rows = vec![["SETTING", "VALUE", "SOURCE"].map(str::to_owned)];
    let lines: BTreeMap<&str, usize> =
        file.iter().flat_map(|file| &file.values).map(|value| (value.setting.name, value.line)).collect();
    let place = |name: &str| {
        let line = lines.get(name).zip(file);
        line.map_or_else(|| "default".to_owned(), |(line, file)| format!("line {line} of `{}`", file.name))
    };
    add::<Model>(&mut rows, parsed, place)?;
    add::<Residency>(&mut rows, parsed, place)?;
    add::<Server>(&mut rows, parsed, place)?;
    add::<Limits>(&mut rows, parsed, place)?;
    add::<StepLimits>(&mut rows, parsed, place)?;
    add::<Replies>(&mut rows, parsed, place)?;
    add::<Compute>(&mut rows, parsed, place)?;
    add::<ForeignShards>(&mut rows, parsed, place)?;
    add::<ShardCache>(&mut rows, parsed, place)?;
    add::<RouterCache>(&mut rows, parsed, place)?;
    add::<Adapters>(&mut rows, parsed, place)?;
    add::<AdapterSlots>(&mut rows, parsed, place)?;
    add::<AdapterAliases>(&mut rows, parsed, place)?;
    add::<Logging>(&mut rows, parsed, place)?;
    add::<Aliases>(&mut rows, parsed, place)?;
    for (what, variable) in [("API key", KEY_VARIABLE), ("watermark key", WATERMARK_KEY_VARIABLE)] {
        if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
            rows.push([what, HIDDEN, variable].map(str::to_owned));
        }
    }
    Ok(table::render(&rows))
}

fn add<G: Group>(
    rows: &mut Vec<[String; 3]>,
    parsed: &ParsedSettings,
    place: impl Fn(&str) -> String,
) -> Result<(), LauncherError> {
    for (setting, text) in G::SETTINGS.iter().zip(parsed.group::<G>()?.texts()) {
        let value = match text {
            // A URL may contain a password, although the server refuses such a one.
            Some(text) if text.contains("://") && text.contains(['@', '?']) => HIDDEN.to_owned(),
            Some(text) => setting.form.shown(&text),
            None => setting.default_in_words().unwrap_or_else(|| NONE.to_owned()),
        };
        let source = match parsed.given(setting.name) {
            Given::Flag => setting.flag(),
            Given::Variable => setting.variable(),
            Given::Otherwise => place(setting.name),
        };
        rows.push([setting.key(), value, source]);
    }
    Ok(())
}
