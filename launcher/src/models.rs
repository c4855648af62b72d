//! `trunkline models`: the models of a running server.

use crate::args::parsed::ModelsCommand;
use crate::cache::ServerArgs;
use crate::cache::render::size;
use crate::cache::server::{Model, ModelStatus, Server};
use crate::error::LauncherError;
use crate::{adapters, table};

const UNKNOWN: &str = "-";

/// Does what the command says, at the server that the arguments name or at one on this machine.
pub(crate) fn run(
    pid: Option<i32>,
    command: &ModelsCommand,
    args: &ServerArgs,
) -> Result<String, LauncherError> {
    let server = adapters::server(pid, args, "models")?;
    let (model, action, done) = match command {
        ModelsCommand::List => return list(&server),
        ModelsCommand::Load { model } => (model, "load", "is loaded"),
        ModelsCommand::Unload { model } => (model, "unload", "is unloaded"),
        ModelsCommand::Pin { model } => (model, "pin", "is loaded and pinned"),
        ModelsCommand::Unpin { model } => (model, "unpin", "may leave the memory"),
    };
    server.manage(model, action).map_err(|error| LauncherError::Cache(error.into()))?;
    Ok(format!("{model} {done}\n"))
}

fn list(server: &Server) -> Result<String, LauncherError> {
    let models = server.models().map_err(|error| LauncherError::Cache(error.into()))?;
    let head = ["NAME", "STATE", "MEMORY"].map(str::to_owned);
    // Adapters have a list of their own.
    let rows = models.into_iter().filter(|model| model.parent.is_none()).map(row);
    Ok(table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>()))
}

fn row(model: Model) -> [String; 3] {
    let Some(ModelStatus { value, detail, memory_bytes, pinned }) = model.status else {
        return [model.id, "loaded".to_owned(), UNKNOWN.to_owned()];
    };
    let pinned = if pinned { ", pinned" } else { "" };
    let detail = detail.map_or_else(String::new, |detail| format!(": {detail}"));
    let memory = if memory_bytes == 0 { UNKNOWN.to_owned() } else { size(memory_bytes) };
    [model.id, format!("{value}{pinned}{detail}"), memory]
}
