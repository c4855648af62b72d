//! Reasoning has at most the tokens of its budget, with and without a grammar after it.

use trunkline_grammar::{Constraint, Forcing, Grammar, Next, Reasoning};
use trunkline_reply::ReasoningMarks;
use trunkline_text::ModelText;

use crate::harmony::{self, ids, next, write};
use crate::support::{compiler_with, model, model_with};

/// A vocabulary that writes the marks of reasoning in letters.
fn letters() -> ModelText {
    model_with(&["<|end|>", "<|control|>"], 1, &["ab"])
}

/// A vocabulary whose marks of reasoning are control tokens.
fn control() -> ModelText {
    model_with(&["<|end|>", "<think>", "</think>", "[THINK]", "[/THINK]"], 1, &["ab"])
}

/// Returns the start of an output with a budget, under a grammar or without one.
fn start(
    model: &ModelText,
    marks: ReasoningMarks,
    has_grammar: bool,
    reasoning: Reasoning,
    budget: u32,
) -> Constraint {
    let compiler = compiler_with(model, marks);
    if !has_grammar {
        return compiler.budgeted(reasoning, budget);
    }
    let mut constraint = compiler.compile(&Grammar::Choices(vec!["yes".into()])).unwrap();
    constraint.begin_after(reasoning, Some(budget));
    constraint
}

/// Checks that exactly these tokens follow, each one the only choice.
fn must_write(constraint: &mut Constraint, ids: &[u32]) {
    for &id in ids {
        assert_eq!(next(constraint), [id]);
        constraint.accept(id).unwrap();
    }
}

fn is_free(model: &ModelText, constraint: &mut Constraint) -> bool {
    next(constraint).len() == model.tokenizer.vocab_size() as usize
}

#[test]
fn the_closing_mark_follows_the_last_token_of_the_budget() {
    for (model, has_grammar) in [
        (model(), true),
        (letters(), true),
        (control(), true),
        (model(), false),
        (letters(), false),
        (control(), false),
    ] {
        for marks in [ReasoningMarks::Think, ReasoningMarks::Mistral] {
            let close = ids(&model, marks.close());
            for budget in [0, 1, 3] {
                let mut constraint = start(&model, marks, has_grammar, Reasoning::Begun, budget);
                for _ in 0..budget {
                    write(&model, &mut constraint, "ab");
                }
                must_write(&mut constraint, &close);
                if has_grammar {
                    let allowed = constraint.allowed(Forcing::Allow).unwrap();
                    assert_eq!((allowed.forced, allowed.next), (ids(&model, "yes"), Next::End));
                } else {
                    assert!(is_free(&model, &mut constraint));
                }
            }
        }
    }
}

#[test]
fn reasoning_that_ends_within_its_budget_is_as_without_one() {
    for (model, has_grammar) in [(model(), true), (model(), false), (control(), true), (control(), false)] {
        let mut constraint = start(&model, ReasoningMarks::Think, has_grammar, Reasoning::Possible, 2);
        ["<think>", "ab", "</think>"].iter().for_each(|token| write(&model, &mut constraint, token));
        if has_grammar {
            assert_eq!(constraint.allowed(Forcing::Allow).unwrap().forced, ids(&model, "yes"));
        } else {
            write(&model, &mut constraint, "<think>ababab<|end|>");
            assert!(is_free(&model, &mut constraint), "what follows is content");
        }
    }
    // The budget begins with reasoning, and white space may precede it.
    let model = letters();
    let mut output = start(&model, ReasoningMarks::Think, false, Reasoning::Possible, 1);
    write(&model, &mut output, " \n<think>a");
    must_write(&mut output, &ids(&model, "</think>"));
    let mut plain = start(&model, ReasoningMarks::Think, false, Reasoning::Possible, 0);
    write(&model, &mut plain, "so <think>ab");
    assert!(is_free(&model, &mut plain));
    // An output may end in reasoning, as without a budget.
    let mut ended = start(&model, ReasoningMarks::Think, false, Reasoning::Begun, 5);
    write(&model, &mut ended, "a<|end|>");
    assert!(is_free(&model, &mut ended), "the request decides whether a token ends the output");
}

#[test]
fn without_budget_a_grammar_begins_at_once() {
    let model = model();
    let mut constraint = start(&model, ReasoningMarks::Think, true, Reasoning::Possible, 0);
    assert_eq!(next(&mut constraint), ids(&model, "y"));
}

#[test]
fn messages_of_reasoning_share_a_budget() {
    let (model, marks) = (harmony::model(), ReasoningMarks::Harmony);
    let thoughts = "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>analysis<|message|>c";
    let mut constraint = start(&model, marks, true, Reasoning::Possible, 3 + 1);
    write(&model, &mut constraint, thoughts);
    let rest = ids(&model, "<|end|><|start|>assistant<|channel|>final<|message|>");
    assert_eq!(constraint.fork().allowed(Forcing::Allow).unwrap().forced, rest);
    must_write(&mut constraint, &rest);

    let mut output = start(&model, marks, false, Reasoning::Possible, 3 + 1);
    write(&model, &mut output, thoughts);
    must_write(&mut output, &ids(&model, "<|end|>"));
    // Only messages of reasoning are ruled out, wherever they would begin.
    for _ in 0..2 {
        assert!(is_free(&model, &mut output));
        write(&model, &mut output, "<|start|>assistant<|channel|>");
        let ruled_out: Vec<u32> =
            (0..model.tokenizer.vocab_size()).filter(|id| !next(&mut output).contains(id)).collect();
        assert_eq!(ruled_out, [ids(&model, "a"), ids(&model, "analysis")].concat());
        write(&model, &mut output, "commentary<|message|>analysis<|end|>");
    }
}

#[test]
fn what_may_follow_depends_only_on_the_tokens_so_far() {
    let (think, harmony) = (letters(), harmony::model());
    for (model, marks, text) in [
        (&think, ReasoningMarks::Think, "<think>abc</think>yes<think>a"),
        (
            &harmony,
            ReasoningMarks::Harmony,
            "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>final<|message|>a",
        ),
    ] {
        let beginning = start(model, marks, false, Reasoning::Possible, 2);
        let mut running = beginning.fork();
        let ids = ids(model, text);
        for num_tokens in 0..ids.len() {
            let mut replayed = beginning.fork();
            ids[..num_tokens].iter().for_each(|&id| replayed.accept(id).unwrap());
            let allowed = running.allowed(Forcing::Never);
            assert_eq!(replayed.allowed(Forcing::Allow), allowed, "nothing is forced without a step");
            running.accept(ids[num_tokens]).unwrap();
        }
    }
}
