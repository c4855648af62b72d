//! Replays the contract's recorded conversation through the router's conversions.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use trunkline_router::engine::shard::proto::{self, sequence_result::Outcome};
use trunkline_router::engine::shard::{
    KnownMasks, NamedMasks, ShardInfo, plan_from_proto, plan_to_proto, result_from_proto,
    transfers_from_proto,
};
use trunkline_scheduler::{
    BlockCopy, BlockId, BlockKey, BlockStore, Chunk, Restore, RestoreOutcome, RestoredBlock, Salt,
    SampledToken, SamplingParams, SequenceErrorCode, SequenceOutcome, SequenceResult, SequenceStart, SlotId,
    StepPlan, StepResult, StoreOutcome, TokenLogprob, TokenMask, TokenScore, Watermark, WindowLimits,
};

const CONVERSATION: &str = include_str!("../../../proto/testdata/conversation.jsonl");

#[test]
fn the_recorded_conversation_converts_to_the_same_values() {
    let (mut plans, mut results, mut late_masks) = (0, 0, 0);
    let (mut named, mut known) = (NamedMasks::default(), KnownMasks::default());
    for line in CONVERSATION.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        if let Some(describe) = record.get("describe") {
            // A new stream begins.
            (named, known) = (NamedMasks::default(), KnownMasks::default());
            let info = ShardInfo::from_proto(FromJson::from_json(describe)).unwrap();
            assert_eq!(describe["vocab_size"], info.vocab_size);
            assert_eq!(describe["num_device_blocks"], info.limits().num_blocks);
        } else if let Some(plan) = record.get("plan") {
            let message = proto::StepPlan::from_json(plan);
            let mut resolved = message.clone();
            known.resolve(&mut resolved).unwrap();
            let plain = plan_from_proto(resolved).unwrap();
            let mut json = plain.to_json();
            // The router's type has no names.
            for (start, recorded) in
                json["starts"].as_array_mut().unwrap().iter_mut().zip(plan["starts"].as_array().unwrap())
            {
                start["sampling"]["mask_id"] = recorded["sampling"]["mask_id"].clone();
            }
            assert_eq!(json, *plan);
            assert_eq!(plan_to_proto(plain, &mut named), message);
            plans += 1;
        } else if let Some(late) = record.get("late_mask") {
            let message = proto::LateMask::from_json(late);
            let plain = known.read_late(message.clone()).unwrap();
            assert!(plain.allowed_tokens.is_some());
            assert_eq!(named.write_late(plain), message);
            late_masks += 1;
        } else {
            let plain = result_from_proto(FromJson::from_json(&record["result"]));
            assert_eq!(plain.to_json(), record["result"]);
            results += 1;
        }
    }
    assert!(plans >= 5 && plans == results, "{plans} plans, {results} results");
    assert!(late_masks > 0, "no late mask");
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

#[test]
fn transfers_are_converted_completely() {
    let key = Salt::default().with_cache_salt("tenant").root_key();
    let plan = StepPlan {
        step_id: 3,
        starts: vec![SequenceStart {
            sequence_id: 1,
            token_ids: vec![5; 9],
            num_prompt_tokens: 9,
            sampling: SamplingParams { prompt_logprobs: Some(4), ..SamplingParams::default() },
            root_key: Some(key),
            pooled: Some(3),
        }],
        chunks: vec![Chunk {
            sequence_id: 1,
            first_position: 4,
            num_tokens: 5,
            new_block_ids: vec![7, 8],
            sample: true,
            stores: vec![BlockStore { block_index: 1, slot: SlotId(11) }],
            appended_token_ids: vec![6, 1],
            allowed_tokens: Some(TokenMask([0b101, 0].as_slice().into())),
            awaits_mask: false,
            score: true,
            draft_token_ids: vec![2, 9],
            draft_masks: vec![TokenMask([1, 0].as_slice().into()), TokenMask([2, 0].as_slice().into())],
            num_own_drafts: 0,
        }],
        restores: vec![Restore {
            restore_id: 2,
            blocks: vec![RestoredBlock {
                slot: SlotId(4),
                key: key.extend(&[5; 4]),
                block: BlockId(7),
                base_only: true,
            }],
        }],
        discards: vec![SlotId(9)],
        window_drops: vec![3, 1],
        ..StepPlan::default()
    };
    let message = plan_to_proto(plan.clone(), &mut NamedMasks::default());
    assert_eq!(plan_from_proto(message.clone()).unwrap(), plan);
    let mut short = message;
    short.restores[0].blocks[0].key.pop();
    assert!(plan_from_proto(short).unwrap_err().to_string().contains("a key has 15 bytes, expected 16"));
    let outcome = proto::RestoreOutcome { restore_id: 2, num_blocks: 1, time_us: 30 };
    let transfers = transfers_from_proto(proto::Transfers {
        stores: vec![proto::StoreOutcome { slot: 11, is_stored: true }],
        restores: vec![outcome],
    });
    assert_eq!(transfers.stores, [StoreOutcome { slot: SlotId(11), is_stored: true }]);
    assert_eq!(transfers.restores, [RestoreOutcome { restore_id: 2, num_blocks: 1, time_us: 30 }]);
}

/// Reads Protobuf's JSON, in which bytes are base64.
trait FromJson {
    fn from_json(value: &Value) -> Self;
}

/// Writes the router's own types as Protobuf's JSON.
trait ToJson {
    fn to_json(&self) -> Value;
}

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl FromJson for $type {
            fn from_json(value: &Value) -> Self {
                serde_json::from_value(value.clone()).unwrap()
            }
        }
        impl ToJson for $type {
            fn to_json(&self) -> Value {
                json!(self)
            }
        }
    )*};
}

/// Writes these fields under their names.
macro_rules! fields {
    ($value:ident: $($field:ident),*) => {
        [$((stringify!($field), $value.$field.to_json())),*].into_iter().collect::<Value>()
    };
}

/// Reads a message, and writes the router's type for it if that has the same fields.
macro_rules! message {
    ($message:ident: $($field:ident),*) => {
        impl FromJson for proto::$message {
            fn from_json(value: &Value) -> Self {
                Self { $($field: FromJson::from_json(&value[stringify!($field)])),* }
            }
        }
    };
    ($message:ident, $type:ident: $($field:ident),*) => {
        message! { $message: $($field),* }
        impl ToJson for $type {
            fn to_json(&self) -> Value {
                fields!(self: $($field),*)
            }
        }
    };
}

scalars!(bool, u32, u64, f32, String);
message! { StepPlan, StepPlan: step_id, ends, starts, copies, chunks, restores, discards, window_drops }
message! { SequenceStart: sequence_id, token_ids, num_prompt_tokens, sampling, root_key, pooled }
message! { PooledPrompt: second_text }
message! { BlockCopy, BlockCopy: source_block_id, destination_block_id, num_tokens }
message! { Chunk, Chunk: sequence_id, first_position, num_tokens, new_block_ids, sample, stores, appended_token_ids,
allowed_tokens, awaits_mask, score, draft_token_ids, draft_masks, num_own_drafts }
message! { BlockStore, BlockStore: block_index, slot }
message! { Restore, Restore: restore_id, blocks }
message! { BlockRestore: slot, block_id, key, base_only }
message! { SamplingParams: temperature, top_p, top_k, min_p, seed, choice, presence_penalty, frequency_penalty,
repetition_penalty, min_tokens, end_token_ids, num_top_logprobs, logprobs, logit_bias, allowed_tokens, mask_id,
typical_p, num_top_prompt_logprobs, watermark, top_n_sigma, xtc_probability, xtc_threshold }
message! { TokenBias: token_id, bias }
message! { Watermark, Watermark: gamma, delta, key }
message! { StepResult, StepResult: step_id, sequences, device_time_us, draft_time_us }
message! { SampledToken, SampledToken: token_id, logprob, top_logprobs }
message! { TokenLogprob, TokenLogprob: token_id, logprob }
message! { PromptTokenLogprob, TokenScore: logprob, rank, top_logprobs }
message! { LateMask: sequence_id, allowed_tokens, mask_id }
message! { DescribeResponse: contract_version, architecture, vocab_size, num_layers, num_heads, num_kv_heads, head_size,
max_position_embeddings, block_size, bytes_per_block, num_device_blocks, max_step_tokens, max_step_sequences,
numeric_fingerprint, device, kv_dtype, weight_bytes, num_store_slots, store_folder, num_window_parts,
bytes_per_window_part, window_size, max_draft_tokens, max_own_drafts, pooling, vector_size,
labels, whole_prompts, only_pools, recurrent, asks_about_pairs }

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

impl ToJson for SequenceStart {
    fn to_json(&self) -> Value {
        let mut json = fields!(self: sequence_id, token_ids, num_prompt_tokens, sampling, root_key);
        if let Some(second_text) = self.pooled {
            json["pooled"] = json!({"second_text": second_text});
        }
        json
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

impl<T: ToJson> ToJson for Vec<T> {
    fn to_json(&self) -> Value {
        self.iter().map(T::to_json).collect()
    }
}

impl ToJson for SlotId {
    fn to_json(&self) -> Value {
        self.0.into()
    }
}

impl ToJson for Option<BlockKey> {
    fn to_json(&self) -> Value {
        BASE64_STANDARD.encode(self.as_ref().map_or(&[][..], |key| key.as_bytes())).into()
    }
}

impl ToJson for Option<TokenMask> {
    fn to_json(&self) -> Value {
        BASE64_STANDARD.encode(self.as_ref().map_or(&[][..], |mask| &mask.0)).into()
    }
}

impl ToJson for TokenMask {
    fn to_json(&self) -> Value {
        BASE64_STANDARD.encode(&self.0).into()
    }
}

impl ToJson for RestoredBlock {
    fn to_json(&self) -> Value {
        json!({"slot": self.slot.0, "block_id": self.block.0, "key": Some(self.key).to_json(),
               "base_only": self.base_only})
    }
}

impl ToJson for SamplingParams {
    fn to_json(&self) -> Value {
        let bias = self.logit_bias.iter().map(|(id, bias)| json!({"token_id": id, "bias": bias}));
        let mut json = fields! { self: temperature, top_p, top_k, min_p, seed, choice, presence_penalty,
        frequency_penalty, repetition_penalty, min_tokens, end_token_ids, num_top_logprobs, logprobs,
        allowed_tokens, typical_p, top_n_sigma, xtc_probability, xtc_threshold };
        json["logit_bias"] = bias.collect();
        json["num_top_prompt_logprobs"] = self.prompt_logprobs.unwrap_or(0).into();
        if let Some(watermark) = &self.watermark {
            json["watermark"] = watermark.to_json();
        }
        json
    }
}

impl ToJson for SequenceResult {
    fn to_json(&self) -> Value {
        let mut json = fields!(self: sequence_id, scores, more_tokens, num_own_drafts);
        json["vector"] = json!([]);
        match &self.outcome {
            SequenceOutcome::Token(token) => json["token"] = token.to_json(),
            SequenceOutcome::Vector(vector) => json["vector"] = vector.to_json(),
            SequenceOutcome::Computed => {}
            SequenceOutcome::Error(error) => {
                let code = match error.code {
                    SequenceErrorCode::NotFinite => "SEQUENCE_ERROR_CODE_NOT_FINITE",
                    SequenceErrorCode::InvalidPlan => "SEQUENCE_ERROR_CODE_INVALID_PLAN",
                    other => panic!("{other:?} is not recorded"),
                };
                json["error"] = json!({"code": code, "message": error.message});
            }
        }
        json
    }
}
