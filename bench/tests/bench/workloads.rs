//! Workloads: pure functions of a seed, with the lengths and the shared parts that they promise.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use proptest::prelude::*;
use trunkline_bench::random::Random;
use trunkline_bench::workload::{
    Content, Length, Made, Piece, Prefixes, Scale, Session, TraceForm, Workload, prompts, sharegpt, text,
    trace,
};

fn made(seed: u64) -> Made {
    Made {
        seed,
        input: Length::Uniform { tokens: 50, spread: 0.5 },
        output: Length::Uniform { tokens: 10, spread: 0.0 },
        max_total: None,
        prefixes: Some(Prefixes { count: 3, tokens: 20 }),
        turns: 4,
        pause: Duration::from_secs(2),
    }
}

fn pieces(session: &Session, turn: usize) -> &[Piece] {
    match &session.turns[turn].content {
        Content::Pieces(pieces) => pieces,
        content => panic!("{content:?}"),
    }
}

fn written(pieces: &[Piece]) -> String {
    let mut out = String::new();
    for piece in pieces {
        text::write(*piece, Scale::ONE, &mut out);
    }
    out
}

proptest! {
    #[test]
    fn a_session_depends_on_seed_and_number_alone(seed: u64, numbers in prop::collection::vec(0u64..1000, 2..8)) {
        let workload = Workload::Made(made(seed));
        let forward: Vec<Session> = numbers.iter().map(|n| workload.session(*n)).collect();
        let backward: Vec<Session> = numbers.iter().rev().map(|n| workload.session(*n)).collect();
        prop_assert!(forward.iter().eq(backward.iter().rev()));
    }

    #[test]
    fn lengths_pauses_and_prefixes_are_within_bounds(seed: u64, number in 0u64..1_000_000) {
        let session = made(seed).session(number);
        prop_assert_eq!(session.turns.len(), 4);
        for (turn, content) in session.turns.iter().enumerate() {
            let own = pieces(&session, turn).last().unwrap().tokens;
            prop_assert!((25..=75).contains(&own), "{}", own);
            prop_assert_eq!(content.output_tokens, 10);
            prop_assert!(content.pause <= Duration::from_secs(6));
            // Only the first turn begins with a prefix, and comes at once.
            prop_assert_eq!(pieces(&session, turn).len(), if turn == 0 { 2 } else { 1 });
            prop_assert!((turn > 0) != content.pause.is_zero());
        }
        prop_assert_eq!(pieces(&session, 0)[0].tokens, 20);
    }

    #[test]
    fn a_piece_has_a_word_for_each_token_and_begins_as_a_shorter_one(seed: u64, short in 1u32..80, more in 0u32..80) {
        let (short, long) = (Piece { seed, tokens: short }, Piece { seed, tokens: short + more });
        let texts = [short, long].map(|piece| written(&[piece]));
        prop_assert_eq!(texts[1].split_whitespace().count(), (short.tokens + more) as usize);
        prop_assert!(texts[1].starts_with(&texts[0]));
    }

    #[test]
    fn the_scale_of_a_server_gives_prompts_of_the_length_that_it_counts(
        tokens_per_word in 0.5f64..3.0, overhead in 0u64..50, tokens in 50u32..500,
    ) {
        let count = |words: f64| overhead + (words * tokens_per_word).round() as u64;
        let scale = Scale::measured(count(16.0), count(144.0), 128);
        let mut out = String::new();
        text::write(Piece { seed: 1, tokens }, scale, &mut out);
        let counted = out.split_whitespace().count() as f64 * tokens_per_word;
        prop_assert!((counted - f64::from(tokens)).abs() < 0.02 * f64::from(tokens) + tokens_per_word, "{}", counted);
    }
}

#[test]
fn requests_share_prefixes_and_nothing_else() {
    let made = made(7);
    let sessions: Vec<Session> = (0..200).map(|number| made.session(number)).collect();
    let first = |session: &Session| pieces(session, 0)[0].seed;
    assert_eq!(sessions.iter().map(first).collect::<BTreeSet<_>>().len(), 3);
    let own = sessions.iter().flat_map(|s| (0..4).map(|turn| pieces(s, turn).last().unwrap().seed));
    assert_eq!(own.collect::<BTreeSet<_>>().len(), 800);
    // Own parts differ within their first words.
    let beginning =
        |s: &Session| written(&pieces(s, 0)[1..]).split(' ').take(5).collect::<Vec<_>>().join(" ");
    assert_eq!(sessions.iter().map(beginning).collect::<BTreeSet<_>>().len(), 200);
}

#[test]
fn another_seed_gives_other_prompts() {
    assert_ne!(made(1).session(0), made(2).session(0));
}

#[test]
fn log_normal_lengths_have_their_quantiles() {
    let length = Length::LogNormal { median: 400.0, p90: 1000.0 };
    let mut random = Random::new(3);
    let mut drawn: Vec<u32> = (0..20_001).map(|_| length.draw(&mut random)).collect();
    drawn.sort_unstable();
    let near = |value: u32, expected: f64| (f64::from(value) / expected - 1.0).abs() < 0.05;
    assert!(near(drawn[10_000], 400.0) && near(drawn[18_000], 1000.0), "{} {}", drawn[10_000], drawn[18_000]);
}

#[test]
fn lengths_beyond_the_limit_are_drawn_again() {
    let length = Length::LogNormal { median: 400.0, p90: 1000.0 };
    let made =
        Made { input: length, output: length, max_total: Some(600), prefixes: None, turns: 1, ..made(0) };
    let totals = (0..500).map(|n| {
        let session = made.session(n);
        pieces(&session, 0)[0].tokens + session.turns[0].output_tokens
    });
    assert!(totals.max().unwrap() <= 600);
}

#[test]
fn equal_ids_of_a_trace_are_equal_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl").display().to_string();
    let lines = [
        r#"{"timestamp": 2000, "input_length": 25, "output_length": 3, "hash_ids": [1, 2, 9]}"#,
        r#"{"timestamp": 500, "input_length": 30, "output_length": 0, "hash_ids": [1, 2, 3]}"#,
        r#"{"timestamp": 3000, "input_length": 40, "output_length": 5, "hash_ids": [4]}"#,
    ];
    fs::write(&file, lines.join("\n")).unwrap();
    let form = TraceForm { block_tokens: 10, shrink: 1, max_input_tokens: 35 };
    let read = trace(&file, 1, form).unwrap();
    assert_eq!(read.times().map(|t| t.as_millis()).collect::<Vec<_>>(), [0, 1500, 2500]);
    let texts: Vec<String> = (0..3).map(|n| written(pieces(&read.session(n), 0))).collect();
    let words: Vec<Vec<&str>> = texts.iter().map(|text| text.split_whitespace().collect()).collect();
    // The last one is cut to 35, of which its id covers 10.
    assert_eq!(words.iter().map(Vec::len).collect::<Vec<_>>(), [30, 25, 35]);
    assert_eq!(words[0][..20], words[1][..20]);
    assert_ne!(words[0][20..25], words[1][20..25]);
    assert_eq!(read.session(0).turns[0].output_tokens, 1);
    assert_eq!(read.session(3), read.session(0));
    let half = trace(&file, 1, TraceForm { shrink: 2, ..form }).unwrap();
    let tokens = |n: u64| pieces(&half.session(n), 0).iter().map(|piece| piece.tokens).collect::<Vec<_>>();
    assert_eq!([tokens(0), tokens(1), tokens(2)], [vec![5, 5, 5], vec![5, 5, 2], vec![5, 15]]);
    assert_eq!(half.session(2).turns[0].output_tokens, 2);
}

#[test]
fn a_bad_line_of_a_trace_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl").display().to_string();
    fs::write(&file, "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n\n{\"timestamp\": 0}\n")
        .unwrap();
    let form = TraceForm { block_tokens: 512, shrink: 1, max_input_tokens: u32::MAX };
    let error = trace(&file, 0, form).unwrap_err().to_string();
    assert!(error.starts_with("line 3 of `") && error.contains("input_length"), "{error}");
    assert!(
        trace("/nowhere/trace", 0, form).unwrap_err().to_string().contains("cannot read `/nowhere/trace`")
    );
}

#[test]
fn prompts_of_a_file_are_texts_or_messages() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl").display().to_string();
    let lines = [
        r#"{"prompt": "one", "output_tokens": 3, "pause_s": 0.25, "extra_body": {"model": "x"}}"#,
        r#""two""#,
        r#"{"messages": [{"role": "user", "content": "three"}]}"#,
    ];
    fs::write(&file, lines.join("\n")).unwrap();
    let read = prompts(&file, Length::Uniform { tokens: 9, spread: 0.0 }, 0).unwrap();
    let turns: Vec<_> = read.turns().map(|turn| (turn.content.clone(), turn.output_tokens)).collect();
    assert_eq!(turns[0], (Content::Text("one".to_owned()), 3));
    assert_eq!(turns[1], (Content::Text("two".to_owned()), 9));
    assert!(matches!(&turns[2].0, Content::Messages(messages) if messages.len() == 1));
    let extra: Vec<_> = read.turns().map(|turn| serde_json::json!(turn.extra)).collect();
    assert_eq!(extra, [serde_json::json!({"model": "x"}), serde_json::json!({}), serde_json::json!({})]);
    let pauses: Vec<_> = read.turns().map(|turn| turn.pause.as_millis()).collect();
    assert_eq!(pauses, [250, 0, 0]);
    fs::write(&file, r#"{"prompt": "one", "pause_s": -1}"#).unwrap();
    let error = prompts(&file, Length::Uniform { tokens: 9, spread: 0.0 }, 0).unwrap_err().to_string();
    assert!(error.contains("has a `pause_s` that is no time in seconds"), "{error}");
}

#[test]
fn sharegpt_is_filtered_as_vllm_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sharegpt.json").display().to_string();
    let pair = |prompt: usize, answer: usize| {
        let message = |size: usize| serde_json::json!({"from": "x", "value": "a".repeat(size)});
        serde_json::json!({"conversations": [message(prompt), message(answer)]})
    };
    let single = serde_json::json!({"conversations": [{"from": "human", "value": "hello there, friend"}]});
    let all = [pair(400, 800), pair(8, 800), pair(400, 8), pair(5000, 100), pair(4000, 6000), single];
    fs::write(&file, serde_json::to_string(&all).unwrap()).unwrap();
    let read = sharegpt(&file, 0).unwrap();
    assert_eq!(read.turns().map(|turn| turn.output_tokens).collect::<Vec<_>>(), [200]);
}
