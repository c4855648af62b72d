//! Runs the loads of a plan one after the other, on one server or on two by turns, and shows the results.

use std::fs;
use std::io::{self, Write};
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::watch;

use crate::args::{BenchArgs, BenchCommand, RunArgs};
use crate::arrivals::{Limit, Load, sweep_rates};
use crate::error::BenchError;
use crate::live::{self, Live};
use crate::plan::{Loads, Plan};
use crate::report::{LoadReport, Report, compare, html, table, title};
use crate::run::{Outcome, Run};
use crate::server::Server;
use crate::workload::Workload;

/// Exit codes: no request was answered; interrupted by SIGINT.
const EXIT_FAILURE: i32 = 1;
const EXIT_INTERRUPTED: i32 = 130;
/// Most threads that read streams.
const MAX_THREADS: usize = 4;
/// Number of the first session of a warm-up, beyond those that are measured.
const WARMUP_SESSIONS: u64 = 1 << 40;

/// Runs the command, writes its results to `out`, and returns the exit code. `command` is the whole command line, which
/// the report repeats.
pub fn run(args: &BenchArgs, command: &[String], out: &mut impl Write) -> Result<i32, BenchError> {
    match &args.command {
        Some(BenchCommand::Compare { first, second, run }) => match (is_address(first), is_address(second)) {
            (false, false) => {
                let (first, second) = (read(first)?, read(second)?);
                write_html(run, &[first.clone(), second.clone()])?;
                print(out, &compare::render(&first, &second))?;
                Ok(0)
            }
            (true, true) => measure(&[first, second], run, command, out),
            _ => Err(BenchError::usage(format!(
                "`{first}` and `{second}` are not of one kind; hint: give two files or two addresses"
            ))),
        },
        None => match &args.url {
            Some(url) => measure(&[url], &args.run, command, out),
            None => {
                Err(BenchError::usage("no address is given; hint: trunkline bench http://localhost:3000"))
            }
        },
    }
}

/// Returns true if a word names a server and no file.
fn is_address(word: &str) -> bool {
    word.contains("://") || !(word.ends_with(".json") || fs::exists(word).unwrap_or(false))
}

fn read(file: &str) -> Result<Report, BenchError> {
    let text = fs::read_to_string(file).map_err(|source| BenchError::File {
        what: "read",
        file: file.to_owned(),
        source,
    })?;
    Report::parse(file, &text)
}

fn measure(
    urls: &[&String],
    args: &RunArgs,
    command: &[String],
    out: &mut impl Write,
) -> Result<i32, BenchError> {
    let plan = Plan::new(args)?;
    allow_many_files();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).min(MAX_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|source| BenchError::System { what: "start threads", source })?;
    let measured = runtime.block_on(async {
        let stop = on_interrupt()?;
        measure_all(urls, &plan, command, stop, out).await
    })?;
    // Connections that the server holds open do not delay the end.
    runtime.shutdown_background();
    finish(&measured, args, out)
}

/// Result of [`measure_all`].
pub struct Measured {
    pub reports: Vec<Report>,
    pub is_interrupted: bool,
}

/// Measures each load on every server by turns. Becomes partial when `stop` becomes true.
pub async fn measure_all(
    urls: &[&String],
    plan: &Plan,
    command: &[String],
    stop: watch::Receiver<bool>,
    out: &mut impl Write,
) -> Result<Measured, BenchError> {
    let workload = Arc::new(plan.workload.clone());
    let mut sides = Vec::new();
    for url in urls {
        let mut interrupted = stop.clone();
        let server = tokio::select! {
            server = Server::connect(url, plan) => server?,
            _ = interrupted.wait_for(|stop| *stop) => {
                return Ok(Measured { reports: Vec::new(), is_interrupted: true });
            }
        };
        let report = Report::new(command, plan, &server);
        print(out, &table::head(&report))?;
        sides.push(Side { server: Arc::new(server), report, first_session: 0 });
    }
    if plan.warmup > 0 {
        for side in &sides {
            side.warm_up(plan, &workload, &stop).await;
        }
    }
    let mut index = 0;
    while !*stop.borrow() {
        let loads: Vec<Option<Load>> = sides.iter().map(|side| side.load(&plan.loads, index)).collect();
        if loads.iter().all(Option::is_none) {
            break;
        }
        for (side, load) in sides.iter_mut().zip(loads) {
            let Some(load) = load else { continue };
            if *stop.borrow() {
                break;
            }
            let outcome = side.measure(load, plan.limit, plan, &workload, &stop).await;
            side.first_session += outcome.num_sessions;
            side.report.is_partial |= *stop.borrow() || outcome.gone.is_some();
            let load = LoadReport::new(load, &outcome, &plan.bounds);
            print(out, &table::load(&load))?;
            side.report.loads.push(load);
            if let Some(failure) = outcome.gone {
                print(out, &format!("\nthe server is gone: {}\n", failure.message))?;
                let reports = sides.into_iter().map(|side| side.report).collect();
                return Ok(Measured { reports, is_interrupted: false });
            }
        }
        index += 1;
    }
    let is_interrupted = *stop.borrow();
    Ok(Measured { reports: sides.into_iter().map(|side| side.report).collect(), is_interrupted })
}

/// One of the servers.
struct Side {
    server: Arc<Server>,
    report: Report,
    /// Number of the next session, so that no load repeats the prompts of another.
    first_session: u64,
}

impl Side {
    /// Returns load number `index`; `None` after the last.
    fn load(&self, loads: &Loads, index: usize) -> Option<Load> {
        match loads {
            Loads::Given(loads) => loads.get(index).copied(),
            Loads::Sweep { max_clients, .. } if index < 2 => {
                Some(Load::Closed { clients: if index == 0 { 1 } else { *max_clients } })
            }
            Loads::Sweep { count, burstiness, .. } => {
                let rate = |load: usize| self.report.loads.get(load).map(|load| load.figures.requests_per_s);
                let rates = sweep_rates(rate(0)?, rate(1)?, count - 2);
                Some(Load::Open { rate_per_s: *rates.get(index - 2)?, burstiness: *burstiness })
            }
        }
    }

    async fn warm_up(&self, plan: &Plan, workload: &Arc<Workload>, stop: &watch::Receiver<bool>) {
        let clients = match self.load(&plan.loads, 0) {
            Some(Load::Closed { clients }) => clients,
            _ => plan.warmup as usize,
        };
        let run = Run {
            server: Arc::clone(&self.server),
            workload: Arc::clone(workload),
            load: Load::Closed { clients: clients.min(plan.warmup as usize) },
            limit: Limit::Sessions(plan.warmup.div_ceil(workload.turns())),
            first_session: WARMUP_SESSIONS,
            seed: plan.seed,
            is_detailed: false,
            live: Arc::default(),
            stop: stop.clone(),
        };
        watched("warm-up", run).await;
    }

    async fn measure(
        &self,
        load: Load,
        limit: Limit,
        plan: &Plan,
        workload: &Arc<Workload>,
        stop: &watch::Receiver<bool>,
    ) -> Outcome {
        let run = Run {
            server: Arc::clone(&self.server),
            workload: Arc::clone(workload),
            load,
            limit,
            first_session: self.first_session,
            seed: plan.seed.wrapping_add(self.first_session),
            is_detailed: plan.is_detailed,
            live: Arc::default(),
            stop: stop.clone(),
        };
        watched(&title(load), run).await
    }
}

/// Measures, and shows how far it is on a terminal.
async fn watched(title: &str, run: Run) -> Outcome {
    if !live::is_shown() {
        return run.measure().await;
    }
    let live: Arc<Live> = Arc::clone(&run.live);
    let outcome = tokio::select! {
        outcome = run.measure() => outcome,
        () = live::show(title, &live) => Outcome::default(),
    };
    live::clear();
    outcome
}

/// Prints what is left to print, writes the files, and returns the exit code.
fn finish(measured: &Measured, args: &RunArgs, out: &mut impl Write) -> Result<i32, BenchError> {
    let reports = &measured.reports;
    for report in reports {
        print(out, &table::overview(report))?;
    }
    if let [first, second] = &reports[..] {
        print(out, &format!("\n{}", compare::render(first, second)))?;
    }
    if measured.is_interrupted {
        print(out, "\ninterrupted: these figures are of the requests that were answered until then\n")?;
    }
    if let Some(file) = &args.json {
        for (number, report) in reports.iter().enumerate() {
            write_file(&numbered(file, number), &report.to_json())?;
        }
    }
    write_html(args, reports)?;
    let completed: u64 =
        reports.iter().flat_map(|report| &report.loads).map(|load| load.figures.completed).sum();
    Ok(match (measured.is_interrupted, completed) {
        (true, _) => EXIT_INTERRUPTED,
        (false, 0) => EXIT_FAILURE,
        _ => 0,
    })
}

/// Returns the file of a report: `out.json`, and `out-2.json` for the second server.
fn numbered(file: &str, number: usize) -> String {
    match (number, file.rsplit_once('.')) {
        (0, _) => file.to_owned(),
        (_, Some((stem, extension))) => format!("{stem}-{}.{extension}", number + 1),
        (_, None) => format!("{file}-{}", number + 1),
    }
}

fn write_html(args: &RunArgs, reports: &[Report]) -> Result<(), BenchError> {
    args.html.as_ref().map_or(Ok(()), |file| write_file(file, &html::render(reports)))
}

fn write_file(file: &str, text: &str) -> Result<(), BenchError> {
    fs::write(file, text).map_err(|source| BenchError::File { what: "write", file: file.to_owned(), source })
}

fn print(out: &mut impl Write, text: &str) -> Result<(), BenchError> {
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| BenchError::System { what: "write to stdout", source })
}

/// Becomes true at the first SIGINT or SIGTERM. The second one ends the process.
fn on_interrupt() -> Result<watch::Receiver<bool>, BenchError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |source: io::Error| BenchError::System { what: "handle signals", source };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        for is_last in [false, true] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if is_last {
                std::process::exit(EXIT_INTERRUPTED);
            }
            sender.send_replace(true);
        }
    });
    Ok(receiver)
}

/// Raises the limit of open files as far as the system allows: each stream is one.
fn allow_many_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current < maximum {
        // Without more files, connections fail and are counted.
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
    }
}
