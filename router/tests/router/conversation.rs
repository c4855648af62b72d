//! Replays the contract's recorded conversation through the router's messages.

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use prost::Message;
use serde_json::Value;
use trunkline_contract::SamplingParams;
use trunkline_engine::shard::proto::{self, sequence_result::Outcome};
use trunkline_engine::shard::{NamedMasks, ShardInfo};
use trunkline_scheduler::WindowLimits;

use crate::mock::KnownMasks;

const CONVERSATION: &str = include_str!("../../../proto/testdata/conversation.jsonl");

#[test]
fn the_recorded_conversation_is_read_and_written_without_loss() {
    let (mut plans, mut results, mut num_late) = (0, 0, 0);
    let (mut named, mut known) = (NamedMasks::default(), KnownMasks::default());
    for line in CONVERSATION.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        if let Some(describe) = record.get("describe") {
            // A new stream begins.
            (named, known) = (NamedMasks::default(), KnownMasks::default());
            let info = ShardInfo::from_proto(FromJson::from_json(describe)).unwrap();
            assert_eq!(describe["vocab_size"], info.vocab_size);
            assert_eq!(describe["num_device_blocks"], info.limits().num_blocks);
        } else if let Some(result) = record.get("result") {
            let message = proto::StepResult::from_json(result);
            assert_eq!(decoded(&message), message);
            results += 1;
        } else {
            let plan = record.get("plan").map(proto::StepPlan::from_json);
            let late_masks: Vec<_> =
                record.get("late_mask").map(proto::LateMask::from_json).into_iter().collect();
            plans += usize::from(plan.is_some());
            num_late += late_masks.len();
            let message = proto::StepRequest { plan, late_masks };
            assert_eq!(decoded(&message), message);
            let mut resolved = message.clone();
            known.resolve(&mut resolved).unwrap();
            check_sampling(&resolved);
            named.name_all(&mut resolved);
            assert_eq!(resolved, message, "the router numbers masks as they were recorded");
        }
    }
    assert!(plans >= 5 && plans == results, "{plans} plans, {results} results");
    assert!(num_late > 0, "no late mask");
}

/// Returns a message as the other side reads it.
fn decoded<M: Message + Default>(message: &M) -> M {
    M::decode(&message.encode_to_vec()[..]).unwrap()
}

/// Checks that the parameters of starts become the kernels' and the same message again.
fn check_sampling(request: &proto::StepRequest) {
    let starts = request.plan.iter().flat_map(|plan| &plan.starts);
    for sampling in starts.map(|start| start.sampling.as_ref().unwrap()) {
        let params = SamplingParams::from(sampling.clone());
        params.check().unwrap();
        assert_eq!(proto::SamplingParams { mask_id: sampling.mask_id, ..params.into() }, *sampling);
    }
}

#[test]
fn unsupported_window_sizes_are_refused() {
    let first: Value = serde_json::from_str(CONVERSATION.lines().next().unwrap()).unwrap();
    let described = || proto::DescribeResponse::from_json(&first["describe"]);
    let describe = |num_window_parts, window_size, num_store_slots| {
        ShardInfo::from_proto(proto::DescribeResponse {
            num_window_parts,
            window_size,
            num_store_slots,
            ..described()
        })
    };
    // With blocks of 4, a window of 9 touches three blocks, and one more may be the source of a copy.
    assert_eq!(
        describe(4, 9, 0).unwrap().limits().windows,
        Some(WindowLimits { num_parts: 4, window_size: 9, is_recurrent: false })
    );
    assert_eq!(describe(0, 0, 4).unwrap().windows, None);
    for (num_parts, window_size, num_slots, text) in [
        (3, 9, 0, "`num_window_parts` of Describe is 3, expected at least 4 for a window of 9"),
        (3, 0, 0, "`window_size` of Describe is 0"),
    ] {
        let error = describe(num_parts, window_size, num_slots).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let recurrent = proto::DescribeResponse {
        recurrent: true,
        num_window_parts: 3,
        window_size: 2,
        max_draft_tokens: 0,
        max_own_drafts: 0,
        num_store_slots: 0,
        ..described()
    };
    let limits = ShardInfo::from_proto(recurrent.clone()).unwrap().limits();
    assert_eq!(limits.windows, Some(WindowLimits { num_parts: 3, window_size: 2, is_recurrent: true }));
    let error = ShardInfo::from_proto(proto::DescribeResponse { num_store_slots: 4, ..recurrent });
    let text = "`num_store_slots` of Describe is 4, expected 0 for recurrent layers";
    assert!(error.unwrap_err().to_string().contains(text));
}

/// Reads Protobuf's JSON, in which bytes are base64.
trait FromJson {
    fn from_json(value: &Value) -> Self;
}

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl FromJson for $type {
            fn from_json(value: &Value) -> Self {
                serde_json::from_value(value.clone()).unwrap()
            }
        }
    )*};
}

/// Reads a message.
macro_rules! message {
    ($message:ident: $($field:ident),*) => {
        impl FromJson for proto::$message {
            fn from_json(value: &Value) -> Self {
                Self { $($field: FromJson::from_json(&value[stringify!($field)])),* }
            }
        }
    };
}

scalars!(bool, u32, u64, f32, String);
message! { StepPlan: step_id, ends, starts, copies, chunks, restores, discards, window_drops, adapter_loads }
message! { SequenceStart: sequence_id, token_ids, num_prompt_tokens, sampling, root_key, pooled,
adapter_slot, adapter_scale }
message! { AdapterLoad: slot, path, content_hash }
message! { PooledPrompt: second_text }
message! { BlockCopy: source_block_id, destination_block_id, num_tokens }
message! { Chunk: sequence_id, first_position, num_tokens, new_block_ids, sample, stores, appended_token_ids,
allowed_tokens, awaits_mask, score, draft_token_ids, draft_masks, num_own_drafts }
message! { BlockStore: block_index, slot }
message! { Restore: restore_id, blocks, store_folder }
message! { BlockRestore: slot, block_id, key, base_only }
message! { SamplingParams: temperature, top_p, top_k, min_p, seed, choice, presence_penalty, frequency_penalty,
repetition_penalty, min_tokens, end_token_ids, num_top_logprobs, logprobs, logit_bias, allowed_tokens, mask_id,
typical_p, num_top_prompt_logprobs, watermark, top_n_sigma, xtc_probability, xtc_threshold }
message! { TokenBias: token_id, bias }
message! { Watermark: gamma, delta, key }
message! { StepResult: step_id, sequences, device_time_us, draft_time_us }
message! { SampledToken: token_id, logprob, top_logprobs }
message! { TokenLogprob: token_id, logprob }
message! { PromptTokenLogprob: logprob, rank, top_logprobs }
message! { LateMask: sequence_id, allowed_tokens, mask_id }
message! { DescribeResponse: contract_version, architecture, vocab_size, num_layers, num_heads, num_kv_heads, head_size,
max_position_embeddings, block_size, bytes_per_block, num_device_blocks, max_step_tokens, max_step_sequences,
numeric_fingerprint, device, kv_dtype, weight_bytes, num_store_slots, store_folder, num_window_parts,
bytes_per_window_part, window_size, max_draft_tokens, max_own_drafts, pooling, vector_size,
labels, whole_prompts, only_pools, recurrent, asks_about_pairs, reads_other_stores, num_adapter_slots,
adapter_bytes, memory_bytes }

impl<T: FromJson> FromJson for Vec<T> {
    fn from_json(value: &Value) -> Self {
        value.as_array().unwrap().iter().map(T::from_json).collect()
    }
}

/// Enums are written by name.
impl FromJson for i32 {
    fn from_json(value: &Value) -> Self {
        proto::Pooling::from_str_name(value.as_str().unwrap()).unwrap() as Self
    }
}

impl<T: FromJson> FromJson for Option<T> {
    fn from_json(value: &Value) -> Self {
        (!value.is_null()).then(|| T::from_json(value))
    }
}

impl FromJson for Vec<u8> {
    fn from_json(value: &Value) -> Self {
        BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()
    }
}

impl FromJson for Bytes {
    fn from_json(value: &Value) -> Self {
        Vec::<u8>::from_json(value).into()
    }
}

impl FromJson for proto::SequenceResult {
    fn from_json(value: &Value) -> Self {
        let token = value.get("token").map(|token| Outcome::Token(FromJson::from_json(token)));
        let error = value.get("error").map(|error| {
            let code = proto::SequenceErrorCode::from_str_name(error["code"].as_str().unwrap());
            let message = String::from_json(&error["message"]);
            Outcome::Error(proto::SequenceError { code: code.unwrap() as i32, message })
        });
        let sequence_id = FromJson::from_json(&value["sequence_id"]);
        let more_tokens = FromJson::from_json(&value["more_tokens"]);
        let scores = FromJson::from_json(&value["scores"]);
        let num_own_drafts = FromJson::from_json(&value["num_own_drafts"]);
        let vector = FromJson::from_json(&value["vector"]);
        Self { sequence_id, outcome: token.or(error), scores, more_tokens, num_own_drafts, vector }
    }
}
