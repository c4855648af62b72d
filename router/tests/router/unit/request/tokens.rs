use trunkline_base::limits::{MAX_LOGIT_BIAS, MAX_PROMPT_LOGPROBS};
use trunkline_generation::request::tokens::{LogitBias, PromptLogprobsField, TokenFields, TruncationSide};
use trunkline_scheduler::SamplingParams;

fn bias(json: &str) -> Result<Vec<(u32, f32)>, String> {
    let bias: LogitBias = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let mut sampling = SamplingParams::default();
    let fields = TokenFields { logit_bias: bias, ..TokenFields::default() };
    fields.check(&mut sampling, 50).map_err(|error| error.to_string())?;
    Ok(sampling.logit_bias)
}

#[test]
fn logit_bias_is_checked() {
    assert_eq!(bias(r#"{"7": -100, "49": 1.5}"#), Ok(vec![(7, -100.0), (49, 1.5)]));
    assert_eq!(bias("{}"), Ok(vec![]));
    let many: Vec<String> = (0..MAX_LOGIT_BIAS + 2).map(|id| format!("\"{id}\": 1")).collect();
    assert!(bias(&format!("{{{}}}", many.join(","))).unwrap_err().contains("invalid length"));
    assert!(bias(&format!("{{{}}}", many[1..].join(","))).unwrap_err().contains("more than 1024"));
}

#[test]
fn prompts_are_truncated_and_their_logprobs_bounded() {
    let truncated = |asked| {
        let mut ids = vec![1, 2, 3, 4];
        TokenFields { truncate_prompt_tokens: asked, ..TokenFields::default() }.truncate(&mut ids, 2);
        ids
    };
    assert_eq!(truncated(None), [1, 2, 3, 4]);
    assert_eq!(truncated(Some(3)), [2, 3, 4]);
    assert_eq!(truncated(Some(9)), [1, 2, 3, 4]);
    assert_eq!(truncated(Some(-1)), [3, 4]);
    let fields = TokenFields {
        truncate_prompt_tokens: Some(3),
        truncation_side: TruncationSide::Right,
        ..TokenFields::default()
    };
    let mut ids = vec![1, 2, 3, 4];
    fields.truncate(&mut ids, 2);
    assert_eq!(ids, [1, 2, 3]);
    let asked = PromptLogprobsField { field: "prompt_logprobs", num_top: 1 };
    let fields = TokenFields { prompt_logprobs: Some(asked), ..TokenFields::default() };
    assert!(fields.check_prompt(MAX_PROMPT_LOGPROBS / 2).is_ok());
    let error = fields.check_prompt(MAX_PROMPT_LOGPROBS / 2 + 1).unwrap_err().to_string();
    assert!(error.contains("the limit is 262144"), "{error}");
}
