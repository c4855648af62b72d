//! Reasoning is free text, and the grammar begins after it.

use trunkline_grammar::{Constraint, Forcing, Grammar, Next, Reasoning, TokenMask};
use trunkline_reply::ReasoningMarks;
use trunkline_text::ModelText;

use crate::support::{compiler_with, model};

const THINK: ReasoningMarks = ReasoningMarks::Think;

fn constraint(model: &ModelText, marks: ReasoningMarks, reasoning: Reasoning) -> Constraint {
    let grammar = Grammar::Choices(vec!["yes".into(), "yellow".into()]);
    let mut constraint = compiler_with(model, marks).compile(&grammar).unwrap();
    constraint.begin_after(reasoning, None);
    constraint
}

fn mask(constraint: &mut Constraint) -> TokenMask {
    let allowed = constraint.allowed(Forcing::Allow).unwrap();
    match allowed.next {
        Next::Mask(mask) => mask,
        Next::End => panic!("the output ended early"),
    }
}

fn id(model: &ModelText, token: &str) -> u32 {
    model.tokenizer.token_id(token).unwrap()
}

/// Accepts tokens, and checks that each is in its mask.
fn write(model: &ModelText, constraint: &mut Constraint, tokens: &[&str]) {
    for token in tokens {
        assert!(mask(constraint).contains(id(model, token)), "{token}");
        constraint.accept(id(model, token)).unwrap();
    }
}

/// Returns true if the next tokens are the grammar's first ones.
fn has_begun(model: &ModelText, constraint: &mut Constraint) -> bool {
    let allowed = constraint.allowed(Forcing::Allow).unwrap();
    allowed.forced == [id(model, "y"), id(model, "e")]
}

#[test]
fn reasoning_that_the_prompt_opened_is_free_up_to_its_closing_mark() {
    let model = model();
    for marks in [THINK, ReasoningMarks::Mistral] {
        let close = marks.close();
        let letters: Vec<String> = close.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        for closing in [&[close][..], &letters, &[letters[0], close]] {
            let mut constraint = constraint(&model, marks, Reasoning::Begun);
            write(&model, &mut constraint, &["n", "o", letters[0], "/", "ab", "{\""]);
            let free = mask(&mut constraint);
            let ends = model.end_token_ids.iter().any(|&id| free.contains(id));
            assert!(!ends, "an output cannot end in reasoning");
            let more = id(&model, &format!("{close}x"));
            assert!(!free.contains(more), "text after the mark must follow the grammar");
            write(&model, &mut constraint, closing);
            assert!(has_begun(&model, &mut constraint), "{closing:?}");
        }
    }
}

#[test]
fn a_token_that_completes_the_mark_has_no_text_after_it() {
    let model = model();
    let mut constraint = constraint(&model, THINK, Reasoning::Begun);
    write(&model, &mut constraint, &["<", "/", "t", "h", "i", "n", "k"]);
    let allowed = mask(&mut constraint);
    assert!(allowed.contains(id(&model, ">")) && !allowed.contains(id(&model, ">y")));
    write(&model, &mut constraint, &["ab", ">y"]);
}

#[test]
fn a_reply_that_may_reason_can_also_begin_with_the_grammar() {
    let model = model();
    for marks in [THINK, ReasoningMarks::Mistral] {
        let mut thinking = constraint(&model, marks, Reasoning::Possible);
        write(&model, &mut thinking, &[marks.open(), "ab", marks.close()]);
        // A fork is independent.
        assert!(has_begun(&model, &mut thinking.fork()));
        assert!(has_begun(&model, &mut thinking));
    }
    let mut direct = constraint(&model, THINK, Reasoning::Possible);
    let ids: Vec<u32> = mask(&mut direct).iter().collect();
    assert_eq!(ids.len(), 2, "it opens reasoning, or begins: {ids:?}");
    write(&model, &mut direct, &["y"]);
    assert_eq!(direct.allowed(Forcing::Allow).unwrap().forced, [id(&model, "e")]);
}
