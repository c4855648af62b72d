use proptest::prelude::*;

use trunkline_text::{StopMatcher, StopStep, StopText};

/// Computes the output and the index of the stop string by searching the whole text.
fn naive(text: &str, stops: &[String], include: StopText) -> (String, Option<usize>) {
    let mut best: Option<(usize, usize, usize)> = None;
    for (idx, stop) in stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()) {
        if let Some(start) = text.find(stop.as_str()) {
            let (end, len) = (start + stop.len(), stop.len());
            if best.is_none_or(|(e, l, _)| end < e || (end == e && len > l)) {
                best = Some((end, len, idx));
            }
        }
    }
    match best {
        None => (text.to_owned(), None),
        Some((end, _, idx)) if include == StopText::Include => (text[..end].to_owned(), Some(idx)),
        Some((end, len, idx)) => (text[..end - len].to_owned(), Some(idx)),
    }
}

/// Runs the matcher over the pieces, and checks that no text follows a match.
fn stream<'a>(
    pieces: impl IntoIterator<Item = &'a str>,
    stops: &[String],
    include: StopText,
) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops, include);
    let (mut out, mut matched) = (String::new(), None);
    for piece in pieces {
        let step = matcher.push(piece);
        assert!(matched.is_none() || step == StopStep::default(), "text after a match");
        out.push_str(&step.text);
        matched = matched.or(step.matched);
    }
    out.push_str(&matcher.finish());
    (out, matched)
}

fn owned(stops: &[&str]) -> Vec<String> {
    stops.iter().map(ToString::to_string).collect()
}

#[test]
fn stop_across_pieces_is_held_back() {
    let mut matcher = StopMatcher::new(&["</s>"], StopText::Omit);
    assert_eq!(matcher.push("a<").text, "a");
    assert_eq!(matcher.push("/s").text, "");
    assert_eq!(matcher.push("x").text, "</sx");
    assert_eq!(matcher.push("<</s").text, "<");
    assert_eq!(matcher.push(">tail"), StopStep { text: String::new(), matched: Some(0) });
    assert_eq!(matcher.push("more"), StopStep::default());
    assert_eq!(matcher.finish(), "");
}

#[test]
fn text_without_a_possible_stop_is_not_delayed() {
    let mut matcher = StopMatcher::new(&["\n\n", "User:"], StopText::Omit);
    assert_eq!(matcher.push("Hello, world").text, "Hello, world");
    assert_eq!(matcher.push("\n").text, "");
    assert_eq!(matcher.finish(), "\n");
}

#[test]
fn earliest_complete_stop_wins_then_the_longest() {
    let cases: [(&str, &[&str], &str, usize); 5] = [
        ("one two three", &["three", "two"], "one ", 1),
        ("xabcd", &["abcd", "bc"], "xa", 1),
        ("xabc", &["bc", "abc"], "x", 1),
        ("xabc", &["abc", "bc"], "x", 0),
        ("aab", &["ab", "ab"], "a", 0),
    ];
    for (text, stops, expected, idx) in cases {
        assert_eq!(stream([text], &owned(stops), StopText::Omit), (expected.to_owned(), Some(idx)), "{text}");
    }
}

#[test]
fn included_stop_ends_the_output() {
    assert_eq!(
        stream(["ab", "STOP", "cd"], &owned(&["STOP"]), StopText::Include),
        ("abSTOP".into(), Some(0))
    );
    assert_eq!(stream(["abST"], &owned(&["STOP"]), StopText::Include), ("abST".into(), None));
}

#[test]
fn no_stops_pass_everything_at_once() {
    for stops in [owned(&[]), owned(&["", ""])] {
        let mut matcher = StopMatcher::new(&stops, StopText::Omit);
        assert_eq!(matcher.push("añ🙂"), StopStep { text: "añ🙂".into(), matched: None });
        assert_eq!(matcher.finish(), "");
    }
}

/// Generates texts in which prefixes collide often. Some of the characters share first bytes.
fn text(range: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!['a', 'b', 'é', 'è', '€', '🙂', '🙃']), range)
        .prop_map(|chars| chars.into_iter().collect())
}

proptest! {
    #![proptest_config(crate::support::drawn(3_000))]

    #[test]
    fn equals_naive_search_for_every_cut(
        text in text(0..12),
        stops in prop::collection::vec(text(0..4), 0..4),
        include in prop::sample::select(vec![StopText::Omit, StopText::Include]),
        cuts in prop::collection::vec(any::<u16>(), 12),
    ) {
        let expected = naive(&text, &stops, include);
        let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        // The bits of a mask say where to cut. All masks are tried if there are few, and else a sample.
        let masks: Vec<u16> = if borders.len() <= 7 { (0..1 << borders.len()).collect() } else { cuts };
        for mask in masks {
            let mut pieces = Vec::new();
            let mut start = 0;
            for (bit, &border) in borders.iter().enumerate() {
                if mask >> bit & 1 == 1 {
                    pieces.push(&text[start..border]);
                    start = border;
                }
            }
            pieces.push(&text[start..]);
            prop_assert_eq!(&stream(pieces, &stops, include), &expected);
        }
    }

    /// The text held back is the longest suffix that begins a stop string.
    #[test]
    fn holds_back_no_more_than_needed(text in text(0..12), stops in prop::collection::vec(text(1..4), 1..4)) {
        let mut matcher = StopMatcher::new(&stops, StopText::Omit);
        let step = matcher.push(&text);
        if step.matched.is_some() {
            return Ok(());
        }
        let longest = stops
            .iter()
            .flat_map(|stop| stop.char_indices().map(|(at, _)| &stop[..at]))
            .filter(|prefix| text.ends_with(prefix))
            .map(str::len)
            .max()
            .unwrap_or(0);
        prop_assert_eq!(matcher.finish().len(), longest);
    }
}
