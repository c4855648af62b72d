//! Measures only the router: a real `trunkline-router` process between a mock shard and a client on raw sockets.
//!
//! The router, the mock shard and the client share the machine, as with a real shard. The latter two are threads of
//! this process. For comparison, the same run measures a bare axum loop that streams the same events. Run it with `make
//! bench NAME=router`; it prints a Markdown table.

// A benchmark may end with a panic.
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

#[derive(Debug, Parser)]
#[command(name = "router")]
struct Args {
    /// Also write the results to `benchmark/results/router.json`.
    #[arg(long)]
    save: bool,
    /// The approximate time of each workload in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Run only the workloads whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Measure this router instead of the one that was built with the benchmark, to compare two builds.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_trunkline-router"))]
    router: PathBuf,
    /// Run the bare loop; the benchmark starts itself with this flag.
    #[arg(long, hide = true)]
    yardstick: bool,
    /// Ignored; `cargo bench` passes it to every benchmark.
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
