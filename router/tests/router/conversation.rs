//! Replays the contract's recorded conversation through the router's conversions.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use trunkline_router::engine::shard::proto::{self, sequence_result::Outcome};
use trunkline_router::engine::shard::{
    KnownMasks, NamedMasks, ShardInfo, plan_from_proto, plan_to_proto, result_from_proto,
    transfers_from_proto,
};
use trunkline_scheduler::{
    BlockId, BlockKey, BlockStore, Chunk, Restore, RestoreOutcome, RestoredBlock, Salt, SamplingParams,
    SequenceErrorCode, SequenceOutcome, SequenceResult, SequenceStart, SlotId, StepPlan, StepResult,
    StoreOutcome, TokenLogprob, TokenMask, Watermark, WindowLimits,
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
            let info = ShardInfo::from_proto(describe_from_json(describe)).unwrap();
            assert_eq!(info.vocab_size, u32_of(describe, "vocab_size"));
            assert_eq!(info.limits().num_blocks, u32_of(describe, "num_device_blocks"));
        } else if let Some(plan) = record.get("plan") {
            let message = plan_from_json(plan);
            let plain = plan_from_proto(message.clone()).unwrap();
            assert_eq!(plan_to_json(&plain), *plan);
            assert_eq!(plan_to_proto(plain), message);
            plans += 1;
        } else if let Some(late) = record.get("late_mask") {
            let sequence_id = u64_of(late, "sequence_id");
            let allowed_tokens = key_of(late, "allowed_tokens");
            let message = proto::LateMask { sequence_id, allowed_tokens, mask_id: u32_of(late, "mask_id") };
            let plain = known.read(message.clone()).unwrap();
            assert!(plain.allowed_tokens.is_some());
            assert_eq!(named.write(plain), message);
            late_masks += 1;
        } else {
            let plain = result_from_proto(result_from_json(&record["result"]));
            assert_eq!(result_to_json(&plain), record["result"]);
            results += 1;
        }
    }
    assert!(plans >= 5 && plans == results, "{plans} plans, {results} results");
    assert!(late_masks > 0, "no late mask");
}

#[test]
fn unsupported_window_sizes_are_refused() {
    let first: Value = serde_json::from_str(CONVERSATION.lines().next().unwrap()).unwrap();
    let describe = |num_window_parts, window_size, num_store_slots| {
        let describe = describe_from_json(&first["describe"]);
        ShardInfo::from_proto(proto::DescribeResponse {
            num_window_parts,
            window_size,
            num_store_slots,
            ..describe
        })
    };
    // With blocks of 4, a window of 9 touches three blocks, and one more may be the source of a copy.
    assert_eq!(
        describe(4, 9, 0).unwrap().limits().windows,
        Some(WindowLimits { num_parts: 4, window_size: 9 })
    );
    assert_eq!(describe(0, 0, 4).unwrap().windows, None);
    for (num_parts, window_size, num_slots, text) in [
        (3, 9, 0, "`num_window_parts` of Describe is 3, expected at least 4 for a window of 9"),
        (3, 0, 0, "`window_size` of Describe is 0"),
    ] {
        let error = describe(num_parts, window_size, num_slots).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
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
    let message = plan_to_proto(plan.clone());
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

fn u64_of(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("`{field}` in {value}"))
}

fn u32_of(value: &Value, field: &str) -> u32 {
    u32::try_from(u64_of(value, field)).unwrap()
}

fn f32_of(value: &Value, field: &str) -> f32 {
    value[field].as_f64().unwrap_or_else(|| panic!("`{field}` in {value}")) as f32
}

fn text_of(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap().to_owned()
}

fn list<T>(value: &Value, field: &str, read: impl Fn(&Value) -> T) -> Vec<T> {
    value[field].as_array().unwrap().iter().map(read).collect()
}

fn ids(value: &Value, field: &str) -> Vec<u32> {
    list(value, field, |id| u32::try_from(id.as_u64().unwrap()).unwrap())
}

/// Decodes a field of bytes, which Protobuf's JSON has in base64.
fn key_of(value: &Value, field: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(value[field].as_str().unwrap()).unwrap()
}

fn key_to_json(key: &BlockKey) -> Value {
    BASE64_STANDARD.encode(key.as_bytes()).into()
}

fn describe_from_json(value: &Value) -> proto::DescribeResponse {
    proto::DescribeResponse {
        contract_version: u32_of(value, "contract_version"),
        architecture: text_of(value, "architecture"),
        vocab_size: u32_of(value, "vocab_size"),
        num_layers: u32_of(value, "num_layers"),
        num_heads: u32_of(value, "num_heads"),
        num_kv_heads: u32_of(value, "num_kv_heads"),
        head_size: u32_of(value, "head_size"),
        max_position_embeddings: u32_of(value, "max_position_embeddings"),
        block_size: u32_of(value, "block_size"),
        bytes_per_block: u64_of(value, "bytes_per_block"),
        num_device_blocks: u32_of(value, "num_device_blocks"),
        max_step_tokens: u32_of(value, "max_step_tokens"),
        max_step_sequences: u32_of(value, "max_step_sequences"),
        numeric_fingerprint: text_of(value, "numeric_fingerprint"),
        device: text_of(value, "device"),
        kv_dtype: text_of(value, "kv_dtype"),
        weight_bytes: u64_of(value, "weight_bytes"),
        num_store_slots: u32_of(value, "num_store_slots"),
        store_folder: text_of(value, "store_folder"),
        num_window_parts: u32_of(value, "num_window_parts"),
        bytes_per_window_part: u64_of(value, "bytes_per_window_part"),
        window_size: u32_of(value, "window_size"),
    }
}

fn plan_from_json(value: &Value) -> proto::StepPlan {
    proto::StepPlan {
        step_id: u64_of(value, "step_id"),
        ends: list(value, "ends", |id| id.as_u64().unwrap()),
        starts: list(value, "starts", |start| proto::SequenceStart {
            sequence_id: u64_of(start, "sequence_id"),
            token_ids: ids(start, "token_ids"),
            num_prompt_tokens: u32_of(start, "num_prompt_tokens"),
            sampling: Some(sampling_from_json(&start["sampling"])),
            root_key: key_of(start, "root_key"),
        }),
        copies: list(value, "copies", |copy| proto::BlockCopy {
            source_block_id: u32_of(copy, "source_block_id"),
            destination_block_id: u32_of(copy, "destination_block_id"),
            num_tokens: u32_of(copy, "num_tokens"),
        }),
        chunks: list(value, "chunks", |chunk| proto::Chunk {
            sequence_id: u64_of(chunk, "sequence_id"),
            first_position: u32_of(chunk, "first_position"),
            num_tokens: u32_of(chunk, "num_tokens"),
            new_block_ids: ids(chunk, "new_block_ids"),
            sample: chunk["sample"].as_bool().unwrap(),
            stores: list(chunk, "stores", |store| proto::BlockStore {
                block_index: u32_of(store, "block_index"),
                slot: u32_of(store, "slot"),
            }),
            appended_token_ids: ids(chunk, "appended_token_ids"),
            allowed_tokens: key_of(chunk, "allowed_tokens"),
            awaits_mask: chunk["awaits_mask"].as_bool().unwrap(),
            score: chunk["score"].as_bool().unwrap(),
        }),
        restores: list(value, "restores", |restore| proto::Restore {
            restore_id: u64_of(restore, "restore_id"),
            blocks: list(restore, "blocks", |block| proto::BlockRestore {
                slot: u32_of(block, "slot"),
                block_id: u32_of(block, "block_id"),
                key: key_of(block, "key"),
                base_only: block["base_only"].as_bool().unwrap(),
            }),
        }),
        discards: ids(value, "discards"),
        window_drops: ids(value, "window_drops"),
    }
}

fn sampling_from_json(value: &Value) -> proto::SamplingParams {
    proto::SamplingParams {
        temperature: f32_of(value, "temperature"),
        top_p: f32_of(value, "top_p"),
        top_k: u32_of(value, "top_k"),
        min_p: f32_of(value, "min_p"),
        seed: u64_of(value, "seed"),
        choice: u32_of(value, "choice"),
        presence_penalty: f32_of(value, "presence_penalty"),
        frequency_penalty: f32_of(value, "frequency_penalty"),
        repetition_penalty: f32_of(value, "repetition_penalty"),
        min_tokens: u32_of(value, "min_tokens"),
        end_token_ids: ids(value, "end_token_ids"),
        num_top_logprobs: u32_of(value, "num_top_logprobs"),
        logprobs: value["logprobs"].as_bool().unwrap(),
        logit_bias: list(value, "logit_bias", |bias| proto::TokenBias {
            token_id: u32_of(bias, "token_id"),
            bias: f32_of(bias, "bias"),
        }),
        allowed_token_ids: ids(value, "allowed_token_ids"),
        typical_p: f32_of(value, "typical_p"),
        num_top_prompt_logprobs: u32_of(value, "num_top_prompt_logprobs"),
        watermark: (!value["watermark"].is_null()).then(|| proto::Watermark {
            gamma: f32_of(&value["watermark"], "gamma"),
            delta: f32_of(&value["watermark"], "delta"),
            key: u64_of(&value["watermark"], "key"),
        }),
    }
}

fn result_from_json(value: &Value) -> proto::StepResult {
    proto::StepResult {
        step_id: u64_of(value, "step_id"),
        sequences: list(value, "sequences", |sequence| proto::SequenceResult {
            sequence_id: u64_of(sequence, "sequence_id"),
            outcome: match (sequence.get("token"), sequence.get("error")) {
                (Some(token), _) => Some(Outcome::Token(proto::SampledToken {
                    token_id: u32_of(token, "token_id"),
                    logprob: f32_of(token, "logprob"),
                    top_logprobs: top_of(token),
                })),
                (None, Some(error)) => {
                    let code = proto::SequenceErrorCode::from_str_name(error["code"].as_str().unwrap());
                    let message = text_of(error, "message");
                    Some(Outcome::Error(proto::SequenceError { code: code.unwrap() as i32, message }))
                }
                (None, None) => None,
            },
            scores: list(sequence, "scores", |score| proto::PromptTokenLogprob {
                logprob: f32_of(score, "logprob"),
                rank: u32_of(score, "rank"),
                top_logprobs: top_of(score),
            }),
        }),
        device_time_us: u64_of(value, "device_time_us"),
    }
}

fn top_of(token: &Value) -> Vec<proto::TokenLogprob> {
    list(token, "top_logprobs", |top| proto::TokenLogprob {
        token_id: u32_of(top, "token_id"),
        logprob: f32_of(top, "logprob"),
    })
}

fn plan_to_json(plan: &StepPlan) -> Value {
    let starts: Vec<Value> = plan
        .starts
        .iter()
        .map(|start| {
            json!({"sequence_id": start.sequence_id, "token_ids": start.token_ids,
                   "num_prompt_tokens": start.num_prompt_tokens, "sampling": sampling_to_json(&start.sampling),
                   "root_key": start.root_key.as_ref().map_or(json!(""), key_to_json)})
        })
        .collect();
    let copies: Vec<Value> = plan
        .copies
        .iter()
        .map(|copy| {
            json!({"source_block_id": copy.source_block_id, "destination_block_id": copy.destination_block_id,
                   "num_tokens": copy.num_tokens})
        })
        .collect();
    let chunks: Vec<Value> = plan
        .chunks
        .iter()
        .map(|chunk| {
            let stores = chunk.stores.iter();
            let stores: Vec<Value> = stores
                .map(|store| json!({"block_index": store.block_index, "slot": store.slot.0}))
                .collect();
            let mask = chunk.allowed_tokens.as_ref().map_or(&[][..], |mask| &mask.0);
            json!({"sequence_id": chunk.sequence_id, "first_position": chunk.first_position,
                   "num_tokens": chunk.num_tokens, "new_block_ids": chunk.new_block_ids, "sample": chunk.sample,
                   "stores": stores, "appended_token_ids": chunk.appended_token_ids,
                   "allowed_tokens": BASE64_STANDARD.encode(mask), "awaits_mask": chunk.awaits_mask,
                   "score": chunk.score})
        })
        .collect();
    let restores: Vec<Value> = plan.restores.iter().map(restore_to_json).collect();
    let discards: Vec<u32> = plan.discards.iter().map(|slot| slot.0).collect();
    json!({"step_id": plan.step_id, "ends": plan.ends, "starts": starts, "copies": copies, "chunks": chunks,
           "restores": restores, "discards": discards, "window_drops": plan.window_drops})
}

fn restore_to_json(restore: &Restore) -> Value {
    let blocks: Vec<Value> = restore
        .blocks
        .iter()
        .map(|block| {
            json!({"slot": block.slot.0, "block_id": block.block.0, "key": key_to_json(&block.key),
                   "base_only": block.base_only})
        })
        .collect();
    json!({"restore_id": restore.restore_id, "blocks": blocks})
}

fn sampling_to_json(sampling: &SamplingParams) -> Value {
    let bias = sampling.logit_bias.iter().map(|(id, bias)| json!({"token_id": id, "bias": bias}));
    let mut json = json!({
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k,
        "min_p": sampling.min_p, "seed": sampling.seed, "choice": sampling.choice,
        "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty, "min_tokens": sampling.min_tokens,
        "end_token_ids": sampling.end_token_ids, "num_top_logprobs": sampling.num_top_logprobs,
        "logprobs": sampling.logprobs, "logit_bias": bias.collect::<Vec<_>>(),
        "allowed_token_ids": sampling.allowed_token_ids, "typical_p": sampling.typical_p,
        "num_top_prompt_logprobs": sampling.prompt_logprobs.unwrap_or(0),
    });
    if let Some(Watermark { gamma, delta, key }) = sampling.watermark {
        json["watermark"] = json!({"gamma": gamma, "delta": delta, "key": key});
    }
    json
}

fn result_to_json(result: &StepResult) -> Value {
    let top_to_json = |top: &[TokenLogprob]| -> Vec<Value> {
        top.iter().map(|top| json!({"token_id": top.token_id, "logprob": top.logprob})).collect()
    };
    let sequence_to_json = |sequence: &SequenceResult| {
        let scores = sequence.scores.iter().map(|score| {
            let top = top_to_json(&score.top_logprobs);
            json!({"logprob": score.logprob, "rank": score.rank, "top_logprobs": top})
        });
        let mut value = json!({"sequence_id": sequence.sequence_id, "scores": scores.collect::<Vec<_>>()});
        match &sequence.outcome {
            SequenceOutcome::Token(token) => {
                let top = top_to_json(&token.top_logprobs);
                value["token"] =
                    json!({"token_id": token.token_id, "logprob": token.logprob, "top_logprobs": top});
            }
            SequenceOutcome::Computed => {}
            SequenceOutcome::Error(error) => {
                let code = match error.code {
                    SequenceErrorCode::NotFinite => "SEQUENCE_ERROR_CODE_NOT_FINITE",
                    SequenceErrorCode::InvalidPlan => "SEQUENCE_ERROR_CODE_INVALID_PLAN",
                    other => panic!("{other:?} is not recorded"),
                };
                value["error"] = json!({"code": code, "message": error.message});
            }
        }
        value
    };
    let sequences: Vec<Value> = result.sequences.iter().map(sequence_to_json).collect();
    json!({"step_id": result.step_id, "sequences": sequences, "device_time_us": result.device_time_us})
}
