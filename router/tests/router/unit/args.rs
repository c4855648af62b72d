use std::time::Duration;

use clap::{CommandFactory, Parser};
use trunkline_grammar::GrammarLimits;
use trunkline_reply::ToolFormat;
use trunkline_router::args::Args;
use trunkline_router::limits::{Limits, SPARE_CONNECTIONS, Timeouts};
use trunkline_router::model::Choice;
use trunkline_router::watermark::DEFAULT_WATERMARK;
use trunkline_scheduler::{PolicyKind, Watermark};

/// Parses these flags together with the required ones.
fn parse(flags: &[&str]) -> Result<Args, String> {
    let needed = ["router", "--shard-socket=s", "--model-path=m", "--served-model-name=n"];
    Args::try_parse_from(needed.iter().chain(flags)).map_err(|error| error.to_string())
}

#[test]
fn parsers_are_chosen_by_name() {
    let chosen = |name: &str| parse(&["--tool-call-parser", name]).unwrap().tool_call_parser;
    assert_eq!(parse(&[]).unwrap().tool_call_parser, Choice::Auto);
    assert_eq!((chosen("auto"), chosen("off")), (Choice::Auto, Choice::Off));
    for format in ToolFormat::ALL {
        assert_eq!(chosen(format.name()), Choice::Is(format));
    }
    assert_eq!(parse(&["--reasoning-parser=think"]).unwrap().reasoning_parser, Choice::Is(()));
    let error = parse(&["--reasoning-parser=no"]).unwrap_err();
    assert!(error.contains("is none of auto, off, think"), "{error}");
}

#[test]
fn watermark_values_are_bounded() {
    let gamma = |text: &str| parse(&["--watermark-gamma", text]).map(|args| args.watermark_gamma);
    let delta = |text: &str| parse(&["--watermark-delta", text]).map(|args| args.watermark_delta);
    assert_eq!((gamma("0.01"), gamma("0.99")), (Ok(0.01), Ok(0.99)));
    assert_eq!((delta("1e-3"), delta("100")), (Ok(0.001), Ok(100.0)));
    for bad in ["0", "1", "NaN", "", "half"] {
        let error = gamma(bad).unwrap_err();
        assert!(error.contains("is no number from 0.01 to 0.99"), "{bad:?}: {error}");
    }
    assert!(parse(&["--watermark-gamma=-0.5"]).unwrap_err().contains("is no number from 0.01 to 0.99"));
    for bad in ["0", "inf", "NaN", "101", "1e-60", "two"] {
        let error = delta(bad).unwrap_err();
        assert!(error.contains("is no number above 0 and at most 100"), "{bad:?}: {error}");
    }
    assert!(parse(&["--watermark-delta=-1"]).unwrap_err().contains("is no number above 0"));
}

#[test]
fn flags_are_consistent() {
    Args::command().debug_assert();
}

#[test]
fn every_flag_is_also_an_environment_variable() {
    for arg in
        Args::command().get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
    {
        let name = format!("TRUNKLINE_{}", arg.get_id().as_str().to_uppercase());
        assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(name.as_str()));
    }
}

#[test]
fn every_flag_sets_its_limit() {
    let flags = [
        "--max-concurrent-requests=7",
        "--max-queued-requests=8",
        "--max-input-tokens=9",
        "--max-total-tokens=10",
        "--max-batch-prefill-tokens=11",
        "--max-best-of=12",
        "--max-messages=13",
        "--max-message-parts=14",
        "--max-tools=15",
        "--max-response-store-bytes=16",
        "--max-stop-sequences=17",
        "--max-schema-bytes=18",
        "--max-schema-depth=19",
        "--max-schema-properties=20",
        "--max-body-bytes=21",
        "--max-header-bytes=1025",
        "--client-stall-timeout=22",
        "--eviction-policy=lru",
        "--max-pinned-share=23",
        "--request-timeout=24",
        "--stuck-step-timeout=25",
        "--graceful-termination-timeout=26",
        "--watermark-gamma=0.25",
        "--watermark-delta=1.5",
    ];
    // All fields are listed, so a new field does not compile until it is added here.
    let wanted = Limits {
        max_concurrent_requests: 7,
        max_queued_requests: 8,
        max_input_tokens: Some(9),
        max_total_tokens: Some(10),
        max_step_tokens: Some(11),
        max_best_of: 12,
        max_messages: 13,
        max_message_parts: 14,
        max_tools: 15,
        max_response_store_bytes: 16,
        max_stop_sequences: 17,
        grammar: GrammarLimits {
            max_bytes: 18,
            max_depth: 19,
            max_properties: 20,
            ..GrammarLimits::default()
        },
        max_body_bytes: 21,
        max_header_bytes: 1025,
        client_stall_timeout: Duration::from_secs(22),
        eviction_policy: PolicyKind::Lru,
        max_pinned_percent: 23,
        request_timeout: Some(Duration::from_secs(24)),
        stuck_step_timeout: Duration::from_secs(25),
        graceful_termination_timeout: Duration::from_secs(26),
        timeouts: Timeouts::default(),
        spare_connections: SPARE_CONNECTIONS,
        watermark: Watermark { gamma: 0.25, delta: 1.5, ..DEFAULT_WATERMARK },
    };
    assert_eq!(format!("{:?}", parse(&flags).unwrap().limits()), format!("{wanted:?}"));
}

#[test]
fn limits_without_flags_are_the_defaults() {
    assert_eq!(format!("{:?}", parse(&[]).unwrap().limits()), format!("{:?}", Limits::default()));
    let limits = parse(&["--max-concurrent-requests=7"]).unwrap().limits();
    assert_eq!(limits.max_queued_requests, 7, "as many may wait as may be open");
}
