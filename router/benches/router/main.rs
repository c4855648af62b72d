//! The router alone: a real `trunkline-router` process between a mock shard and a client on raw sockets.
//!
//! Three processes' worth of work share the machine, as they would with a real shard: the router, the mock shard and
//! the client (both in this process, a thread each). In the same run a bare axum loop that streams the same events
//! gives the yardstick. `make bench NAME=router`; results are printed as a Markdown table.

// A benchmark ends with what went wrong; nothing catches it.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod client;
#[path = "../../tests/mock/mod.rs"]
mod mock;
mod report;
mod server;
mod stamps;
mod workload;
mod yardstick;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// The benchmark's arguments.
#[derive(Debug, Parser)]
#[command(name = "router")]
struct Args {
    /// Write the results to `benchmark/results/router.json`, too.
    #[arg(long)]
    save: bool,
    /// About how long each workload runs, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Run only the workloads whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Measure this router instead of the one built with the benchmark: to compare two builds.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_trunkline-router"))]
    router: PathBuf,
    /// Be the bare loop (the benchmark starts itself so).
    #[arg(long, hide = true)]
    yardstick: bool,
    /// What `cargo bench` passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.yardstick {
        return yardstick::serve();
    }
    let seconds = Duration::from_secs_f64(args.seconds);
    let mut rows = Vec::new();
    for workload in workload::ALL {
        if workload.name.contains(&args.only) {
            eprintln!("{} ...", workload.name);
            rows.push(workload.run(seconds, &args.router)?);
        }
    }
    println!("{}", report::table(&rows));
    if args.save {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../benchmark/results");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("router.json");
        std::fs::write(&path, serde_json::to_string_pretty(&rows)? + "\n")?;
        eprintln!("written to {}", path.canonicalize()?.display());
    }
    Ok(())
}
