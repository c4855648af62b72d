//! The router's side of its launcher: reports on standard output, orders on standard input.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use trunkline_api::app::App;
use trunkline_base::error::ApiError;
use trunkline_base::trace::TelemetrySlot;
use trunkline_engine::shard::Health;
use trunkline_generation::models::{Action, Entry, Event, ModelId, ModelSettings, Models};
use trunkline_generation::served::ServedModel;
use trunkline_scheduler::{LaneId, LaneStats};
use trunkline_settings::{Order, Report};

use crate::models::Asked;
use crate::server::Opened;

/// Exit code after the launcher has ended.
const EXIT_LIFELINE: i32 = 1;
/// Orders that wait until the server has started.
const MAX_WAITING_ORDERS: usize = 64;

/// Reads the launcher's orders in a thread, and ends the process when standard input ends, which means that the
/// launcher has ended.
pub fn read_orders() -> mpsc::Receiver<Order> {
    let (orders, read) = mpsc::channel(MAX_WAITING_ORDERS);
    std::thread::spawn(move || {
        // An error on the pipe has the same meaning as its end.
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str::<Order>(&line) {
                // This fails while the server stops.
                Ok(order) => drop(orders.blocking_send(order)),
                Err(error) => tracing::error!(%error, line, "the launcher sent something that is no order"),
            }
        }
        std::process::exit(EXIT_LIFELINE);
    });
    read
}

/// Reads the settings of a model that the launcher adds.
pub type ReadAdded = Box<dyn Fn(&Path) -> anyhow::Result<(Entry, ModelSettings)> + Send>;

/// Obeys the launcher's orders, and reports to it from now on. `opened` gets each model, and `left` a message once
/// another router has taken over the listening socket.
pub fn attend(
    app: &Arc<App>,
    orders: mpsc::Receiver<Order>,
    read_added: ReadAdded,
    mut opened: mpsc::UnboundedReceiver<Opened>,
    left: oneshot::Receiver<()>,
) {
    tokio::spawn(async {
        if left.await.is_ok() {
            report(&Report::Left);
        }
    });
    let (lanes, telemetry) = (Lanes::default(), app.telemetry.clone());
    tokio::spawn(obey(app.clone(), lanes.clone(), orders, read_added));
    tokio::spawn(async move {
        while let Some(Opened { served, shard_sockets }) = opened.recv().await {
            for (lane, socket) in shard_sockets.into_iter().enumerate() {
                let own = (socket.clone(), served.clone(), LaneId(lane as u32));
                lanes.lock().unwrap_or_else(PoisonError::into_inner).push(own);
                tokio::spawn(report_ready(served.clone(), lane, socket.clone(), telemetry.clone()));
                tokio::spawn(report_excuses(served.lanes.clone(), lane, socket.clone()));
                tokio::spawn(report_drained(served.lanes.clone(), lane, socket.clone()));
                tokio::spawn(report_hangs(served.health.clone(), lane, socket));
            }
        }
    });
}

/// Lets the launcher find models, and load and unload them, `loads` of them from the start.
pub async fn carry_out(app: Arc<App>, loads: Vec<u32>, asked: Asked) {
    let Asked { mut actions, mut reports } = asked;
    tokio::spawn(async move {
        while let Some(asked) = reports.recv().await {
            report(&asked);
        }
    });
    for model in loads {
        tell(&app, model, |model| Event::LoadAsked { model });
    }
    while let Some(action) = actions.recv().await {
        match action {
            Action::Load(model) => {
                report(&Report::Load { model: model.0 });
                let Some(entry) = app.models.entry(model) else { continue };
                tracing::info!(model = entry.name, "loading a model");
                // Its tokenizer is read while its shards start.
                let app = app.clone();
                tokio::spawn(async move {
                    if app.models.served(&entry).await.is_err() {
                        report(&Report::Unload { model: model.0 });
                    }
                });
            }
            Action::Unload(model) => {
                let name = app.models.entry(model).map(|entry| entry.name.clone()).unwrap_or_default();
                tracing::info!(number = model.0, model = name, "unloading a model");
                app.models.leave(model).await;
                report(&Report::Unload { model: model.0 });
            }
        }
    }
}

/// Writes a line for the launcher to stdout, which nothing else uses.
fn report(report: &Report) {
    let line = serde_json::to_string(report).map_err(io::Error::other);
    if let Err(error) = line.and_then(|line| writeln!(io::stdout(), "{line}")) {
        tracing::error!(%error, ?report, "cannot write to the launcher");
    }
}

/// The lanes of the opened models, by the sockets of their shards.
type Lanes = Arc<Mutex<Vec<(PathBuf, Arc<ServedModel>, LaneId)>>>;

async fn obey(app: Arc<App>, lanes: Lanes, mut orders: mpsc::Receiver<Order>, read_added: ReadAdded) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Drain { socket, patience_ms } => set_drain(&lanes, &socket, Some(patience_ms)).await,
            Order::Undrain { socket } => set_drain(&lanes, &socket, None).await,
            Order::Unloaded { model } => {
                let problem = app.models.entry(ModelId(model)).and_then(|entry| entry.problem());
                tell(&app, model, |model| match problem {
                    Some(why) => Event::Failed { model, why },
                    None => Event::Unloaded { model },
                });
            }
            Order::Failed { model, why } => tell(&app, model, |model| Event::Failed { model, why }),
            Order::Loading { model, lane, percent } => {
                // A launcher names no others.
                if let Some(gate) = app.models.gate() {
                    gate.note_loading(ModelId(model), lane, percent);
                }
            }
            order => change(&app.models, &read_added, order),
        }
    }
}

/// Changes which models there are.
fn change(models: &Arc<Models>, read_added: &ReadAdded, order: Order) {
    let Some(finder) = models.finder() else { return };
    match order {
        Order::Downloading { model, done_bytes, total_bytes } => {
            finder.progress(&model, done_bytes, total_bytes);
        }
        Order::NotFound { model, why } => finder.end(&model, Err(why)),
        Order::Added { settings, found_as, replaces } => {
            let added = read_added(&settings).map(|(entry, settings)| {
                let id = entry.id;
                tracing::info!(model = entry.name, "a model was added");
                // A search may have found what is there already.
                if models.entry(id).is_none() {
                    models.add(entry, settings);
                }
                if let Some(old) = replaces {
                    tokio::spawn(replace(models.clone(), ModelId(old), id));
                }
                id
            });
            let added = added.map_err(|error| error.to_string());
            if let Err(error) = &added {
                tracing::error!(error, "cannot add a model");
            }
            found_as.into_iter().for_each(|name| finder.end(&name, added.clone()));
        }
        Order::Removed { model } => {
            models.remove(ModelId(model));
            tracing::info!(number = model, "a model was removed");
            finder.end_deletion(ModelId(model), Ok(()));
        }
        Order::NotDeleted { model, why } => finder.end_deletion(ModelId(model), Err(why)),
        Order::Drain { .. }
        | Order::Undrain { .. }
        | Order::Unloaded { .. }
        | Order::Failed { .. }
        | Order::Loading { .. } => {}
    }
}

/// Lets a model take the place of another one. If the other one is in memory, the new one is loaded before, and the
/// other one stays if that fails.
async fn replace(models: Arc<Models>, old: ModelId, new: ModelId) {
    let load = async {
        let (Some(gate), Some(entry)) = (models.gate(), models.entry(new)) else { return Ok(()) };
        if !gate.is_held(old) {
            return Ok(());
        }
        models.served(&entry).await?;
        gate.load(new, &entry.name).await
    };
    let problem = load.await.err().map(|error: ApiError| error.to_string());
    models.remove(if problem.is_some() { new } else { old });
    report(&Report::Replaced { model: new.0, problem });
}

async fn set_drain(lanes: &Lanes, socket: &Path, patience_ms: Option<u64>) {
    let found = {
        let lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().find(|(own, ..)| own == socket).map(|(_, served, lane)| (served.clone(), *lane))
    };
    let Some((served, lane)) = found else {
        tracing::error!(socket = %socket.display(), "the launcher names a shard that this router does not have");
        return;
    };
    match patience_ms {
        Some(patience_ms) => tracing::info!(lane = lane.0, patience_ms, "lane drains"),
        None => tracing::info!(lane = lane.0, "lane is in use again"),
    }
    served.driver.set_drain(lane, patience_ms).await;
}

/// Tells the gate what the launcher says of a model.
fn tell(app: &App, model: u32, event: impl FnOnce(ModelId) -> Event) {
    match app.models.gate() {
        // It may be one that was removed and leaves the memory.
        Some(gate) => gate.tell(event(ModelId(model))),
        None => tracing::error!(model, "the launcher names a model, but this router loads none"),
    }
}

/// Tells the launcher each time that a shard of a lane begins to compute.
async fn report_ready(served: Arc<ServedModel>, lane: usize, socket: PathBuf, telemetry: TelemetrySlot) {
    let mut last = None;
    loop {
        let shard = served.wait_lane_ready(lane, last.as_ref()).await;
        report(&Report::Ready { socket: socket.clone(), answers: shard.answers() });
        if let Some(telemetry) = telemetry.get() {
            telemetry.started();
        }
        last = Some(shard);
    }
}

/// Tells the launcher each time that a lane is empty that drains.
async fn report_drained(mut lanes: watch::Receiver<Vec<LaneStats>>, lane: usize, socket: PathBuf) {
    // An error means that the driver has ended.
    while lanes.wait_for(|lanes| lanes[lane].is_drained).await.is_ok() {
        report(&Report::Drained { socket: socket.clone() });
        if lanes.wait_for(|lanes| !lanes[lane].is_drained).await.is_err() {
            return;
        }
    }
}

/// Tells the launcher each time that the shard of a lane hangs.
async fn report_hangs(mut health: watch::Receiver<Vec<Health>>, lane: usize, socket: PathBuf) {
    let mut told = 0;
    while health.changed().await.is_ok() {
        let now = health.borrow_and_update()[lane];
        if now.hangs > told {
            let seconds = now.hung_for().as_secs();
            report(&Report::HungShard { socket: socket.clone(), seconds });
        }
        told = now.hangs;
    }
}

/// Tells the launcher of the losses that it should not hold against the shard of a lane.
async fn report_excuses(mut lanes: watch::Receiver<Vec<LaneStats>>, lane: usize, socket: PathBuf) {
    let mut told = 0;
    while let Ok(num_excused) = lanes
        .wait_for(|lanes| lanes[lane].excused_losses > told)
        .await
        .map(|lanes| lanes[lane].excused_losses)
    {
        report(&Report::Excused { socket: socket.clone(), num_losses: num_excused - told });
        told = num_excused;
    }
}
