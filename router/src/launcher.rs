//! The router's side of its launcher: reports on standard output, orders on standard input.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use trunkline_api::app::App;
use trunkline_engine::shard::Health;
use trunkline_scheduler::{LaneId, LaneStats};
use trunkline_settings::{Order, Report};

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

/// Obeys the launcher's orders, and reports to it from now on. `left` gets a message once another router has taken over
/// the listening socket.
pub fn attend(
    app: &Arc<App>,
    sockets: &[PathBuf],
    orders: mpsc::Receiver<Order>,
    left: oneshot::Receiver<()>,
) {
    tokio::spawn(async {
        if left.await.is_ok() {
            report(&Report::Left);
        }
    });
    tokio::spawn(obey(app.clone(), sockets.to_vec(), orders));
    for (lane, socket) in sockets.iter().cloned().enumerate() {
        let served = &app.served;
        tokio::spawn(report_ready(app.clone(), lane, socket.clone()));
        tokio::spawn(report_excuses(served.lanes.clone(), lane, socket.clone()));
        tokio::spawn(report_drained(served.lanes.clone(), lane, socket.clone()));
        tokio::spawn(report_hangs(served.health.clone(), lane, socket));
    }
}

/// Writes a line for the launcher to stdout, which nothing else uses.
fn report(report: &Report) {
    let line = serde_json::to_string(report).map_err(io::Error::other);
    if let Err(error) = line.and_then(|line| writeln!(io::stdout(), "{line}")) {
        tracing::error!(%error, ?report, "cannot write to the launcher");
    }
}

async fn obey(app: Arc<App>, sockets: Vec<PathBuf>, mut orders: mpsc::Receiver<Order>) {
    let lane_of = |socket: &Path| (0..).map(LaneId).zip(&sockets).find(|(_, own)| *own == socket);
    while let Some(order) = orders.recv().await {
        let (socket, patience_ms) = match &order {
            Order::Drain { socket, patience_ms } => (socket, Some(*patience_ms)),
            Order::Undrain { socket } => (socket, None),
        };
        let Some((lane, _)) = lane_of(socket) else {
            tracing::error!(socket = %socket.display(), "the launcher names a shard that this router does not have");
            continue;
        };
        match patience_ms {
            Some(patience_ms) => tracing::info!(lane = lane.0, patience_ms, "lane drains"),
            None => tracing::info!(lane = lane.0, "lane is in use again"),
        }
        app.served.driver.set_drain(lane, patience_ms).await;
    }
}

/// Tells the launcher each time that a shard of a lane begins to compute.
async fn report_ready(app: Arc<App>, lane: usize, socket: PathBuf) {
    let mut last = None;
    loop {
        let shard = app.served.wait_lane_ready(lane, last.as_ref()).await;
        report(&Report::Ready { socket: socket.clone(), answers: shard.answers() });
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
