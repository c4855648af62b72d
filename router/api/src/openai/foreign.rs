//! Generation fields of other servers that the generating routes of OpenAI's API and `/infill` do not have.
//!
//! The names come from these schemas:
//!
//! - vLLM: `vllm/entrypoints/openai/chat_completion/protocol.py`, `completion/protocol.py`
//! - llama.cpp: `tools/server/server-schema.cpp`
//! - SGLang: `python/sglang/srt/entrypoints/openai/protocol.py`
//! - TGI: `router/src/lib.rs`
//!
//! A field that changes the answer is refused by name, unless its value changes nothing. Other fields are accepted:
//! they change only the speed, the place of the work or its records, or they belong to a field that is refused itself.

use trunkline_http::Refused;

const fn refused(field: &'static str, neutral: &'static [&'static str], hint: &'static str) -> Refused {
    Refused { field, neutral, hint }
}

const OFF: &[&str] = &["false"];
const ON: &[&str] = &["true"];
const ZERO: &[&str] = &["0", "0.0"];
const EMPTY_LIST: &[&str] = &["[]"];
const LEAVE_OUT: &str = "leave it out";
const TEXT_ONLY: &str = "this server reads only text";

/// Fields that are refused, because ignoring them would change the answer.
pub(crate) const REFUSED: &[Refused] = &[
    // Sampling.
    refused("use_beam_search", OFF, LEAVE_OUT),
    refused("length_penalty", &["1", "1.0"], LEAVE_OUT),
    refused("mirostat", ZERO, "use `top_p` or `min_p`"),
    refused("dynatemp_range", ZERO, "use `temperature`"),
    refused("adaptive_target", &["-1", "-1.0"], LEAVE_OUT),
    refused("repeat_last_n", &["-1"], "penalties count the whole prompt and output; leave it out"),
    refused("min_keep", &["0", "1"], LEAVE_OUT),
    refused("samplers", &[], "the order of the filters is fixed; leave it out"),
    refused("logits_processors", EMPTY_LIST, LEAVE_OUT),
    refused("custom_logit_processor", &[], LEAVE_OUT),
    refused("custom_params", &["{}"], LEAVE_OUT),
    refused("vllm_xargs", &["{}"], LEAVE_OUT),
    refused("watermarking", OFF, LEAVE_OUT),
    refused("reasoning_control", OFF, LEAVE_OUT),
    refused("repetition_detection", &[], LEAVE_OUT),
    refused("n_indent", ZERO, LEAVE_OUT),
    refused("n_cmpl", &["1"], "use `n`"),
    refused("t_max_predict_ms", &["-1", "0"], "use `timeout`"),
    refused("stop_regex", EMPTY_LIST, "use `stop`"),
    // Constraints.
    refused("grammar_lazy", OFF, LEAVE_OUT),
    refused("grammar_triggers", EMPTY_LIST, LEAVE_OUT),
    refused("regex", &[], "use `guided_regex`"),
    refused("json_schema", &[], "use `guided_json` or `response_format`"),
    refused("guided_whitespace_pattern", &[], LEAVE_OUT),
    // The prompt.
    refused("image_data", EMPTY_LIST, TEXT_ONLY),
    refused("images_config", &["{}"], TEXT_ONLY),
    refused("media_io_kwargs", &["{}"], TEXT_ONLY),
    refused("mm_processor_kwargs", &["{}"], TEXT_ONLY),
    refused("use_audio_in_video", OFF, TEXT_ONLY),
    refused("input_ids", &[], "use `prompt` of /v1/completions"),
    refused("task", &[], LEAVE_OUT),
    refused("guideline", &[], "put it into the messages"),
    refused("lora_path", &[], "use `model` or `adapter_id`"),
    refused("session_params", &["{}"], LEAVE_OUT),
    refused("bootstrap_host", &[], LEAVE_OUT),
    refused("bootstrap_room", &[], LEAVE_OUT),
    refused("kv_transfer_params", &["{}"], LEAVE_OUT),
    refused("ec_transfer_params", &["{}"], LEAVE_OUT),
    // The form of the answer.
    refused("spaces_between_special_tokens", ON, LEAVE_OUT),
    refused("no_stop_trim", OFF, "use `include_stop_str_in_output`"),
    refused("n_probs", &["0"], "use `logprobs`"),
    refused("post_sampling_probs", OFF, LEAVE_OUT),
    refused("logprob_token_ids", &[], "use `top_logprobs`"),
    refused("return_tokens_as_token_ids", OFF, LEAVE_OUT),
    refused("return_tokens", OFF, LEAVE_OUT),
    refused("return_token_offsets", OFF, LEAVE_OUT),
    refused("return_prompt_text", OFF, "use the route with `/render`"),
    refused("return_prompt_token_ids", OFF, "use the route with `/render`"),
    refused("return_meta_info", OFF, LEAVE_OUT),
    refused("return_progress", OFF, LEAVE_OUT),
    refused("return_hidden_states", OFF, LEAVE_OUT),
    refused("return_routed_experts", OFF, LEAVE_OUT),
    refused("return_cached_tokens_details", OFF, "read `usage.prompt_tokens_details`"),
    refused("response_fields", EMPTY_LIST, LEAVE_OUT),
    refused("verbose", OFF, LEAVE_OUT),
    refused("separate_reasoning", ON, "use `include_reasoning`"),
    refused("stream_reasoning", ON, "use `include_reasoning`"),
    refused("reasoning_format", &["\"auto\"", "\"deepseek\""], "use `include_reasoning`"),
    refused("thinking_forced_open", OFF, LEAVE_OUT),
    refused("parse_tool_calls", ON, LEAVE_OUT),
    refused("chat_parser", &["\"\""], LEAVE_OUT),
];

/// Fields that are accepted, because they do not change the answer.
pub(crate) const HARMLESS: &[&str] = &[
    // Records of the caller.
    "user",
    "metadata",
    "store",
    "safety_identifier",
    "request_id",
    "rid",
    "session_id",
    "custom_labels",
    // Placement and speed. Prefixes are cached anyway, and a cached prefix changes no bit.
    "cache_prompt",
    "n_cache_reuse",
    "id_slot",
    "extra_key",
    "ngram_corpus_id",
    "backend_sampling",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "bootstrap_port",
    // How a stream is cut into events.
    "stream_interval",
    "sse_ping_interval",
    // The context is never shifted, so nothing is kept or discarded.
    "n_keep",
    "n_discard",
    // These belong to fields that are refused.
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_exponent",
    "adaptive_decay",
    "routed_experts_start_len",
    "routed_experts_prompt_start",
    "return_mm_kwargs",
    "max_dynamic_patch",
    "min_dynamic_patch",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tag",
    "reasoning_budget_end_tags",
    "reasoning_budget_message",
    "chat_format",
    "preserved_tokens",
    "generation_prompt",
];
