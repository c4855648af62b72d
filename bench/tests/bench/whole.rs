//! Whole measurements against a server whose answers are known.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use trunkline_bench::BenchArgs;
use trunkline_bench::plan::Plan;
use trunkline_bench::report::Report;
use trunkline_bench::session::{Measured, measure_all};

use crate::fake::{Asked, End, Fake, Reply, as_asked, at_once};

/// How much later than it was written an event may be seen, on a machine with other work.
const MAX_LATE_S: f64 = 0.25;
const MS: Duration = Duration::from_millis(1);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: BenchArgs,
}

pub fn plan(flags: &[&str]) -> Result<Plan, String> {
    let args =
        Cli::try_parse_from(["bench", "http://x"].iter().chain(flags)).map_err(|error| error.to_string())?;
    Plan::new(&args.args.run).map_err(|error| error.to_string())
}

/// Measures servers, and returns what was printed.
async fn measured(
    servers: &[&Fake],
    flags: &[&str],
    stop: watch::Receiver<bool>,
) -> Result<(Measured, String), String> {
    let urls: Vec<&String> = servers.iter().map(|server| &server.url).collect();
    let mut out = Vec::new();
    let measured = measure_all(&urls, &plan(flags)?, &["bench".to_owned()], stop, &mut out).await;
    let measured = measured.map_err(|error| error.to_string())?;
    Ok((measured, String::from_utf8(out).unwrap()))
}

pub async fn report(server: &Fake, flags: &[&str]) -> Report {
    let (_sender, stop) = watch::channel(false);
    measured(&[server], flags, stop).await.unwrap().0.reports.remove(0)
}

async fn error(server: &Fake, flags: &[&str]) -> String {
    let (_sender, stop) = watch::channel(false);
    measured(&[server], flags, stop).await.err().unwrap()
}

fn prompt(asked: &Asked) -> &str {
    asked.body["prompt"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_those_at_which_the_server_wrote() {
    let pauses = [40, 10, 30, 0, 20].map(|ms| ms * MS).to_vec();
    let server = Fake::start(move |number, _| match number {
        0 | 1 => at_once(1),
        _ => Reply::Stream(pauses.clone(), End::Whole { cached: 16 }),
    })
    .await;
    let flags = ["--requests", "6", "--concurrency", "3", "--input-tokens", "32", "--output-tokens", "5"];
    let report = report(&server, &flags).await;
    let (load, asked) = (&report.loads[0], server.asked());
    assert_eq!((load.figures.completed, load.figures.failed), (6, 0));
    assert_eq!((load.figures.prompt_tokens, load.figures.output_tokens), (6 * 32, 6 * 5));
    assert_eq!(load.figures.cached_share(), Some(0.5));
    // The client sees an event after it was written, and soon; it sent the request before it came.
    let of_server =
        |number: usize| asked.iter().map(move |asked| (asked.written[number] - asked.at).as_secs_f64());
    let all = |value: &dyn Fn(usize) -> f64| (0..6).map(value).sum::<f64>();
    let rows = &load.requests;
    for (ours, theirs) in [
        (all(&|i| rows[i].ttft_ms.unwrap() / 1e3), of_server(0).sum::<f64>()),
        (all(&|i| rows[i].e2el_ms.unwrap() / 1e3), of_server(4).sum::<f64>()),
    ] {
        assert!(ours >= theirs && ours - theirs < 6.0 * MAX_LATE_S, "{ours} {theirs}");
    }
    for row in rows {
        let (tpot, e2el, ttft) = (row.tpot_ms.unwrap(), row.e2el_ms.unwrap(), row.ttft_ms.unwrap());
        assert!((tpot * 4.0 - (e2el - ttft)).abs() < 1e-6);
        assert!(ttft >= 40.0 && e2el >= 100.0);
    }
    // Events that are written together are seen together.
    assert!(load.figures.itl_quantiles_ms[0] < 1000.0 * MAX_LATE_S);
    assert!(load.figures.itl_quantiles_ms[100] >= 29.0);
    assert_eq!(load.figures.peak_concurrency, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_as_the_flags_say_and_connections_are_kept() {
    let server = Fake::start(|_, body| as_asked(body)).await;
    let extra = r#"{"temperature": 0.5, "min_p": 0.1, "stream_options": null}"#;
    let flags = ["--requests", "20", "--concurrency", "2", "--input-tokens", "10", "--output-tokens", "4"];
    // Any variable will do for a key.
    let others = ["--extra-body", extra, "--stop-early", "--api-key-env", "CARGO_PKG_NAME"];
    let report = report(&server, &[&flags[..], &others].concat()).await;
    let asked = server.asked();
    assert_eq!(asked.len(), 20);
    let key = Some("Bearer trunkline-bench".to_owned());
    assert!(asked.iter().all(|asked| asked.authorization == key));
    assert!(!report.to_json().contains("Bearer"));
    assert!(asked.iter().all(|asked| prompt(asked).split_whitespace().count() == 10));
    let body = &asked[0].body;
    let fields = ["model", "max_tokens", "temperature", "min_p", "stream"].map(|field| body[field].clone());
    assert_eq!(Value::from(fields.to_vec()).to_string(), r#"["fake",4,0.5,0.1,true]"#);
    assert!(body.get("ignore_eos").is_none() && body.get("stream_options").is_none());
    // One for the model's name and the probes, and one for the second client.
    assert_eq!(asked.iter().map(|asked| asked.connection).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1]));
    assert_eq!(report.server.software.as_deref(), Some("fake/1"));
    assert_eq!(report.loads[0].figures.output_tokens, 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_load_does_not_wait_for_answers() {
    // The first answers come after the last request.
    let server = Fake::start(|number, _| match number {
        0 | 1 => at_once(1),
        _ => Reply::Stream(vec![500 * MS], End::Whole { cached: 0 }),
    })
    .await;
    let flags = ["--requests", "10", "--rate", "100", "--burstiness", "inf", "--input-tokens", "4"];
    let report = report(&server, &flags).await;
    let sent: Vec<f64> = report.loads[0].requests.iter().map(|row| row.sent_s).collect();
    let last = sent.iter().copied().fold(0.0, f64::max);
    assert!((0.1..0.1 + MAX_LATE_S).contains(&last), "{sent:?}");
    assert_eq!(
        (report.loads[0].figures.peak_concurrency, report.loads[0].title.as_str()),
        (10, "rate 100 /s")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_turn_repeats_the_conversation_and_waits_for_its_tool() {
    for (route, text) in [("completions", "prompt"), ("chat", "messages")] {
        let server = Fake::start(|_, body| as_asked(body)).await;
        let flags = [
            "--requests",
            "3",
            "--concurrency",
            "1",
            "--turns",
            "3",
            "--pause",
            "0.02",
            "--output-tokens",
            "2",
        ];
        let report =
            report(&server, &[&flags[..], &["--endpoint", route, "--input-tokens", "5"]].concat()).await;
        assert_eq!(report.loads[0].figures.completed, 3);
        let asked = server.asked();
        assert!(asked.iter().all(|asked| asked.body[text] != Value::Null));
        assert!(asked.iter().all(|asked| asked.body["stream_options"]["include_usage"] == true));
        for (before, after) in asked.iter().zip(&asked[1..]) {
            assert!(after.at - *before.written.last().unwrap() >= Duration::from_micros(100));
            match text {
                "prompt" => assert!(prompt(after).starts_with(&format!("{} t0 t1 ", prompt(before)))),
                _ => {
                    let (before, after) = (&before.body[text], after.body[text].as_array().unwrap());
                    assert_eq!(before.as_array().unwrap()[..], after[..after.len() - 2]);
                    assert_eq!(after[after.len() - 2]["content"], " t0 t1");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_counted_by_kind() {
    let server = Fake::start(|number, _| match number {
        2 => Reply::Status(429, r#"{"error": {"message": "queue is full"}}"#),
        3 => Reply::Status(503, "later"),
        4 => Reply::Status(400, r#"{"detail": "too long"}"#),
        5 => Reply::Status(500, ""),
        6 => Reply::Stream(vec![MS, MS], End::Cut),
        7 => Reply::Stream(vec![MS], End::Error),
        8 => Reply::Stream(Vec::new(), End::Whole { cached: 0 }),
        9 => Reply::Stream(vec![MS], End::Stall),
        _ => at_once(3),
    })
    .await;
    let flags = ["--requests", "10", "--concurrency", "1", "--timeout", "0.5", "--input-tokens", "4"];
    let report = report(&server, &flags).await;
    let figures = &report.loads[0].figures;
    assert_eq!((figures.completed, figures.failed), (2, 8));
    let found: Vec<(&str, u64, &str)> =
        figures.failures.iter().map(|f| (f.kind.as_str(), f.count, f.example.as_str())).collect();
    assert_eq!(found[0], ("refused", 2, "429 queue is full"));
    assert_eq!(found[1], ("invalid", 1, "400 too long"));
    assert_eq!(found[2], ("server", 1, "500"));
    assert_eq!(found[3], ("error_event", 1, "the shard is lost"));
    assert_eq!((found[4].0, found[4].1), ("cut", 1));
    assert!(found[4].2.starts_with("the stream ended after 2 events"), "{}", found[4].2);
    assert_eq!(found[5], ("timeout", 1, "no complete answer within 500ms (`--timeout`)"));
    assert_eq!(found[6], ("foreign", 1, "the stream has no output"));
    let failed = report.loads[0].requests.iter().filter(|row| row.failure.is_some());
    assert_eq!(failed.count(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_counts_nothing_is_measured_by_events() {
    let server = Fake::start(|_, _| Reply::Stream(vec![MS; 3], End::Uncounted)).await;
    let report = report(&server, &["--requests", "2", "--concurrency", "1", "--input-tokens", "7"]).await;
    assert!(!report.server.counts_tokens);
    assert_eq!((report.loads[0].figures.output_tokens, report.loads[0].figures.cached_tokens), (6, None));
    assert_eq!(prompt(&server.asked()[0]).split_whitespace().count(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_keeps_what_was_measured() {
    let server = Fake::start(|number, _| match number {
        0..=3 => at_once(1),
        _ => Reply::Stream(vec![MS], End::Stall),
    })
    .await;
    let (sender, stop) = watch::channel(false);
    let interrupt = async {
        while server.asked().iter().filter(|asked| !asked.written.is_empty()).count() < 4 {
            tokio::time::sleep(MS).await;
        }
        sender.send_replace(true);
    };
    let servers = [&server];
    let flags =
        ["--requests", "50", "--concurrency", "2,4", "--input-tokens", "4", "--json", "x", "--detailed"];
    let (measured, ()) = tokio::join!(measured(&servers, &flags, stop), interrupt);
    let (measured, printed) = measured.unwrap();
    assert!(measured.is_interrupted && measured.reports[0].is_partial);
    // The second load is not begun.
    assert_eq!(measured.reports[0].loads.len(), 1);
    let figures = &measured.reports[0].loads[0].figures;
    assert_eq!((figures.completed, figures.failed, figures.unfinished), (2, 0, 2));
    // Those that were open come last, with their events and without text.
    let rows = &measured.reports[0].loads[0].requests;
    let texts: Vec<Option<&str>> = rows.iter().map(|row| row.text.as_deref()).collect();
    assert_eq!(texts, [Some(" t0"), Some(" t0"), None, None]);
    for row in rows {
        let events = row.events_ms.as_ref().unwrap();
        // An event that was written as the interrupt came may not have arrived.
        assert!(events.len() == 1 || row.e2el_ms.is_none() && events.is_empty(), "{row:?}");
        assert!(row.failure.is_none() && row.e2el_ms.is_none_or(|e2el| e2el == events[0]));
    }
    assert!(printed.contains("2 done, 0 failed, 2 unfinished"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_ends_the_wait_for_a_first_answer() {
    let server = Fake::start(|_, _| Reply::Stream(vec![MS], End::Stall)).await;
    let (sender, stop) = watch::channel(false);
    let servers = [&server];
    let interrupt = async {
        while server.num_asked() == 0 {
            tokio::time::sleep(MS).await;
        }
        sender.send_replace(true);
    };
    let (measured, ()) = tokio::join!(measured(&servers, &[], stop), interrupt);
    let measured = measured.unwrap().0;
    assert!(measured.is_interrupted && measured.reports.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_ends_the_measurement() {
    let server = Fake::start(|_, body| as_asked(body)).await;
    let (_sender, stop) = watch::channel(false);
    let (urls, start) = ([&server.url.clone()], Instant::now());
    let plan =
        plan(&["--duration", "60", "--concurrency", "2", "--input-tokens", "4", "--output-tokens", "1"])
            .unwrap();
    let mut out = Vec::new();
    let leave = async {
        while server.asked().len() < 4 {
            tokio::time::sleep(MS).await;
        }
        drop(server);
    };
    let (measured, ()) = tokio::join!(measure_all(&urls, &plan, &[], stop, &mut out), leave);
    let measured = measured.unwrap();
    assert!(start.elapsed() < Duration::from_secs(30));
    let printed = String::from_utf8(out).unwrap();
    assert!(printed.contains("the server is gone: cannot connect to `http://127.0.0.1:"), "{printed}");
    assert!(measured.reports[0].is_partial && measured.reports[0].loads[0].figures.completed >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_failure_is_a_sentence_with_a_hint() {
    let refused = Fake::start(|_, _| Reply::Status(401, r#"{"error": {"message": "wrong key"}}"#)).await;
    let found = error(&refused, &[]).await;
    assert_eq!(
        found,
        format!(
            "`{}` cannot be measured: API key refused: 401 wrong key; hint: put the API key into TRUNKLINE_API_KEY, or name \
             its variable with `--api-key-env`",
            refused.url
        )
    );
    let unknown = Fake::start(|_, _| Reply::Status(404, r#"{"error": {"message": "no model `x`"}}"#)).await;
    assert!(
        error(&unknown, &["--model", "x"]).await.contains("not found: 404 no model `x`; hint: see the names")
    );
    let strict = Fake::start(|_, _| Reply::Status(422, "unknown field")).await;
    assert!(error(&strict, &[]).await.contains("`--stop-early`"));
    let mut gone = Fake::start(|_, _| at_once(1)).await;
    gone.url = "http://127.0.0.1:1".to_owned();
    let found = error(&gone, &[]).await;
    assert!(
        found
            .starts_with("`http://127.0.0.1:1` cannot be measured: cannot connect to `http://127.0.0.1:1`: ")
    );
    assert!(
        found.ends_with("; hint: check that the server is running and that its address is right"),
        "{found}"
    );
    // The server's own hint is enough.
    let helpful = Fake::start(|_, _| Reply::Status(404, "no model `x`; hint: use `y`")).await;
    assert!(error(&helpful, &[]).await.ends_with("404 no model `x`; hint: use `y`"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    gone.url = format!("https://{}", listener.local_addr().unwrap());
    let plain = async {
        listener.accept().await.unwrap().0.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap()
    };
    let foreign = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // A server with TLS answers what it cannot read.
    let alert = async {
        let (mut stream, _) = foreign.accept().await.unwrap();
        assert!(stream.read(&mut [0; 64]).await.unwrap() > 0);
        stream.write_all(b"\x15\x03\x03\x00\x02\x02\x16").await.unwrap();
    };
    let mut tls = Fake::start(|_, _| at_once(1)).await;
    tls.url = format!("http://{}", foreign.local_addr().unwrap());
    let (found, ()) = tokio::join!(error(&tls, &[]), alert);
    assert!(found.ends_with("the answer is no HTTP; hint: `https://`, if the server has TLS"), "{found}");
    let flags = ["--insecure"];
    let (found, ()) = tokio::join!(error(&gone, &flags), plain);
    assert!(found.contains("it does not speak TLS; hint: use `http://`"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_never_repeat_prompts_and_two_servers_take_turns() {
    let servers = [Fake::start(|_, body| as_asked(body)).await, Fake::start(|_, body| as_asked(body)).await];
    let (_sender, stop) = watch::channel(false);
    let flags = [
        "--requests",
        "3",
        "--concurrency",
        "1,2",
        "--input-tokens",
        "12",
        "--output-tokens",
        "2",
        "--warmup",
        "2",
    ];
    let (found, printed) = measured(&[&servers[0], &servers[1]], &flags, stop).await.unwrap();
    assert_eq!(found.reports.iter().map(|report| report.loads.len()).collect::<Vec<_>>(), [2, 2]);
    let asked = servers.each_ref().map(Fake::asked);
    // Both get the same requests: two to warm up, and three for each load.
    let prompts = asked.each_ref().map(|asked| asked.iter().map(prompt).collect::<BTreeSet<_>>());
    assert_eq!(prompts[0].len(), 8);
    assert_eq!(prompts[0], prompts[1]);
    // The second server is asked for the first load before the first one for the second load.
    assert!(asked[1][4].at < asked[0][5].at);
    assert_eq!(printed.matches("concurrency 2, ").count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_measures_one_client_all_of_them_and_rates_between() {
    let server = Fake::start(|_, _| Reply::Stream(vec![10 * MS], End::Whole { cached: 0 })).await;
    let flags = ["--sweep", "4", "--max-concurrency", "4", "--requests", "12", "--input-tokens", "4"];
    let report = report(&server, &flags).await;
    let loads = &report.loads;
    assert_eq!(loads.iter().map(|load| load.concurrency).collect::<Vec<_>>(), [Some(1), Some(4), None, None]);
    let rate = |load: usize| loads[load].figures.requests_per_s;
    assert!((loads[3].rate_per_s.unwrap() - rate(1)).abs() < 1e-6);
    assert!((loads[2].rate_per_s.unwrap() - (rate(0) + rate(1)) / 2.0).abs() < 1e-6);
    assert_eq!(loads[2].burstiness, None);
}

#[test]
fn wrong_flags_are_sentences() {
    for (flags, expected) in [
        (&["--concurrency", "0"][..], "`--concurrency` is 0, but must be from 1 to 100000"),
        (&["--rate", "0"], "`--rate` is 0, but must be a number above 0"),
        (&["--spread", "1"], "`--spread` is 1, but must be from 0 to less than 1"),
        (&["--turns", "0"], "`--turns` is 0, but must be at least 1"),
        (&["--goodput", "ttft:x"], "`--goodput` has `ttft:x`; expected `ttft:MS`"),
        (&["--goodput", "itl:5"], "`--goodput` has `itl:5`"),
        (&["--extra-body", "[]"], "`--extra-body` is no JSON object"),
        (&["--burstiness", "2"], "`--burstiness` is about `--rate` and `--sweep`"),
        (&["--api-key-env", "TRUNKLINE_BENCH_NO_SUCH"], "the variable `TRUNKLINE_BENCH_NO_SUCH` named by"),
        (&["--duration", "soon"], "expected seconds, or a number with a unit"),
        (&["--cacert", "/nowhere.pem"], ""),
        (&["--concurrency", "2", "--rate", "2"], "cannot be used with"),
    ] {
        match plan(flags) {
            Err(error) => assert!(error.contains(expected), "{error}"),
            Ok(plan) => {
                let error = plan.client("https://localhost").err().unwrap().to_string();
                assert!(
                    error.starts_with("cannot use the certificates of `--cacert /nowhere.pem`"),
                    "{error}"
                );
            }
        }
    }
}
