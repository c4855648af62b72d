//! `trunkline status`: the servers of this user on this machine, or one at a URL; and the list of `trunkline lanes`.

use std::io;

use serde_json::Value;
use trunkline_bench::client::tls::Trust;
use trunkline_terminal::top::metrics::Samples;

use crate::cache::ServerArgs;
use crate::cache::render::duration;
use crate::cache::server::{Server, ServerError};
use crate::caller::{Lane, Served, Status};
use crate::error::{EXIT_FAILURE, LauncherError};
use crate::{control, runtime_dir, table};

const UNKNOWN: &str = "-";
const READY: &str = "ready";
const RUNNING: &str = "trunkline_running_sequences";
const QUEUED: &str = "trunkline_queued_sequences";

/// A line of the table.
struct Row {
    pid: String,
    model: String,
    url: String,
    shards: String,
    running: String,
    queued: String,
    uptime: String,
    state: String,
}

/// Returns the table, and the exit code.
pub(crate) fn run(args: &ServerArgs) -> Result<(String, i32), LauncherError> {
    let rows = match args.server()? {
        Some(server) => vec![elsewhere(&server)?],
        None => {
            let bases = runtime_dir::bases();
            let mut running: Vec<_> = bases.iter().flat_map(|base| runtime_dir::running(base)).collect();
            running.sort();
            running.dedup();
            if running.is_empty() {
                return Err(LauncherError::no_server("", &bases));
            }
            running.into_iter().map(|(pid, folder)| here(pid, control::status(&folder))).collect()
        }
    };
    let code = if rows.iter().all(|row| row.state == READY) { 0 } else { EXIT_FAILURE };
    let head = ["PID", "MODEL", "URL", "SHARDS", "RUNNING", "QUEUED", "UPTIME", "STATE"].map(str::to_owned);
    let cells =
        |row: Row| [row.pid, row.model, row.url, row.shards, row.running, row.queued, row.uptime, row.state];
    let rows: Vec<_> = [head].into_iter().chain(rows.into_iter().map(cells)).collect();
    Ok((table::render(&rows), code))
}

fn here(pid: i32, status: io::Result<Option<Status>>) -> Row {
    let nothing = |state: String| Row {
        pid: pid.to_string(),
        model: UNKNOWN.to_owned(),
        url: UNKNOWN.to_owned(),
        shards: UNKNOWN.to_owned(),
        running: UNKNOWN.to_owned(),
        queued: UNKNOWN.to_owned(),
        uptime: UNKNOWN.to_owned(),
        state,
    };
    let status = match status {
        Ok(Some(status)) => status,
        Ok(None) => return nothing("stopping".to_owned()),
        Err(error) => return nothing(format!("no answer from the launcher: {error}")),
    };
    // Nobody else can answer on a socket that the launcher has bound, so its certificate proves nothing more.
    let client = |url: &str| Server::new(url, None, Trust::Anybody);
    let state =
        client(&status.url).and_then(|server| state(&server)).unwrap_or_else(|error| error.to_string());
    let metrics = client(status.metrics_url.as_ref().unwrap_or(&status.url));
    let [running, queued] = metrics.and_then(|server| numbers(&server)).unwrap_or_default();
    let shards = status.shards.map_or(UNKNOWN.to_owned(), |(running, all)| format!("{running}/{all}"));
    Row {
        model: status.models.first().map_or(UNKNOWN, |model| &model.name).to_owned(),
        url: status.url,
        shards,
        running: shown(running),
        queued: shown(queued),
        uptime: duration(status.uptime_s),
        ..nothing(state)
    }
}

fn elsewhere(server: &Server) -> Result<Row, LauncherError> {
    let in_cache = |error: ServerError| LauncherError::Cache(error.into());
    let state = state(server).map_err(in_cache)?;
    let [running, queued] = numbers(server).map_err(in_cache)?;
    let (_, models) = server.probe("/v1/models").map_err(in_cache)?;
    let models: Value = serde_json::from_slice(&models).unwrap_or_default();
    Ok(Row {
        pid: UNKNOWN.to_owned(),
        model: models["data"][0]["id"].as_str().unwrap_or(UNKNOWN).to_owned(),
        url: server.url().to_owned(),
        shards: UNKNOWN.to_owned(),
        running: shown(running),
        queued: shown(queued),
        uptime: UNKNOWN.to_owned(),
        state,
    })
}

/// Returns the table of a server's lanes, with the model of each one if there are several.
pub(crate) fn lanes(status: &Status) -> String {
    let url = status.metrics_url.as_ref().unwrap_or(&status.url);
    // Without the metrics, only the numbers are missing.
    let metrics = Server::new(url, None, Trust::Anybody).and_then(|server| server.probe("/metrics"));
    let metrics =
        metrics.map(|(_, body)| Samples::parse(&String::from_utf8_lossy(&body))).unwrap_or_default();
    let has_others = status.models.len() > 1;
    let row = |model: &str, number: usize, lane: &Lane| {
        // The server of one model need not name it.
        let number_label = number.to_string();
        let of_model = has_others.then_some(("model", model));
        let labels: Vec<_> = of_model.into_iter().chain([("lane", number_label.as_str())]).collect();
        let running = metrics.of("trunkline_lane_running_sequences", &labels);
        let pid = lane.pid.map_or_else(|| UNKNOWN.to_owned(), |pid| pid.to_string());
        [model.to_owned(), number.to_string(), pid, lane.state.to_string(), shown(running)]
    };
    let rows = status.models.iter().flat_map(|Served { name: model, lanes, .. }| {
        lanes.iter().enumerate().map(move |(number, lane)| row(model, number, lane))
    });
    let head = ["MODEL", "LANE", "PID", "STATE", "RUNNING"].map(str::to_owned);
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    if has_others {
        return table::render(&rows);
    }
    table::render(&rows.into_iter().map(|[_, rest @ ..]| rest).collect::<Vec<[String; 4]>>())
}

/// Returns `ready`, or the code and the message with which the server says why it is not.
fn state(server: &Server) -> Result<String, ServerError> {
    let (status, body) = server.probe("/readyz")?;
    if status == 200 {
        return Ok(READY.to_owned());
    }
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    Ok(match (answer["code"].as_str(), answer["error"].as_str()) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ => format!("`/readyz` answered {status}"),
    })
}

/// Returns the numbers of running and queued sequences of all shards, if the server shows them.
fn numbers(server: &Server) -> Result<[Option<f64>; 2], ServerError> {
    let (_, body) = server.probe("/metrics")?;
    let samples = Samples::parse(&String::from_utf8_lossy(&body));
    Ok([RUNNING, QUEUED].map(|name| samples.sum(name)))
}

fn shown(number: Option<f64>) -> String {
    number.map_or_else(|| UNKNOWN.to_owned(), |number| number.to_string())
}
