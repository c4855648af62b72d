//! In the harmony format, messages of reasoning precede the message that follows the grammar.

use serde_json::{Value, json};
use trunkline_grammar::{Allowed, Constraint, Forcing, Grammar, Next, Reasoning};
use trunkline_reply::ReasoningMarks;
use trunkline_text::{EncodeSpecial, ModelText};

use crate::support::{compiler_with, model_with};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CONTROL: [&str; 7] = [RETURN, "<|call|>", START, CHANNEL, MESSAGE, END, "<|constrain|>"];
/// `final` is written in letters.
const WORDS: [&str; 4] = ["analysis", "assistant", "yes", "<|end|>x"];

const FINAL: &str = "<|channel|>final<|message|>";
const ANALYSIS: &str = "<|channel|>analysis<|message|>";

pub fn model() -> ModelText {
    model_with(&CONTROL, 2, &WORDS)
}

fn constraint(model: &ModelText, reasoning: Reasoning) -> Constraint {
    let grammar = Grammar::Choices(vec!["yes".into(), "yellow".into()]);
    let mut constraint = compiler_with(model, ReasoningMarks::Harmony).compile(&grammar).unwrap();
    constraint.begin_after(reasoning, None);
    constraint
}

pub fn ids(model: &ModelText, text: &str) -> Vec<u32> {
    model.tokenizer.encode(text, EncodeSpecial::Allow).unwrap()
}

fn id(model: &ModelText, token: &str) -> u32 {
    model.tokenizer.token_id(token).unwrap()
}

/// Returns the tokens of the next mask. None are forced.
pub fn next(constraint: &mut Constraint) -> Vec<u32> {
    match constraint.allowed(Forcing::Never).unwrap() {
        Allowed { forced, next: Next::Mask(mask), .. } if forced.is_empty() => mask.iter().collect(),
        other => panic!("{other:?}"),
    }
}

/// Writes a text, and checks that the masks permit it.
pub fn write(model: &ModelText, constraint: &mut Constraint, text: &str) {
    for id in ids(model, text) {
        assert!(next(constraint).contains(&id), "token {id} of {text}");
        constraint.accept(id).unwrap();
    }
}

/// Checks that the grammar has begun, writes the content, and checks that the output ends.
fn finish(model: &ModelText, constraint: &mut Constraint) {
    assert_eq!(next(constraint), [id(model, "y"), id(model, "yes")]);
    write(model, constraint, "yes");
    assert_eq!(constraint.allowed(Forcing::Allow).unwrap().next, Next::End);
}

#[test]
fn a_reply_reasons_in_any_number_of_messages_before_its_content() {
    let model = model();
    let thought = format!("{ANALYSIS}yes{END}{START}assistant");
    for before in [String::new(), thought.clone(), [thought.as_str(), &thought].concat()] {
        let mut constraint = constraint(&model, Reasoning::Possible);
        assert_eq!(next(&mut constraint), [id(&model, CHANNEL)], "a reply begins with a header");
        write(&model, &mut constraint, &(before + FINAL));
        finish(&model, &mut constraint);
    }
    let mut begun = constraint(&model, Reasoning::Begun);
    write(&model, &mut begun, &format!("no{END}{START}assistant{FINAL}"));
    finish(&model, &mut begun);
}

#[test]
fn headers_leave_only_the_choice_of_the_channel() {
    let model = model();
    let mut constraint = constraint(&model, Reasoning::Possible);
    write(&model, &mut constraint, CHANNEL);
    assert_eq!(next(&mut constraint), [id(&model, "f"), id(&model, "analysis")]);
    write(&model, &mut constraint, "analysis");
    // What may follow alone needs no step.
    let allowed = constraint.allowed(Forcing::Allow).unwrap();
    assert_eq!(allowed.forced, [id(&model, MESSAGE)]);
    let free = next(&mut constraint);
    let control: Vec<&str> = CONTROL.into_iter().filter(|token| free.contains(&id(&model, token))).collect();
    assert_eq!(control, [END], "reasoning ends at its mark, and the output does not end in it");
    assert!(!free.contains(&id(&model, "<|end|>x")) && free.contains(&id(&model, "assistant")));
    constraint.accept(id(&model, END)).unwrap();
    let allowed = constraint.allowed(Forcing::Allow).unwrap();
    assert_eq!(allowed.forced, ids(&model, "<|start|>assistant<|channel|>"));
    write(&model, &mut constraint, "f");
    assert_eq!(constraint.allowed(Forcing::Allow).unwrap().forced, ids(&model, &FINAL[CHANNEL.len() + 1..]));
    finish(&model, &mut constraint);
}

#[test]
fn what_may_follow_depends_only_on_the_tokens_so_far() {
    let model = model();
    let text = format!("{ANALYSIS}<|en{END}{START}assistant{ANALYSIS}b{END}{START}assistant{FINAL}yellow");
    let beginning = constraint(&model, Reasoning::Possible);
    let mut running = beginning.fork();
    let ids = ids(&model, &text);
    for num_tokens in 0..ids.len() {
        let mut replayed = beginning.fork();
        ids[..num_tokens].iter().for_each(|&id| replayed.accept(id).unwrap());
        let mut forced = replayed.fork();
        assert_eq!(replayed.allowed(Forcing::Never), running.allowed(Forcing::Never), "{num_tokens}");
        let allowed = forced.allowed(Forcing::Allow).unwrap();
        assert!(ids[num_tokens..].starts_with(&allowed.forced), "{num_tokens}: {allowed:?}");
        running.accept(ids[num_tokens]).unwrap();
    }
    assert_eq!(running.allowed(Forcing::Never).unwrap().next, Next::End);
}

#[test]
fn without_marks_that_it_can_write_a_reply_begins_with_its_grammar() {
    let ending = model_with(&[RETURN, END, START, CHANNEL, MESSAGE], 2, &WORDS);
    let mut constraint = constraint(&ending, Reasoning::Possible);
    assert_eq!(next(&mut constraint), [id(&ending, "y"), id(&ending, "yes")]);
}

#[test]
fn a_call_has_the_header_of_its_function_and_arguments_under_its_schema() {
    let model = model();
    let answer = |values: Value| {
        json!({"type": "object", "properties": {"a": {"enum": values}}, "required": ["a"],
        "additionalProperties": false})
    };
    let functions =
        vec![("f".into(), answer(json!([1])).into()), ("f_g".into(), answer(json!(["x"])).into())];
    let beginning =
        compiler_with(&model, ReasoningMarks::Harmony).compile(&Grammar::Call(functions)).unwrap();
    for (name, arguments, wrong) in [("f", "{\"a\":1}", "\""), ("f_g", "{\"a\":\"x\"}", "1")] {
        let header = format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
        for (reasoning, before) in [
            (None, String::new()),
            (Some(Reasoning::Possible), String::new()),
            (Some(Reasoning::Possible), format!("{ANALYSIS}yes{END}{START}assistant")),
            (Some(Reasoning::Begun), format!("{END}{START}assistant")),
        ] {
            let mut constraint = beginning.fork();
            if let Some(reasoning) = reasoning {
                constraint.begin_after(reasoning, None);
            }
            let start = constraint.fork();
            write(&model, &mut constraint, &(before.clone() + &header + "{\"a\":"));
            assert!(!next(&mut constraint).contains(&id(&model, wrong)), "the schema is that of {name}");
            write(&model, &mut constraint, &arguments["{\"a\":".len()..]);
            assert_eq!(constraint.allowed(Forcing::Allow).unwrap().next, Next::End);
            let mut replayed = start;
            let written = ids(&model, &(before + &header));
            written.iter().for_each(|&id| replayed.accept(id).unwrap());
            assert_eq!(next(&mut replayed), [id(&model, "{")]);
        }
    }
    // White space is bounded, as under any schema.
    let mut spaced = beginning.fork();
    let header = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{";
    write(&model, &mut spaced, &(header.to_owned() + &" ".repeat(32)));
    assert_eq!(next(&mut spaced), ids(&model, "\""));
    let mut unasked = beginning.fork();
    write(&model, &mut unasked, CHANNEL);
    assert_eq!(next(&mut unasked), ids(&model, "c"), "a reply without reasoning begins with a call");
    let unable = compiler_with(&model, ReasoningMarks::Think)
        .compile(&Grammar::Call(vec![("f".into(), json!({}).into())]));
    assert!(unable.unwrap_err().to_string().contains("header of a call"));
}
