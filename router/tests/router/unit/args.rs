use clap::{CommandFactory, Parser};
use trunkline_reply::ToolFormat;
use trunkline_router::args::Args;
use trunkline_router::dialects::reply::Choice;

/// The arguments of a start with these flags.
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
fn a_watermark_is_within_its_bounds() {
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
