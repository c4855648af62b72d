//! Grammars designed to be costly are refused, or turn out to be cheap.
//!
//! Countable limits, on bytes, symbols, classes and parser fuel, refuse them. The time limit guards against unforeseen
//! grammars, and no grammar here needs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use trunkline_grammar::{Constraint, Forcing, Grammar, GrammarCompiler, GrammarError, GrammarLimits, Next};
use trunkline_reply::ReasoningMarks;
use trunkline_text::ModelText;

use crate::draw::Random;
use crate::support::{compiler, model, write_at_random};

/// Number of masks computed for each accepted grammar.
const NUM_MASKS: usize = 20;

fn chain(count: usize, link: impl Fn(usize, String) -> Value) -> Value {
    let mut definitions = Map::new();
    for index in 0..count {
        definitions.insert(format!("d{index}"), link(index, format!("#/$defs/d{}", index + 1)));
    }
    definitions.insert(format!("d{count}"), json!({"type": "null"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

fn nested(depth: usize, inner: Value, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(inner, |value, _| wrap(value))
}

fn patterns(count: usize) -> Vec<Value> {
    (0..count).map(|i| json!({"type": "string", "pattern": format!("a.{{{i}}}!")})).collect()
}

fn object_of(count: usize) -> Value {
    (0..count).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect()
}

/// Returns `inner` between as many pairs of marks as the limit on bytes allows.
fn enclosed(before: &str, open: &str, inner: &str, close: &str) -> String {
    let room = GrammarLimits::default().max_bytes - before.len() - inner.len();
    let count = room / (open.len() + close.len());
    format!("{before}{}{inner}{}", open.repeat(count), close.repeat(count))
}

/// Returns rules that each name the next one, behind those in `first`.
fn rules(count: usize, name: &str, begins: &str, first: &str) -> String {
    let links = (0..count).map(|i| format!("{name}{i}{begins}{name}{}\n", i + 1));
    first.to_owned()
        + &links.collect::<String>()
        + &format!("{name}{count}{}\"x\"\n", begins.trim_end_matches(['|', ' ']))
}

/// Returns rules that the first one all names.
fn many_rules(count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("rule{i}")).collect();
    let rules: String = names.iter().map(|name| format!("{name} ::= \"{name}\"\n")).collect();
    format!("root ::= {}\n{rules}", names.join(" | "))
}

fn bombs() -> Vec<(&'static str, Grammar)> {
    let schema = |schema: Value| Grammar::JsonSchema(schema.into());
    let either = |left: Value, right: Value| json!({"anyOf": [left, right]});
    let object =
        |index: usize| json!({"type": "object", "properties": {format!("p{index}"): {"type": "string"}}});
    vec![
        ("huge enum", schema(json!({"enum": (0..4000).map(|i| format!("value {i}")).collect::<Vec<_>>()}))),
        ("enum beyond the limit", schema(json!({"enum": (0..5000).collect::<Vec<_>>()}))),
        (
            "a chain of references",
            schema(chain(4000, |_, next| json!({"items": {"$ref": next}, "type": "array"}))),
        ),
        ("a chain of bare references", schema(chain(4000, |_, next| json!({"$ref": next})))),
        (
            "references that double",
            schema(chain(
                40,
                |_, next| json!({"type": "array", "prefixItems": [{"$ref": next}, {"$ref": next}]}),
            )),
        ),
        (
            "alternatives that double",
            schema(chain(40, |_, next| {
                json!({"allOf": [either(json!({"$ref": next}), json!({"type": "array"})),
                                                        either(json!({"$ref": next}), json!({"type": "object"}))]})
            })),
        ),
        (
            "a product of alternatives",
            schema(
                json!({"allOf": (0..24).map(|i| either(object(2 * i), object(2 * i + 1))).collect::<Vec<_>>()}),
            ),
        ),
        ("a reference to itself", schema(json!({"$ref": "#"}))),
        (
            "references in a circle",
            schema(json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
                                                 "b": {"allOf": [{"$ref": "#/$defs/a"}]}}})),
        ),
        ("a giant repeat", Grammar::Regex("(a|b){1,1000000}".into())),
        ("repeats in repeats", Grammar::Regex("(((a{1,200}b){1,200}c){1,200}d){1,200}".into())),
        ("a giant length", schema(json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000}))),
        ("giant items", schema(json!({"type": "array", "minItems": 1_000_000, "items": {"type": "null"}}))),
        (
            "giant items in giant items",
            schema(nested(
                6,
                json!({"type": "null"}),
                |inner| json!({"type": "array", "minItems": 100, "maxItems": 100, "items": inner}),
            )),
        ),
        ("many states", Grammar::Regex("(a|b)*a(a|b){60}".into())),
        ("stars in stars", Grammar::Regex("((((a*)*b*)*c*)*d*)*".into())),
        (
            "a pattern with many states",
            schema(json!({"type": "string", "pattern": "(x+x+)+y.{0,400}[ab].{400}"})),
        ),
        (
            "many patterns at once",
            schema(
                json!({"allOf": (0..30).map(|i| json!({"type": "string", "pattern": format!("a.{{{i}}}b")}))
            .collect::<Vec<_>>()}),
            ),
        ),
        ("deep", schema(nested(60, json!({}), |inner| json!({"not_a_keyword": inner})))),
        (
            "many properties",
            schema(
                json!({"type": "object", "properties": (0..3000).map(|i| (format!("p{i}"), json!({"type": "string"})))
            .collect::<Map<String, Value>>()}),
            ),
        ),
        ("a giant multiple", schema(json!({"type": "number", "multipleOf": 1e-9}))),
        (
            "multiples of a large number beyond a bound",
            schema(
                json!({"type": "integer", "multipleOf": 4_294_967_295_u32, "minimum": 9_007_199_254_740_990_u64}),
            ),
        ),
        ("multiples of a large prime", schema(json!({"type": "integer", "multipleOf": 999_999_937}))),
        (
            "one schema by a thousand references",
            schema(json!({"type": "array", "minItems": 4000,
                          "prefixItems": (0..4000).map(|_| json!({"$ref": "#"})).collect::<Vec<_>>()})),
        ),
        (
            "complements in names",
            schema(json!({"type": "object", "properties": {"a": {}},
                          "patternProperties": {(format!("^{}$", r"\W".repeat(40_000))): {}}})),
        ),
        (
            "complements of all names",
            schema(json!({"type": "object", "propertyNames": {"pattern": r"\W".repeat(40_000)}})),
        ),
        ("characters regardless of case", Grammar::Regex(format!("(?i){}", r"[\d\D]".repeat(18_000)))),
        ("as many complements as are accepted", Grammar::Regex(r"\W".repeat(4_096))),
        ("complements that ignore case", Grammar::Regex(format!("(?i){}", r"[^\W]\W".repeat(170)))),
        ("complements of patterns", schema(json!({"type": "string", "pattern": r"\W".repeat(4_096)}))),
        ("classes by the thousand", Grammar::Regex(r"\w".repeat(60_000))),
        ("classes of patterns", schema(json!({"type": "string", "pattern": r"\p{L}".repeat(20_000)}))),
        (
            "exclusive lists that overlap",
            schema(
                json!({"oneOf": (0..60).map(|i| json!({"enum": (i..i + 60).collect::<Vec<_>>()})).collect::<Vec<_>>()}),
            ),
        ),
        (
            "a long list without another",
            schema(json!({"enum": (0..2000).map(|i| format!("value {i}")).collect::<Vec<_>>(),
                          "not": {"enum": (1000..3000).map(|i| format!("value {i}")).collect::<Vec<_>>()}})),
        ),
        (
            "conditions in conditions",
            schema(nested(14, json!({"type": "object"}), |inner| {
                json!({"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": "null"}},
                       "if": {"properties": {"k": {"const": "a"}}}, "then": inner, "else": {"required": ["n"]}})
            })),
        ),
        (
            "dependencies of many properties",
            schema(
                json!({"type": "object", "dependentRequired": (0..40).map(|i| (format!("a{i}"), json!([format!("a{}", i + 1)])))
                .collect::<serde_json::Map<String, Value>>()}),
            ),
        ),
        (
            "many properties to choose from",
            schema(json!({"type": "object", "minProperties": 20,
                          "properties": object_of(40), "additionalProperties": false})),
        ),
        (
            "lists that exclude lists",
            schema(nested(
                30,
                json!({"type": "null"}),
                |inner| json!({"type": "array", "items": inner, "not": {"enum": [[], [[]]]}}),
            )),
        ),
        (
            "rules of EBNF that double",
            Grammar::Lark(format!(
                "root ::= a0\n{}a40 ::= \"x\"?",
                (0..40).map(|i| format!("a{i} ::= a{0} a{0}\n", i + 1)).collect::<String>()
            )),
        ),
        (
            "exclusive alternatives in each other",
            schema(nested(
                14,
                json!({"type": "object"}),
                |inner| json!({"type": "object", "oneOf": [{"required": ["a"], "properties": {"p": inner}}, {"required": ["b"]}]}),
            )),
        ),
        (
            "dependencies in each other",
            schema(nested(
                30,
                json!({"type": "object"}),
                |inner| json!({"type": "object", "dependentSchemas": {"a": inner}}),
            )),
        ),
        (
            "conditions in branches",
            schema(nested(
                36,
                json!({"type": "object"}),
                |inner| json!({"if": {"required": ["a"]}, "else": inner}),
            )),
        ),
        ("ambiguous EBNF", Grammar::Lark("root ::= root root root | \"a\" | \"\"".into())),
        ("classes in a grammar", Grammar::Lark(format!("start: /{}/i", r"[\d\D]".repeat(2_000)))),
        (
            "nothing by the thousand",
            Grammar::Regex(format!("((?:{})[a-d])*a[a-d]{{12}}(abcd)?", "|".repeat(25_000))),
        ),
        ("states by the power", Grammar::Regex("[ab]*a[ab]{40}".into())),
        ("patterns that apply together", schema(json!({"allOf": patterns(30)}))),
        ("eight patterns that apply together", schema(json!({"allOf": patterns(8)}))),
        (
            "patterns that apply together by references",
            schema(json!({"$ref": "#/$defs/0", "$defs": (0..30).map(|i| (i.to_string(), json!({
                "type": "string", "pattern": format!("a.{{{i}}}!"), "$ref": format!("#/$defs/{}", (i + 1) % 30)})))
                .collect::<Map<String, Value>>()})),
        ),
        (
            "EBNF repetitions of a rule in itself",
            Grammar::Lark(format!("root ::= (root){}", "*".repeat(130_000))),
        ),
        ("EBNF repetitions in each other", Grammar::Lark(format!("root ::= \"a\"{}", "?".repeat(130_000)))),
        ("EBNF counts in each other", Grammar::Lark(format!("root ::= \"a\"{}", "{2}".repeat(43_000)))),
        ("EBNF groups in each other", Grammar::Lark(enclosed("root ::= ", "(", "\"a\"", ")"))),
        ("EBNF groups that are not closed", Grammar::Lark(format!("root ::= {}", "(".repeat(130_000)))),
        ("EBNF brackets in each other", Grammar::Lark(enclosed("root ::= ", "[", "a", "]"))),
        ("a chain of EBNF rules", Grammar::Lark(rules(7_000, "a", " ::= ", "root ::= a0\n"))),
        (
            "a chain of recursive EBNF rules",
            Grammar::Lark(rules(4_500, "a", " ::= \"x\" root | ", "root ::= a0\n")),
        ),
        ("many EBNF rules", Grammar::Lark(many_rules(3_500))),
        ("Lark groups in each other", Grammar::Lark(enclosed("start: ", "(", "\"a\"", ")"))),
        ("Lark options in each other", Grammar::Lark(enclosed("start: ", "[", "\"a\"", "]"))),
        ("Lark negations in each other", Grammar::Lark(enclosed("start: A\nA: ", "~(", "\"a\"", ")"))),
        ("Lark repetitions in each other", Grammar::Lark(format!("start: \"a\"{}", "*".repeat(130_000)))),
        ("Lark templates in each other", Grammar::Lark(enclosed("start: ", "a{", "a", "}"))),
        ("Lark conditions in each other", Grammar::Lark(enclosed("start: \"a\" %if ", "not(", "true", ")"))),
        ("Lark grammars in each other", Grammar::Lark(enclosed("start: ", "%lark { start: ", "\"a\"", " }"))),
        ("JSON in a Lark grammar", Grammar::Lark(enclosed("start: %json ", "[", "1", "]"))),
        ("a chain of Lark rules", Grammar::Lark(rules(7_000, "a", ": ", "start: a0\n"))),
        ("a chain of Lark tokens", Grammar::Lark(rules(7_000, "A", ": ", "start: A0\n"))),
        ("groups in each other", Grammar::Regex(enclosed("", "(", "a", ")"))),
        ("repetitions in each other", Grammar::Regex(format!("a{}", "*".repeat(130_000)))),
        ("counts in each other", Grammar::Regex(format!("a{}", "{2}".repeat(43_000)))),
        ("classes in each other", Grammar::Regex(enclosed("", "[", "a", "]"))),
        (
            "patterns in each other",
            schema(
                json!({"type": "string", "pattern": format!("{}a{}", "(".repeat(40_000), ")*".repeat(40_000))}),
            ),
        ),
        ("an ambiguous grammar", Grammar::Lark("start: start start start | \"a\" | \"\"".into())),
        ("a grammar without an end", Grammar::Lark("start: \"a\" start".into())),
    ]
}

/// The bombs that are refused, with a part of the message. The others are accepted.
const REFUSALS: &[(&str, &str)] = &[
    ("enum beyond the limit", "`--max-schema-properties`"),
    ("rules of EBNF that double", "initial lexer configuration"),
    ("lists that exclude lists", "keyword `not` at `#/items"),
    ("exclusive lists that overlap", "keyword `oneOf` at `#`"),
    ("a long list without another", "keyword `not` at `#`"),
    ("dependencies of many properties", "keyword `dependentRequired` at `#`"),
    ("many properties to choose from", "keyword `minProperties` at `#`"),
    ("a chain of references", "`--max-schema-bytes`"),
    ("a product of alternatives", "schema too large"),
    ("a reference to itself", "no finite text matches it"),
    ("references in a circle", "no finite text matches it"),
    ("many patterns at once", "30 different values of `pattern`"),
    ("many properties", "3000 consecutive optional properties"),
    ("multiples of a large prime", "fuel exhausted when checking relevance of lexemes"),
    ("one schema by a thousand references", "no finite text matches it"),
    ("complements in names", "more than 4096 character classes"),
    ("complements of all names", "more than 4096 character classes"),
    ("characters regardless of case", "more than 512 character classes"),
    ("classes by the thousand", "more than 4096 character classes"),
    ("classes of patterns", "more than 4096 character classes"),
    ("classes in a grammar", "more than 512 character classes"),
    ("patterns that apply together", "30 different values of `pattern`"),
    ("eight patterns that apply together", "Unable to determine if its patterns match any text"),
    ("patterns that apply together by references", "30 different values of `pattern`"),
    ("EBNF repetitions of a rule in itself", "alternatives and repetitions are nested more than 28 deep"),
    ("EBNF repetitions in each other", "alternatives and repetitions are nested more than 28 deep"),
    ("EBNF counts in each other", "alternatives and repetitions are nested more than 28 deep"),
    ("EBNF groups in each other", "groups are nested more than 64 deep"),
    ("EBNF groups that are not closed", "groups are nested more than 64 deep"),
    ("EBNF brackets in each other", "more than 4096 character classes"),
    ("a chain of recursive EBNF rules", "Current row has 13501 items; max is 2000"),
    ("Lark groups in each other", "lark grammar too deeply nested"),
    ("Lark options in each other", "more than 4096 character classes"),
    ("Lark negations in each other", "lark grammar too deeply nested"),
    ("Lark repetitions in each other", "Expected value (at \"*\""),
    ("Lark templates in each other", "template usage not supported"),
    ("Lark conditions in each other", "rule \"start\" is not parametric"),
    ("Lark grammars in each other", "lark grammar too deeply nested"),
    ("JSON in a Lark grammar", "more than 4096 character classes"),
    ("groups in each other", "exceed the maximum number of nested parentheses/brackets (250)"),
    ("repetitions in each other", "exceed the maximum number of nested parentheses/brackets (250)"),
    ("counts in each other", "exceed the maximum number of nested parentheses/brackets (250)"),
    ("classes in each other", "more than 4096 character classes"),
    ("patterns in each other", "exceed the maximum number of nested parentheses/brackets (250)"),
];

/// Far more than any bomb takes, even on a busy machine.
const NO_LIMIT_MS: u64 = 300_000;

/// Writes some tokens under their masks, and returns the error if one fails.
fn error_while_writing(model: &ModelText, mut constraint: Constraint) -> Option<GrammarError> {
    let mut rng = Random(1);
    for _ in 0..NUM_MASKS {
        let mask = match constraint.allowed(Forcing::Never).map(|allowed| allowed.next) {
            Ok(Next::Mask(mask)) => mask,
            Ok(Next::End) => return None,
            Err(error) => return Some(error),
        };
        let text: Vec<u32> = mask.iter().filter(|id| !model.end_token_ids.contains(id)).collect();
        if let Err(error) = constraint.accept(text[rng.below(text.len())]) {
            return Some(error);
        }
    }
    None
}

#[test]
fn bombs_are_refused_or_cheap_whatever_time_they_are_given() {
    let model = model();
    let limits = GrammarLimits { max_compile_ms: NO_LIMIT_MS, ..GrammarLimits::default() };
    let compiler =
        GrammarCompiler::new(&model.tokenizer, &model.end_token_ids, ReasoningMarks::Think, limits).unwrap();
    let mut refusals: BTreeMap<&str, &str> = REFUSALS.iter().copied().collect();
    for (name, grammar) in bombs() {
        match (compiler.compile(&grammar), refusals.remove(name)) {
            (Ok(constraint), None) => {
                let error = error_while_writing(&model, constraint);
                assert!(error.is_none(), "{name}: accepted, and failed while generating: {error:?}");
            }
            (Err(error), Some(words)) => {
                assert!(error.to_string().contains(words), "{name}: {error}");
                let blames_grammar =
                    !matches!(error, GrammarError::Failed { .. } | GrammarError::Vocabulary { .. });
                assert!(blames_grammar, "{name}: the error does not say that the grammar is at fault");
            }
            (Ok(_), Some(words)) => panic!("{name}: is accepted, expected a refusal with {words:?}"),
            (Err(error), None) => panic!("{name}: is refused: {error}"),
        }
    }
    assert!(refusals.is_empty(), "no such bombs: {refusals:?}");
}

#[test]
fn work_that_could_not_be_stopped_is_refused_before_it_starts() {
    let compiler = compiler(&model());
    let by_name = ["regardless of case", "classes", "apply together by", "patterns that apply"];
    let (mut num_refused, bombs) = (0, bombs());
    for (name, grammar) in bombs.iter().filter(|(name, _)| by_name.iter().any(|words| name.contains(words))) {
        if name.starts_with("eight") {
            continue;
        }
        let error = compiler.compile(grammar).unwrap_err();
        assert!(matches!(error, GrammarError::TooComplex { .. }), "{name}: {error}");
        let message = error.to_string();
        assert!(
            message.contains("character classes") || message.contains("different values"),
            "{name}: {message}"
        );
        num_refused += 1;
    }
    assert_eq!(num_refused, 7);
}

#[test]
fn the_held_value_is_dropped_when_the_compiling_thread_ends() {
    let model = model();
    let limits = GrammarLimits { max_compile_ms: 0, ..GrammarLimits::default() };
    let hasty =
        GrammarCompiler::new(&model.tokenizer, &model.end_token_ids, ReasoningMarks::Think, limits).unwrap();
    let grammar = Grammar::Regex("[a-z]{2000,4000}".into());
    let is_refused = |compiler: &GrammarCompiler| {
        let held = Arc::new(());
        let is_refused = compiler.compile_holding(&grammar, held.clone()).is_err();
        let begin = Instant::now();
        while Arc::strong_count(&held) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(20), "the thread ends");
            std::thread::yield_now();
        }
        is_refused
    };
    assert!(!is_refused(&compiler(&model)));
    // Without any time the compiler still wins if its thread gets the core first, so this is tried again.
    assert!((0..1_000).any(|_| is_refused(&hasty)), "a limit of 0 ms is never met so often");
}

/// Returns a schema with `count` properties, of which those in `required` are required.
fn wide(count: usize, required: &[usize]) -> Value {
    let name = |idx: usize| format!("p{idx:04}");
    let properties: Map<String, Value> = (0..count).map(|idx| (name(idx), json!({"type": "null"}))).collect();
    let required: Vec<String> = required.iter().map(|&idx| name(idx)).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

#[test]
fn grammars_that_would_fail_while_generating_are_refused_when_compiled() {
    let model = model();
    let compiler = compiler(&model);
    let refusal = |schema: Value| compiler.compile(&Grammar::JsonSchema(schema.into())).unwrap_err();
    let limit = GrammarLimits::default().max_optional_properties();
    let inner = json!({"type": "object", "properties": {"a": {"type": "null"}, "b": wide(3000, &[])}});
    for (schema, words) in [
        (wide(3000, &[]), format!("`#` has 3000 consecutive optional properties, but the limit is {limit};")),
        (
            inner,
            format!("`#/properties/b` has 3000 consecutive optional properties, but the limit is {limit};"),
        ),
        (wide(limit + 1, &[]), format!("`#` has {} consecutive optional properties", limit + 1)),
        (wide(3000, &[1500]), "`#` has 1500 consecutive optional properties".to_owned()),
        (
            json!({"enum": (0..2100).map(|idx| json!([idx])).collect::<Vec<_>>()}),
            "some tokens into an output: Parser Error: Current row has 2100 items; max is 2000".to_owned(),
        ),
    ] {
        let error = refusal(schema);
        assert_eq!(error.code(), "schema_too_complex", "{error}");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

#[test]
fn the_largest_number_of_optional_properties_can_be_written() {
    let model = model();
    let compiler = compiler(&model);
    let limit = GrammarLimits::default().max_optional_properties();
    for schema in [wide(limit, &[]), wide(2 * limit + 1, &[limit])] {
        let constraint = compiler.compile(&Grammar::JsonSchema(schema.into())).unwrap();
        for seed in 0..3 {
            let text =
                write_at_random(&model.tokenizer, &model.end_token_ids, constraint.fork(), &mut Random(seed));
            text.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

#[test]
fn the_lexers_of_all_outputs_share_a_limit() {
    let model = model();
    let new = |limits| {
        GrammarCompiler::new(&model.tokenizer, &model.end_token_ids, ReasoningMarks::Think, limits).unwrap()
    };
    let grammar =
        Grammar::JsonSchema(json!({"type": "object", "properties": {"a": {"type": "string"}}}).into());
    let mut first = new(GrammarLimits::default());
    let constraint = first.compile(&grammar).unwrap();
    let of_one = first.lexer_bytes();
    assert!(of_one > 0);
    drop(constraint);
    assert_eq!(first.lexer_bytes(), 0);
    // There is room for the beginning and three outputs.
    let limits =
        GrammarLimits { all_lexers_bytes: 4 * of_one, small_lexer_bytes: 0, ..GrammarLimits::default() };
    first = new(limits);
    let beginning = first.compile(&grammar).unwrap();
    let mut outputs: Vec<_> = (0..3).map(|_| beginning.fork()).collect();
    outputs.iter_mut().for_each(|output| drop(output.allowed(Forcing::Never).unwrap()));
    let mut fourth = beginning.fork();
    let error = fourth.allowed(Forcing::Never).unwrap_err();
    assert_eq!(error.code(), "grammar_failed");
    assert!(error.to_string().contains("those of all outputs together"), "{error}");
    assert!(fourth.allowed(Forcing::Never).is_err(), "a failed output stays failed");
    drop(fourth);
    // The others go on, and the place of one that has ended is free again.
    outputs.iter_mut().for_each(|output| drop(output.allowed(Forcing::Never).unwrap()));
    outputs.pop();
    outputs.push(beginning.fork());
    outputs.iter_mut().for_each(|output| drop(output.allowed(Forcing::Never).unwrap()));
    drop((outputs, beginning));
    assert_eq!(first.lexer_bytes(), 0);
    // An output with a small lexer never fails because of others.
    let small = new(GrammarLimits { small_lexer_bytes: 2 * of_one, ..limits });
    let beginning = small.compile(&grammar).unwrap();
    let mut outputs: Vec<_> = (0..9).map(|_| beginning.fork()).collect();
    outputs.iter_mut().for_each(|output| drop(output.allowed(Forcing::Never).unwrap()));
}

#[test]
fn grammars_beyond_the_usual_size_have_the_stack_that_they_need() {
    let model = model();
    let limits =
        GrammarLimits { max_bytes: 4 << 20, max_compile_ms: NO_LIMIT_MS, ..GrammarLimits::default() };
    let compiler =
        GrammarCompiler::new(&model.tokenizer, &model.end_token_ids, ReasoningMarks::Think, limits).unwrap();
    let num_templates = 1_000_000;
    let text = format!("start: {}a{}", "a{".repeat(num_templates), "}".repeat(num_templates));
    let error = compiler.compile(&Grammar::Lark(text)).unwrap_err();
    assert!(error.to_string().contains("template usage not supported"), "{error}");
}
