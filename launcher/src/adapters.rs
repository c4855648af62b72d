//! `trunkline adapters`: the adapters of a running server.

use trunkline_bench::client::tls::Trust;

use crate::cache::ServerArgs;
use crate::cache::render::size;
use crate::cache::server::{Adapter, Server};
use crate::error::LauncherError;
use crate::{control, table};

const UNKNOWN: &str = "-";

/// Returns the table of the adapters of the server that the arguments name, or of one on this machine.
pub(crate) fn run(pid: Option<i32>, args: &ServerArgs) -> Result<String, LauncherError> {
    let server = server(pid, args, "adapters")?;
    let head = ["NAME", "RANK", "SIZE", "STATE"].map(str::to_owned);
    let rows = server.adapters().map_err(|error| LauncherError::Cache(error.into()))?.into_iter().map(row);
    Ok(table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>()))
}

/// Returns the server that the arguments name, or one on this machine, to list its `listed`.
pub(crate) fn server(pid: Option<i32>, args: &ServerArgs, listed: &str) -> Result<Server, LauncherError> {
    match args.server()? {
        Some(server) => Ok(server),
        // Nobody else can answer on a socket that the launcher has bound, so its certificate proves nothing more.
        None => Server::new(&control::status_of(pid, listed)?.url, None, Trust::Anybody)
            .map_err(|error| LauncherError::Cache(error.into())),
    }
}

fn row(adapter: Adapter) -> [String; 4] {
    let Adapter { name, state, rank, num_bytes, problem } = adapter;
    let unknown = || UNKNOWN.to_owned();
    let rank = rank.map_or_else(unknown, |rank| rank.to_string());
    let state = problem.map_or_else(|| state.clone(), |problem| format!("{state}: {problem}"));
    [name, rank, num_bytes.map_or_else(unknown, size), state]
}
