//! Reasoning marks that chat templates use.

use trunkline_reply::ReasoningMarks;

#[test]
fn a_chat_template_shows_its_marks() {
    for (source, wanted) in [
        ("{{ messages }}", None),
        ("{{ content.split('</think>')[-1] }}", Some(ReasoningMarks::Think)),
        ("{{ '[THINK]' + block.thinking + '[/THINK]' }}", Some(ReasoningMarks::Mistral)),
        ("{{ '<|start|>assistant<|channel|>analysis<|message|>' }}", Some(ReasoningMarks::Harmony)),
        ("{{ '<|end|>' }}", None),
    ] {
        assert_eq!(ReasoningMarks::from_template(source), wanted, "{source}");
    }
}
