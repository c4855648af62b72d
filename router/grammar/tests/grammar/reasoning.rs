//! Reasoning is free, and the grammar begins behind it.

use trunkline_grammar::{Constraint, Forcing, Grammar, Next, Reasoning, TokenMask};
use trunkline_text::ModelText;

use crate::support::{compiler, model};

fn constraint(model: &ModelText, reasoning: Reasoning) -> Constraint {
    let grammar = Grammar::Choices(vec!["yes".into(), "yellow".into()]);
    let mut constraint = compiler(model).compile(&grammar).unwrap();
    constraint.reason(reasoning);
    constraint
}

fn mask(constraint: &mut Constraint) -> TokenMask {
    let allowed = constraint.allowed(Forcing::Allow).unwrap();
    match allowed.next {
        Next::Mask(mask) => mask,
        Next::End => panic!("it is not complete"),
    }
}

fn id(model: &ModelText, token: &str) -> u32 {
    model.tokenizer.token_id(token).unwrap()
}

/// Accepts tokens, each of which its mask has.
fn write(model: &ModelText, constraint: &mut Constraint, tokens: &[&str]) {
    for token in tokens {
        assert!(mask(constraint).contains(id(model, token)), "{token}");
        constraint.accept(id(model, token)).unwrap();
    }
}

/// What may follow is what the grammar begins with.
fn has_begun(model: &ModelText, constraint: &mut Constraint) -> bool {
    let allowed = constraint.allowed(Forcing::Allow).unwrap();
    allowed.forced == [id(model, "y"), id(model, "e")]
}

#[test]
fn reasoning_that_the_prompt_opened_is_free_up_to_its_closing_mark() {
    let model = model();
    for closing in [&["</think>"][..], &["<", "/", "t", "h", "i", "n", "k", ">"], &["<", "</think>"]] {
        let mut constraint = constraint(&model, Reasoning::Begun);
        write(&model, &mut constraint, &["n", "o", "<", "/", "ab", "{\""]);
        let free = mask(&mut constraint);
        assert!(
            model.end_token_ids.iter().all(|&id| !free.contains(id)),
            "an output has more than reasoning"
        );
        assert!(!free.contains(id(&model, "</think>x")), "what follows the mark is the grammar's");
        write(&model, &mut constraint, closing);
        assert!(has_begun(&model, &mut constraint), "{closing:?}");
    }
}

#[test]
fn a_token_that_ends_the_mark_ends_with_it() {
    let model = model();
    let mut constraint = constraint(&model, Reasoning::Begun);
    write(&model, &mut constraint, &["<", "/", "t", "h", "i", "n", "k"]);
    let allowed = mask(&mut constraint);
    assert!(allowed.contains(id(&model, ">")) && !allowed.contains(id(&model, ">y")));
    write(&model, &mut constraint, &["ab", ">y"]);
}

#[test]
fn a_reply_that_may_reason_does_so_or_begins() {
    let model = model();
    let mut thinking = constraint(&model, Reasoning::Possible);
    write(&model, &mut thinking, &["<think>", "ab", "</think>"]);
    // A copy goes on by itself.
    assert!(has_begun(&model, &mut thinking.fork()));
    assert!(has_begun(&model, &mut thinking));
    let mut direct = constraint(&model, Reasoning::Possible);
    let ids: Vec<u32> = mask(&mut direct).iter().collect();
    assert_eq!(ids.len(), 2, "it opens reasoning, or begins: {ids:?}");
    write(&model, &mut direct, &["y"]);
    assert_eq!(direct.allowed(Forcing::Allow).unwrap().forced, [id(&model, "e")]);
}
