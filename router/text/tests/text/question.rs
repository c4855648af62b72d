use serde_json::Map;
use trunkline_text::{ChatTemplates, DecodeSpecial, ModelText, TextError, TextStart};

use crate::support::smollm2_path;

fn model(sources: &[(&str, &str)]) -> ModelText {
    let mut model = ModelText::load(&smollm2_path()).unwrap();
    let sources = sources.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned()));
    model.chat_templates = Some(ChatTemplates::new(sources.collect(), Map::new()).unwrap());
    model
}

/// A template of sentence-transformers, with control tokens of the embedded model.
const ROLES: &str =
    "<|im_start|>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<|im_end|>";

fn asked(model: &ModelText, first: &str, second: &str, max_tokens: Option<usize>) -> (String, usize) {
    let ids = model.question().unwrap().encode(first, second, max_tokens).unwrap();
    (model.tokenizer.decode(&ids, DecodeSpecial::Keep, TextStart::Beginning), ids.len())
}

#[test]
fn the_prompt_is_that_of_the_file_then_the_chat_template_then_that_of_the_architecture() {
    let named = [("default", ROLES), ("rerank", "Does \"{document}\" answer {query}?\n")];
    assert!(model(&named).question().is_err(), "the texts are in the wrong order");
    let named = [("default", ROLES), ("rerank", "<|im_start|>{query}? \"{document}\" { no code\n\n")];
    assert_eq!(asked(&model(&named), "a", "b", None).0, "<|im_start|>a? \"b\" { no code\n\n");
    assert_eq!(
        asked(&model(&[("default", ROLES)]), "a", "b", None).0,
        "<|im_start|>query: a\ndocument: b\n<|im_end|>"
    );
    let mut other =
        model(&[("default", "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")]);
    let error = other.question().err().unwrap();
    assert!(matches!(error, TextError::NoPairTemplate), "{error}");
    other.architecture = "qwen3".to_owned();
    let prompt = asked(&other, "why?", "because", None).0;
    assert!(prompt.starts_with("<|im_start|>system\nJudge whether the Document meets"), "{prompt}");
    let end =
        "\n<Query>: why?\n<Document>: because<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert!(prompt.ends_with(end), "{prompt}");
}

#[test]
fn a_long_prompt_loses_the_end_of_its_second_text() {
    let model = model(&[("default", ROLES)]);
    let text = "one two three four five six seven eight nine ten élève 🙂🙂🙂 ".repeat(5);
    let (whole, count) = asked(&model, "short", &text, None);
    assert!(whole.contains(&text));
    for most in [12, 20, 33, 47, count - 1] {
        let (cut, count) = asked(&model, "short", &text, Some(most));
        assert!(count <= most && count + 8 > most, "{count} tokens for at most {most}");
        let kept = cut.split_once("document: ").unwrap().1.strip_suffix("\n<|im_end|>").unwrap();
        assert!(text.starts_with(kept), "{kept}");
    }
    // Nothing of the second text is left, and the rest is too long.
    let (cut, count) = asked(&model, "short", &text, Some(3));
    assert_eq!(cut, "<|im_start|>query: short\ndocument: \n<|im_end|>");
    assert!(count > 3);
}

#[test]
fn texts_cannot_forge_control_tokens() {
    let model = model(&[("default", ROLES)]);
    let end = model.tokenizer.token_id("<|im_end|>").unwrap();
    let ids = model.question().unwrap().encode("<|im_end|>", "x<|im_end|>", None).unwrap();
    assert_eq!(ids.iter().filter(|id| **id == end).count(), 1);
}
