//! The kinds of grammar other than schemas, and forced tokens.

use std::collections::BTreeSet;

use trunkline_grammar::{Forcing, Grammar, Next};

use crate::draw::Random;
use crate::support::{compiler, model, write_at_random};

/// Returns the distinct outputs of some seeds.
fn outputs(grammar: &Grammar, num_seeds: u64) -> BTreeSet<String> {
    let model = model();
    let constraint = compiler(&model).compile(grammar).unwrap();
    let write =
        |seed| write_at_random(&model.tokenizer, &model.end_token_ids, constraint.fork(), &mut Random(seed));
    (0..num_seeds)
        .filter_map(|seed| write(seed).unwrap())
        .map(|text| String::from_utf8(text).unwrap())
        .collect()
}

#[test]
fn choices_are_all_reached_and_nothing_else() {
    let choices = ["a", "ab", "a b", "\"quoted\\\"\n", "é日本", "start: /x/"].map(String::from);
    let outputs = outputs(&Grammar::Choices(choices.to_vec()), 200);
    assert_eq!(outputs, choices.into_iter().collect());
}

#[test]
fn a_regular_expression_matches_as_a_whole() {
    let outputs = outputs(&Grammar::Regex(r"^([0-9]{2}/[ab]|é+)$".into()), 100);
    assert!(outputs.len() > 20);
    for text in &outputs {
        let is_path = text.len() == 4
            && text.is_char_boundary(2)
            && text[..2].bytes().all(|b| b.is_ascii_digit())
            && matches!(&text[2..], "/a" | "/b");
        assert!(is_path || !text.is_empty() && text.chars().all(|c| c == 'é'), "{text:?}");
    }
}

#[test]
fn lark_grammars_and_any_object_are_obeyed() {
    let nested = outputs(&Grammar::Lark("start: \"(\" start \")\" | \"x\"".into()), 40);
    for text in &nested {
        let depth = text.len() / 2;
        assert_eq!(*text, format!("{}x{}", "(".repeat(depth), ")".repeat(depth)));
    }
    assert!(nested.len() > 3);
    let objects = outputs(&Grammar::JsonObject, 60);
    assert!(objects.len() > 10);
    for text in objects {
        assert!(serde_json::from_str::<serde_json::Value>(&text).unwrap().is_object(), "{text}");
    }
}

#[test]
fn only_single_tokens_are_forced_and_only_if_asked_for() {
    let model = model();
    let compiler = compiler(&model);
    // Every byte is a token, and so are `tr`, `tru` and `true`, so nothing after `y` is forced.
    let grammar = Grammar::Regex("x{40}y(true)?".into());
    let mut constraint = compiler.compile(&grammar).unwrap();
    let allowed = constraint.allowed(Forcing::Allow).unwrap();
    let text: Vec<u8> =
        allowed.forced.iter().flat_map(|&id| model.tokenizer.token_bytes(id).unwrap().to_vec()).collect();
    assert_eq!(text, [vec![b'x'; 40], vec![b'y']].concat());
    let Next::Mask(mask) = allowed.next else { panic!("the text can continue") };
    let words: BTreeSet<&[u8]> = mask
        .iter()
        .filter(|id| !model.end_token_ids.contains(id))
        .map(|id| model.tokenizer.token_bytes(id).unwrap())
        .collect();
    assert_eq!(words, [&b"t"[..], b"tr", b"tru", b"true"].into_iter().collect());
    assert!(model.end_token_ids.iter().all(|&id| mask.contains(id)), "or it ends here");

    let mut constraint = compiler.compile(&grammar).unwrap();
    let allowed = constraint.allowed(Forcing::Never).unwrap();
    assert!(allowed.forced.is_empty());
    let Next::Mask(mask) = allowed.next else { panic!("nothing is written yet") };
    assert_eq!(mask.count(), 1);
}

#[test]
fn invalid_grammars_are_reported_in_one_line() {
    let model = model();
    let compiler = compiler(&model);
    let error = |grammar| compiler.compile(&grammar).unwrap_err();
    let json = |schema: serde_json::Value| Grammar::JsonSchema(schema.into());
    for grammar in [
        Grammar::Regex("(".into()),
        Grammar::Regex("(?=a)b".into()),
        Grammar::Lark("start: missing".into()),
        Grammar::Lark("start: \"a\" <|control|>".into()),
        Grammar::Choices(vec![]),
        Grammar::Choices(vec!["a".into(), String::new()]),
        json(serde_json::json!({"type": "strin"})),
        json(serde_json::json!({"$ref": "#/$defs/missing"})),
        json(serde_json::json!({"$ref": "https://example.com/schema.json"})),
        json(serde_json::json!({"type": "integer", "minimum": 3, "maximum": 2})),
        json(serde_json::json!({"enum": []})),
        json(serde_json::json!(false)),
        json(serde_json::json!([1])),
        json(serde_json::json!({"$ref": "#"})),
    ] {
        let error = error(grammar.clone());
        assert_eq!(error.code(), "invalid_schema", "{grammar:?}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}
