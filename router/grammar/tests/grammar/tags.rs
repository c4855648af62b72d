//! EBNF and structural tags: outputs have the form that was asked for.

use regex_automata::nfa::thompson::pikevm::PikeVM;
use serde_json::{Value, json};
use trunkline_grammar::{Grammar, GrammarError, StructuralTag};
use trunkline_text::ModelText;

use crate::draw::Random;
use crate::support::{allows, compiler, model, write_at_random};

const NUM_OUTPUTS: u64 = 60;

fn outputs(model: &ModelText, grammar: &Grammar) -> Result<Vec<String>, GrammarError> {
    let beginning = compiler(model).compile(grammar)?;
    let mut texts = Vec::new();
    for seed in 0..NUM_OUTPUTS {
        let written =
            write_at_random(&model.tokenizer, &model.end_token_ids, beginning.fork(), &mut Random(seed))?;
        texts.extend(written.map(|text| String::from_utf8(text).unwrap()));
    }
    Ok(texts)
}

/// Asserts that most outputs are finished and that each matches an expression as a whole.
fn check(name: &str, grammar: &Grammar, expression: &str) -> Vec<String> {
    let texts = outputs(&model(), grammar).unwrap_or_else(|error| panic!("{name}: {error}"));
    let regex = PikeVM::new(&format!("^(?:{expression})$")).unwrap();
    for text in &texts {
        assert!(regex.is_match(&mut regex.create_cache(), text.as_str()), "{name}: {text:?}");
    }
    assert!(texts.len() as u64 * 2 > NUM_OUTPUTS, "{name}: {} outputs were finished", texts.len());
    texts
}

/// Returns true if an output may be this text.
fn may_write(grammar: &Grammar, text: &str) -> bool {
    let model = model();
    let constraint = compiler(&model).compile(grammar).unwrap();
    // The first tokens of the vocabulary are the bytes.
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    allows(constraint, &ids, model.end_token_ids[0])
}

fn tag(value: &Value) -> Grammar {
    Grammar::StructuralTag(StructuralTag::parse(value.as_object().unwrap(), true).unwrap())
}

#[test]
fn outputs_follow_ebnf() {
    for (name, text, expression) in [
        (
            "words",
            "root ::= word (\" \" word){1,2} [.!?]\nword ::= [a-c]+ # letters",
            "[a-c]+( [a-c]+){1,2}[.!?]",
        ),
        ("escapes", r#"root ::= "\x41\n\"" [\]\\-a] [^\x00-\x7f]?"#, "A\n\"[\\]\\\\-a][^\\x00-\\x7f]?"),
        ("empty", "root ::= \"a\" empty | ws \"b\"\nempty ::=\nws ::= [ ]*", "a| *b"),
        (
            "numbers",
            "root ::= n (\",\" n)*\nn ::= \"-\"? (\"0\" | [1-9] [0-9]*)",
            "-?(0|[1-9][0-9]*)(,-?(0|[1-9][0-9]*))*",
        ),
    ] {
        check(name, &Grammar::Lark(text.into()), expression);
    }
}

#[test]
fn recursive_ebnf_of_json_writes_json() {
    let text = r#"
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9]{1,2})? ws
        ws     ::= | " " | "\n" [ \t]{0,20}
    "#;
    let texts = outputs(&model(), &Grammar::Lark(text.into())).unwrap();
    assert!(texts.len() as u64 * 2 > NUM_OUTPUTS, "{} outputs were finished", texts.len());
    for text in texts {
        // A lone surrogate is no fault of the grammar.
        let is_json = serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object());
        assert!(is_json || text.contains("\\u"), "{text}");
    }
}

#[test]
fn text_between_triggers_and_ends_follows_its_schema() {
    let schema = json!({"enum": [1, 22]});
    let old = json!({"triggers": ["<f="], "structures": [
        {"begin": "<f=a>", "schema": schema, "end": "</f>"}, {"begin": "<f=b>", "schema": {"const": true}, "end": "</f>"}]});
    for (text, is_allowed) in [
        ("", true),
        ("x < f", true),
        ("x<f=a>22</f>", true),
        ("<<f=a>1</f>é<f=b>true</f>, <f", true),
        ("x<f=a>3</f>", false),
        ("x<f=c>", false),
        ("x<f=b>1</f>", false),
        ("x<f=a>1", false),
    ] {
        assert_eq!(may_write(&tag(&old), text), is_allowed, "{text}");
    }
    let of_number = |begin: &str| json!({"begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": ";"});
    let triggered = |more: Value| {
        let mut format = json!({"type": "triggered_tags", "triggers": ["#", "%"], "tags": [of_number("#a"), of_number("%b")]});
        format.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"format": format})
    };
    let one = "(#a|%b)(1|22);";
    check("any number", &tag(&triggered(json!({}))), &format!("(?s)([^#%]|{one})*"));
    check(
        "at least one",
        &tag(&triggered(json!({"at_least_one": true}))),
        &format!("(?s){one}([^#%]|{one})*"),
    );
    check(
        "at most one",
        &tag(&triggered(json!({"stop_after_first": true}))),
        &format!("(?s)[^#%]*|[^#%]*{one}"),
    );
    let exactly = json!({"at_least_one": true, "stop_after_first": true});
    check("exactly one", &tag(&triggered(exactly)), one);
}

#[test]
fn other_formats_are_combined() {
    let text = |value: &str| json!({"type": "const_string", "value": value});
    let of = |content: Value, end: &str| json!({"type": "tag", "begin": "<", "content": content, "end": end});
    for (name, format, expression) in [
        ("text", text("a\"b"), "a\"b"),
        (
            "choice",
            json!({"type": "or", "elements": [text("a"), {"type": "regex", "pattern": "^b{2}$"}]}),
            "a|bb",
        ),
        (
            "sequence",
            json!({"type": "sequence", "elements": [
                text("a"), {"type": "grammar", "grammar": "root ::= [0-9]{2}"}, {"type": "any_text", "excluded_str": ["z"]}]}),
            "(?s)a[0-9]{2}[^z]*",
        ),
        ("free content", of(json!({"type": "any_text"}), "]]"), "(?s)<([^\\]]|\\][^\\]])*\\]?\\]\\]"),
        ("greedy content", of(json!({"type": "regex", "pattern": "[a-c;]*"}), ";"), "<[a-c;]*;"),
        (
            "separated tags",
            json!({"type": "tags_with_separator", "separator": ", ", "tags": [of(json!({"type": "regex", "pattern": "a|b"}), ">")]}),
            "(<[ab]>(, <[ab]>)*)?",
        ),
    ] {
        check(name, &tag(&json!({ "format": format })), expression);
    }
}

#[test]
fn keywords_of_the_schemas_of_tags_are_strict_or_relaxed() {
    let compiler = compiler(&model());
    let value = json!({"triggers": ["<f"], "structures": [
        {"begin": "<f>", "schema": {"type": "array", "uniqueItems": true}, "end": "</f>"}]});
    let parse = |is_strict| {
        Grammar::StructuralTag(StructuralTag::parse(value.as_object().unwrap(), is_strict).unwrap())
    };
    assert_eq!(compiler.compile(&parse(true)).unwrap_err().code(), "unsupported_keyword");
    let constraint = compiler.compile(&parse(false)).unwrap();
    assert_eq!(constraint.relaxed().collect::<Vec<_>>(), ["uniqueItems"]);
}
