//! Sequences that follow a grammar: the driver's masks reach the shard, also next to unconstrained sequences.

use trunkline_engine::driver::{NewSequence, SequenceUpdate};
use trunkline_grammar::{Constraint, Grammar, GrammarCompiler, GrammarLimits};
use trunkline_reply::ReasoningMarks;
use trunkline_scheduler::{EndReason, SamplingParams};

use crate::support::{END, Router, bytes, sequence};

fn request(prompt: &str, sampling: SamplingParams) -> NewSequence {
    let mut asked = sequence(bytes(prompt), 400);
    asked.request.sampling = SamplingParams { end_token_ids: vec![END], ..sampling };
    asked
}

fn constraint(router: &Router, grammar: &Grammar) -> Constraint {
    let text = &router.app.served.model.text;
    let compiler = GrammarCompiler::new(
        &text.tokenizer,
        &text.end_token_ids,
        ReasoningMarks::Think,
        GrammarLimits::default(),
    )
    .unwrap();
    compiler.compile(grammar).unwrap()
}

/// Returns the text of one sequence, and the reason why it ended.
async fn run(router: &Router, request: NewSequence, grammar: Option<&Grammar>) -> (String, EndReason) {
    let constraint = grammar.map(|grammar| constraint(router, grammar));
    let submitted = router.app.served.driver.submit(NewSequence { constraint, ..request }).await;
    let mut sequence = submitted.unwrap();
    let mut text = Vec::new();
    loop {
        match sequence.next().await.unwrap() {
            SequenceUpdate::Token(token) => text.extend(u8::try_from(token.token_id).ok()),
            SequenceUpdate::Ended(reason) => return (String::from_utf8(text).unwrap(), reason),
            SequenceUpdate::Accepted | SequenceUpdate::Started { .. } | SequenceUpdate::Pinned(_) => {}
            SequenceUpdate::Rejected { .. } => panic!("there is room"),
            SequenceUpdate::Scored(_) | SequenceUpdate::Pooled(_) => panic!("only text was requested"),
            SequenceUpdate::Drafted { .. } => panic!("nothing was drafted"),
        }
    }
}

#[tokio::test]
async fn masks_reach_the_shard_and_forced_tokens_need_no_step() {
    // The shard's own output would not match the grammar.
    let router = Router::saying("no json at all").await;
    let schema = serde_json::json!({
        "type": "object", "properties": {"answer": {"enum": ["first", "fourth"]}}, "required": ["answer"],
        "additionalProperties": false,
    });
    let grammar = Grammar::JsonSchema(schema.into());
    let greedy = || request("question", SamplingParams::default());
    let (forced, reason) = run(&router, greedy(), Some(&grammar)).await;
    assert_eq!(reason, EndReason::EndToken);
    let value: serde_json::Value = serde_json::from_str(&forced).unwrap();
    assert!(["first", "fourth"].contains(&value["answer"].as_str().unwrap()), "{forced}");
    let stats = *router.app.served.stats.borrow();
    assert!(stats.steps < stats.output_tokens, "tokens came without a step: {stats:?}");
    // With logprobs every token is sampled, and the text stays the same.
    let params = SamplingParams { logprobs: true, ..SamplingParams::default() };
    let (sampled, _) = run(&router, request("question", params), Some(&grammar)).await;
    assert_eq!(sampled, forced);
    // Next to unconstrained sequences the text is the same, and theirs is unchanged.
    let free = request("another question", SamplingParams::default());
    let (constrained, free) = tokio::join!(run(&router, greedy(), Some(&grammar)), run(&router, free, None));
    assert_eq!(constrained.0, forced);
    assert_eq!(free, ("no json at all".to_owned(), EndReason::EndToken));
}

#[tokio::test]
async fn leaving_while_a_mask_is_computed_frees_everything() {
    let router = Router::default().await;
    let grammar = Grammar::Regex("[a-z]{50}".into());
    for _ in 0..20 {
        let constraint = Some(constraint(&router, &grammar));
        let request = NewSequence { constraint, ..request("question", SamplingParams::default()) };
        drop(router.app.served.driver.submit(request).await.unwrap());
    }
    router.wait_idle().await;
    let (text, reason) = run(&router, request("question", SamplingParams::default()), Some(&grammar)).await;
    assert_eq!((text.len(), reason), (50, EndReason::EndToken));
}
