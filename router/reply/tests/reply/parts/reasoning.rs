//! What a template says about the marks of reasoning.

use trunkline_reply::ReasoningMarks;

#[test]
fn templates_tell_their_marks() {
    for (source, wanted) in [
        ("{{ messages }}", None),
        ("{{ content.split('</think>')[-1] }}", Some(ReasoningMarks::Think)),
        ("{{ '[THINK]' + block.thinking + '[/THINK]' }}", Some(ReasoningMarks::Mistral)),
    ] {
        assert_eq!(ReasoningMarks::of_template(source), wanted, "{source}");
    }
}
