//! A reply follows its grammar, or consists of calls behind their mark.

use serde_json::json;
use trunkline_grammar::{Calls, Constraint, Grammar, GrammarCompiler, Reasoning};
use trunkline_reply::ReasoningMarks;
use trunkline_text::ModelText;

use crate::support::{allows, compiler, compiler_with, model, model_with};

const END: &str = "<|end|>";
const MARK: &str = "[TOOL_CALLS]";

fn grammar(reply: Grammar, opening_mark: &'static str, closing_mark: Option<&'static str>) -> Grammar {
    let call = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false});
    let schema =
        if closing_mark.is_some() { call } else { json!({"type": "array", "items": call, "minItems": 1}) };
    let forms = vec![(opening_mark.to_owned(), Grammar::JsonSchema(schema.into()))];
    let calls = Calls { forms, closing_mark, may_repeat: true };
    Grammar::WithCalls { reply: Box::new(reply), calls }
}

/// Returns the tokens of a text. Marks that are control tokens are one token each.
fn ids(model: &ModelText, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let control = [MARK, "<think>", "</think>", "<S>", "<C>", "<A>"]
            .into_iter()
            .find(|mark| rest.starts_with(mark));
        let id = control.and_then(|mark| model.tokenizer.token_id(mark));
        let len = control.filter(|_| id.is_some()).map_or(char.len_utf8(), str::len);
        // The first tokens of the vocabulary are the bytes.
        ids.extend(id.map_or_else(|| rest[..len].bytes().map(u32::from).collect(), |id| vec![id]));
        rest = &rest[len..];
    }
    ids
}

fn may_write(constraint: &Constraint, model: &ModelText, text: &str) -> bool {
    allows(constraint.fork(), &ids(model, text), model.end_token_ids[0])
}

#[test]
fn each_kind_of_grammar_may_be_replaced_by_marked_calls() {
    let model = model();
    let compiler = compiler(&model);
    let schema = json!({"type": "object", "properties": {"b": {"const": 1}}, "required": ["b"],
        "additionalProperties": false});
    for (reply, right) in [
        (Grammar::JsonSchema(schema.into()), "{\"b\":1}"),
        (Grammar::JsonObject, "{\"c\":[]}"),
        (Grammar::Regex("^a+$".into()), "aaa"),
        (Grammar::Choices(vec!["yes".into(), "no".into()]), "no"),
        (Grammar::Lark("start: A | \"<\"\nA: /x{2}/".into()), "xx"),
        (Grammar::Lark("root ::= \"(\" root \")\" | \"z\"".into()), "((z))"),
    ] {
        let constraint = compiler.compile(&grammar(reply.clone(), "<call>", Some("</call>"))).unwrap();
        let call = "<call>\n{\"a\":true}\n</call>";
        for (text, is_right) in [
            (right, true),
            (call, true),
            (&format!("{call}\n{call}"), true),
            ("<call>\n{\"a\":1}\n</call>", false),
            ("<call>{\"a\":true}", false),
            (&format!("{right}{call}"), false),
            ("other", false),
        ] {
            let is_allowed = may_write(&constraint, &model, text);
            assert_eq!(is_allowed, is_right, "{text} under {reply:?}");
        }
    }
}

fn with_control_mark(model: &ModelText, compiler: &GrammarCompiler) -> Constraint {
    let compiled = compiler.compile(&grammar(Grammar::Choices(vec!["yes".into()]), MARK, None)).unwrap();
    assert!(may_write(&compiled, model, "yes"));
    compiled
}

#[test]
fn a_mark_may_be_a_control_token() {
    let model = model_with(&[END, MARK], 1, &["yes"]);
    let constraint = with_control_mark(&model, &compiler(&model));
    for (text, is_right) in [
        ("[TOOL_CALLS][{\"a\":true},{\"a\":false}]", true),
        ("[TOOL_CALLS] [{\"a\":true}]", true),
        ("[TOOL_CALLS]yes", false),
        ("[TOOL_CALLS][]", false),
        ("yes[TOOL_CALLS][{\"a\":true}]", false),
    ] {
        assert_eq!(may_write(&constraint, &model, text), is_right, "{text}");
    }
}

#[test]
fn a_mark_may_have_several_control_tokens_around_a_name() {
    let model = model_with(&[END, "<S>", "<C>", "<A>"], 1, &["yes"]);
    let of_type = |kind: &str| {
        let a = json!({"type": "object", "properties": {"a": {"type": kind}}, "required": ["a"],
            "additionalProperties": false});
        Grammar::JsonSchema(a.into())
    };
    let forms = vec![
        ("<S><C>f:0<A>".to_owned(), of_type("boolean")),
        ("<S><C>g:0<A>".to_owned(), of_type("integer")),
    ];
    let calls = Calls { forms, closing_mark: Some("<C>"), may_repeat: true };
    let reply = Box::new(Grammar::Choices(vec!["yes".into()]));
    let constraint = compiler(&model).compile(&Grammar::WithCalls { reply, calls }).unwrap();
    for (text, is_right) in [
        ("yes", true),
        ("<S><C>f:0<A>{\"a\":true}", true),
        ("<S><C>g:0<A> {\"a\":1}", true),
        ("<S><C>g:0<A>{\"a\":true}", false),
        ("<S><C>h:0<A>{\"a\":true}", false),
        ("<S>yes", false),
        ("<S><C>yes", false),
        ("<C>f:0<A>{\"a\":true}", false),
        ("yes<S><C>f:0<A>{\"a\":true}", false),
    ] {
        assert_eq!(may_write(&constraint, &model, text), is_right, "{text}");
    }
}

#[test]
fn calls_follow_reasoning_which_does_not_begin_again() {
    let model = model_with(&[END, MARK, "<think>", "</think>"], 1, &["yes"]);
    let mut constraint = with_control_mark(&model, &compiler_with(&model, ReasoningMarks::Think));
    for (reasoning, before) in [(Reasoning::Begun, "hm</think>"), (Reasoning::Possible, "<think>hm</think>")]
    {
        constraint.begin_after(reasoning, None);
        for (after, is_right) in [
            ("yes", true),
            ("[TOOL_CALLS][{\"a\":true}]", true),
            ("<think>hm</think>yes", false),
            ("no", false),
        ] {
            let text = format!("{before}{after}");
            assert_eq!(may_write(&constraint, &model, &text), is_right, "{text}");
        }
    }
}
