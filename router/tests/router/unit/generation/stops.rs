use trunkline_generation::stops::Stops;
use trunkline_reply::{ReasoningMarks, ReasoningStart, Sections};
use trunkline_text::StopText;

fn output(start: Option<ReasoningStart>, text: &str, cut_at: usize) -> (String, Option<usize>) {
    let marks = if text.contains("<|") { ReasoningMarks::Harmony } else { ReasoningMarks::Think };
    let sections = Sections::new(start, marks);
    let mut stops = Stops::new(&["so".into(), "<th".into()], StopText::Omit, Some(&sections));
    let mut output = String::new();
    for part in [&text[..cut_at], &text[cut_at..]] {
        let step = stops.push(part);
        output += &step.text;
        if step.matched.is_some() {
            return (output, step.matched);
        }
    }
    let step = stops.finish();
    (output + &step.text, step.matched)
}

#[test]
fn stop_strings_match_only_in_content() {
    let in_reply = Some(ReasoningStart::InReply);
    for (start, text, wanted, matched) in [
        (in_reply, "<think>so</think>\n\nsee. so", "<think>so</think>\n\nsee. ", Some(0)),
        (in_reply, "<think>so", "<think>so", None),
        // The beginning of a mark is content if the mark is never completed.
        (in_reply, " <th", " ", Some(1)),
        (in_reply, " is", " is", None),
        (Some(ReasoningStart::InPrompt), "so</think>s", "so</think>s", None),
        (None, "<think>so", "", Some(1)),
        // The beginning of a stop string stays before the mark that follows it.
        (in_reply, "<|channel|>final<|message|>is<|end|>", "<|channel|>final<|message|>is<|end|>", None),
        (
            in_reply,
            "<|channel|>analysis<|message|>so<|end|>so",
            "<|channel|>analysis<|message|>so<|end|>",
            Some(0),
        ),
    ] {
        for cut_at in 0..=text.len() {
            assert_eq!(output(start, text, cut_at), (wanted.to_owned(), matched), "{text:?} at {cut_at}");
        }
    }
}
