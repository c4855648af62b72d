//! The tables of regular expressions allow the same tokens as the parser, which handles the same expression in Lark.

use trunkline_grammar::{Constraint, Forcing, Grammar, GrammarCompiler, Next};
use trunkline_text::ModelText;

use crate::draw::Random;
use crate::support::{compiler, model};

const NUM_RANDOM: u64 = 400;
const NUM_WALKS: u64 = 6;
const MAX_TOKENS: usize = 40;

fn lark(expression: &str) -> Grammar {
    // Only the slash has a special meaning in Lark.
    Grammar::Lark(format!("start: /{}/", expression.replace('/', r"\/")))
}

/// Walks at random under both constraints, and compares their masks.
fn compare(name: &str, model: &ModelText, mut own: Constraint, mut parser: Constraint, rng: &mut Random) {
    let forcing = if rng.below(2) == 0 { Forcing::Allow } else { Forcing::Never };
    let mut text = Vec::new();
    for _ in 0..MAX_TOKENS {
        let (ours, theirs) = (own.allowed(forcing).unwrap(), parser.allowed(forcing).unwrap());
        assert_eq!(ours.forced, theirs.forced, "{name} after {:?}", String::from_utf8_lossy(&text));
        let (Next::Mask(mask), Next::Mask(other)) = (&ours.next, &theirs.next) else {
            assert_eq!(ours.next, theirs.next, "{name} after {:?}", String::from_utf8_lossy(&text));
            return;
        };
        let (ids, others): (Vec<u32>, Vec<u32>) = (mask.iter().collect(), other.iter().collect());
        assert_eq!(ids, others, "{name} after {:?}", String::from_utf8_lossy(&text));
        let id = ids[rng.below(ids.len())];
        text.extend_from_slice(model.tokenizer.token_bytes(id).unwrap());
        own.accept(id).unwrap();
        parser.accept(id).unwrap();
    }
}

fn compare_all(expression: &str, model: &ModelText, compiler: &GrammarCompiler) {
    let own = compiler.compile(&Grammar::Regex(expression.to_owned()));
    let parser = compiler.compile(&lark(expression));
    let (own, parser) = match (own, parser) {
        (Ok(own), Ok(parser)) => (own, parser),
        (own, parser) => panic!("{expression}: {:?} and {:?}", own.err(), parser.err()),
    };
    for seed in 0..NUM_WALKS {
        compare(expression, model, own.fork(), parser.fork(), &mut Random(seed));
    }
}

#[test]
fn common_expressions_allow_the_same_as_the_parser() {
    let (model, compiler) = (model(), compiler(&model()));
    for expression in [
        r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
        r"(\+1 )?\(?[0-9]{3}\)?[- .][0-9]{3}[- .][0-9]{4}",
        r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
        r"https?://[^ /$.?#][^ ]*",
        r"(yes|no|maybe so)[.!]?",
        r"[^\n]*\n",
        "(?s).{0,12}",
        "(?i)true|false|nu(ll)?",
        "a*?b+?",
        r"\p{L}+( \p{L}+)*",
        r"(.|\n){3}",
        "",
        "x{40}y(true)?",
        "(true){2,3}|trutru",
    ] {
        compare_all(expression, &model, &compiler);
    }
}

#[test]
fn perl_classes_are_portable() {
    let (model, compiler) = (model(), compiler(&model()));
    for (expression, portable) in [
        (r"\d{3}-\d{4}", "[0-9]{3}-[0-9]{4}"),
        (r"[\w-.]+\s", r"[0-9A-Za-z_.-]+[\t-\r ]"),
        (r"\W[^\W]", r"[^\w\p{N}][0-9A-Za-z_]"),
        (
            r"https?://[^\s/$.?#]\S*",
            r"https?://[^\s/$.?#\x1c-\x1f\u{feff}\u{180e}][^\s\x1c-\x1f\u{feff}\u{180e}]*",
        ),
    ] {
        let own = compiler.compile(&Grammar::Regex(expression.to_owned())).unwrap();
        let parser = compiler.compile(&lark(portable)).unwrap();
        for seed in 0..NUM_WALKS {
            compare(expression, &model, own.fork(), parser.fork(), &mut Random(seed));
        }
    }
}

#[test]
fn choices_allow_the_same_as_the_parser() {
    let (model, compiler) = (model(), compiler(&model()));
    let choices = ["a", "ab", "a", "true", "trutru", "a.b|c", "é日本", "\"{x}\"\n"].map(String::from);
    let literals = choices.each_ref().map(|choice| serde_json::Value::from(choice.as_str()).to_string());
    let own = compiler.compile(&Grammar::Choices(choices.to_vec())).unwrap();
    let parser = compiler.compile(&Grammar::Lark(format!("start: {}", literals.join(" | ")))).unwrap();
    for seed in 0..NUM_WALKS * 20 {
        compare("choices", &model, own.fork(), parser.fork(), &mut Random(seed));
    }
}

/// Generates an expression over few characters, some of several bytes, with every nested construct.
fn expression(rng: &mut Random, depth: usize) -> String {
    let atoms =
        ["a", "b", "true", "tr", "é", "日", "[ab]", "[^a]", ".", "[a-c1-2é-本]", "[0-9]", r"[\t-\r ]"];
    if depth == 0 {
        return atoms[rng.below(atoms.len())].to_owned();
    }
    let inner = |rng: &mut Random| {
        let depth = rng.below(depth);
        expression(rng, depth)
    };
    match rng.below(6) {
        0 => format!("{}{}", inner(rng), inner(rng)),
        1 => format!("({}|{})", inner(rng), inner(rng)),
        2 => format!("({}){}", inner(rng), ["*", "+", "?"][rng.below(3)]),
        3 => {
            let low = rng.below(3);
            format!("({}){{{low},{}}}", inner(rng), low + rng.below(3))
        }
        4 => format!("{}{}{}", inner(rng), inner(rng), inner(rng)),
        _ => expression(rng, 0),
    }
}

#[test]
fn random_expressions_allow_what_the_parser_allows() {
    let (model, compiler) = (model(), compiler(&model()));
    for seed in 0..NUM_RANDOM {
        compare_all(&expression(&mut Random(seed), 4), &model, &compiler);
    }
}

#[test]
fn a_token_outside_the_mask_is_refused() {
    let (model, compiler) = (model(), compiler(&model()));
    let begun = compiler.compile(&Grammar::Regex("(true)+".into())).unwrap();
    let id = |text: &str| model.tokenizer.token_id(text).unwrap();
    for refused in [id("fa"), model.end_token_ids[0], 1 << 20] {
        assert!(begun.fork().accept(refused).is_err(), "{refused}");
    }
    let mut constraint = begun.fork();
    constraint.accept(id("tru")).unwrap();
    assert!(constraint.accept(id("tr")).is_err());
    let mut constraint = begun.fork();
    constraint.accept(id("true")).unwrap();
    constraint.accept(model.end_token_ids[0]).unwrap();
    assert_eq!(constraint.allowed(Forcing::Never).unwrap().next, Next::End);
}
