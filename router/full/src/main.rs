//! The router as the wheels contain it, with cloud object stores, ZeroMQ events, traces and the history.

use std::process::ExitCode;
use std::sync::Arc;

use trunkline_engine::kv_events::{Endpoint, Publish, PublishedEvents};
use trunkline_history::Database;
use trunkline_router::process::{self, Extensions};
use trunkline_zmq::ZmqPublisher;

fn main() -> ExitCode {
    process::main(Extensions {
        open_cloud: Some(trunkline_object_cloud::open),
        start_exporter: Some(|endpoint| trunkline_otlp::start(endpoint).map_err(|error| error.to_string())),
        open_history: Some(|folder, max_bytes| {
            let database = Database::open(folder, max_bytes).map_err(|error| error.to_string())?;
            Ok(Arc::new(database))
        }),
        start_publisher: Some(|events| Box::pin(start_publisher(events))),
    })
}

async fn start_publisher(events: PublishedEvents) -> Result<Publish, String> {
    let PublishedEvents { endpoint, replay, topic } = events;
    let mut publisher = match endpoint {
        Endpoint::Bind(address) => {
            ZmqPublisher::bind(address, topic.as_str()).await.map_err(|error| error.to_string())?
        }
        Endpoint::Connect(address) => ZmqPublisher::connect(address, topic.as_str()),
    };
    if let Some(address) = replay {
        publisher.replay_on(address).await.map_err(|error| error.to_string())?;
    }
    Ok(Box::new(move |batch| publisher.publish(batch)))
}
