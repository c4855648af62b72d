//! The generation fields of other servers: each is supported, refused by name or known to be harmless.

use serde_json::{Value, json};

use crate::support::{Router, ShardPlan, user, with};

/// The fields of `ChatCompletionRequest` in vLLM's `entrypoints/openai/chat_completion/protocol.py`.
const VLLM: &str = "messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
    presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice reasoning_effort
    thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k min_p repetition_penalty
    watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids
    allowed_token_ids bad_words echo add_generation_prompt continue_final_message add_special_tokens documents
    chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs priority request_id
    session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets
    return_prompt_text return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs
    repetition_detection stream_interval";

/// The fields in llama.cpp's `tools/server/server-schema.cpp`, and those that its `README.md` has beside them.
const LLAMA_CPP: &str = "verbose timings_per_token stream stream_options cache_prompt return_tokens return_progress
    sse_ping_interval n_predict n_indent n_keep n_discard n_cmpl n_cache_reuse t_max_predict_ms response_fields top_k
    top_p min_p top_n_sigma xtc_probability xtc_threshold typical_p temperature dynatemp_range dynatemp_exponent
    repeat_last_n repeat_penalty frequency_penalty presence_penalty dry_multiplier dry_base dry_allowed_length
    dry_penalty_last_n mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay seed n_probs min_keep
    backend_sampling post_sampling_probs lora dry_sequence_breakers json_schema grammar grammar_lazy chat_format
    reasoning_format generation_prompt parse_tool_calls chat_parser continue_final_message echo preserved_tokens
    grammar_triggers reasoning_control reasoning_budget_tokens reasoning_budget_start_tag reasoning_budget_end_tag
    reasoning_budget_end_tags reasoning_budget_message logit_bias ignore_eos stop samplers id_slot image_data
    thinking_forced_open";

/// The fields of `ChatCompletionRequest` in SGLang's `srt/entrypoints/openai/protocol.py`.
const SGLANG: &str = "messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens
    n presence_penalty response_format seed stop stream stream_options temperature top_p user tools tool_choice
    parallel_tool_calls return_hidden_states return_routed_experts routed_experts_start_len
    return_cached_tokens_details return_prompt_token_ids return_token_ids return_meta_info reasoning_effort task top_k
    min_p min_tokens regex ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos
    continue_final_message skip_special_tokens lora_path session_id session_params separate_reasoning stream_reasoning
    chat_template_kwargs max_dynamic_patch min_dynamic_patch use_audio_in_video images_config custom_logit_processor
    custom_params input_ids rid extra_key cache_salt ngram_corpus_id priority bootstrap_host bootstrap_port
    bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank reasoning";

/// The fields of `ChatRequest` in TGI's `router/src/lib.rs`.
const TGI: &str =
    "model messages frequency_penalty logit_bias logprobs top_logprobs max_tokens n presence_penalty stop
    stream seed temperature top_p tools tool_prompt tool_choice response_format guideline stream_options";

/// The fields of `CreateChatCompletionRequest` in OpenAI's specification.
const OPENAI: &str = "messages model modalities verbosity reasoning_effort max_completion_tokens frequency_penalty
    presence_penalty web_search_options top_logprobs response_format audio store stream stop logit_bias logprobs
    max_tokens n prediction seed stream_options tools tool_choice parallel_tool_calls function_call functions metadata
    temperature top_p user service_tier safety_identifier prompt_cache_key prompt_cache_retention";

/// The fields of `CompletionRequest` that chats do not have: OpenAI's, and those that vLLM and SGLang add.
const OF_COMPLETIONS: &str = "prompt best_of echo suffix prompt_embeds add_special_tokens custom_labels";

/// Fields of chats that `/v1/completions` has in no server, or that only name how a chat is written.
const OF_CHATS: &str = "messages tools tool_choice top_logprobs reasoning_effort include_reasoning parallel_tool_calls
    add_generation_prompt continue_final_message documents chat_template chat_template_kwargs max_completion_tokens
    modalities verbosity web_search_options audio prediction function_call functions tool_prompt";

const IGNORED_FIELDS: &str = "x-ignored-fields";

async fn ignored(router: &Router, route: &str, body: &Value) -> (u16, Option<String>) {
    let answer = router.post(route, body).await;
    (answer.status, answer.header(IGNORED_FIELDS).map(str::to_owned))
}

#[tokio::test]
async fn no_field_of_another_server_is_ignored_silently() {
    let router = Router::saying("Twenty tokens of text").await;
    let others: Vec<&str> =
        [VLLM, LLAMA_CPP, SGLANG, TGI, OPENAI].iter().flat_map(|names| names.split_whitespace()).collect();
    assert!(others.len() > 200);
    for (route, body, own) in [
        ("/v1/chat/completions", json!({"messages": user("a"), "max_tokens": 1}), ""),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1}), OF_COMPLETIONS),
    ] {
        let of_chats: Vec<&str> = OF_CHATS.split_whitespace().collect();
        let names = others.iter().copied().filter(|name| own.is_empty() || !of_chats.contains(name));
        for name in names.chain(own.split_whitespace()) {
            let mut body = body.clone();
            let is_set = body.get(name).is_some();
            body[name] = if is_set { body[name].take() } else { Value::Null };
            assert_eq!(ignored(&router, route, &body).await, (200, None), "{route} with {name}");
        }
    }
}

/// Fields of llama.cpp that `/infill` names as ignored.
const NOTED_BY_INFILL: [&str; 3] = ["samplers", "n_indent", "t_max_predict_ms"];

#[tokio::test]
async fn no_field_of_llama_cpp_is_ignored_silently_by_infill() {
    let router = Router::start_infilling(ShardPlan::saying("Twenty tokens of text")).await;
    for name in LLAMA_CPP.split_whitespace() {
        let mut body = json!({"input_prefix": "a", "input_suffix": "z", "n_predict": 1});
        body[name] = body.get(name).cloned().unwrap_or(Value::Null);
        let noted = NOTED_BY_INFILL.contains(&name).then(|| name.to_owned());
        assert_eq!(ignored(&router, "/infill", &body).await, (200, noted), "{name}");
    }
}

#[tokio::test]
async fn the_answer_names_unknown_fields() {
    let router = Router::saying("Twenty tokens of text").await;
    let chat = json!({"messages": user("a"), "max_tokens": 1, "colour": 1, "user": "me",
        "a key that is a sentence": 2, "x.y-z": {}});
    assert_eq!(
        ignored(&router, "/v1/chat/completions", &chat).await,
        (200, Some("colour, x.y-z".to_owned()))
    );
    let mut stream = chat.clone();
    stream["stream"] = true.into();
    assert_eq!(ignored(&router, "/v1/chat/completions", &stream).await.1.as_deref(), Some("colour, x.y-z"));
    let generate = json!({"inputs": "a", "parameters": {"max_new_tokens": 1, "colour": 1}, "top": 1});
    assert_eq!(
        ignored(&router, "/generate", &generate).await,
        (200, Some("top, parameters.colour".to_owned()))
    );
    let message = json!({"messages": user("a"), "max_tokens": 1, "colour": 1});
    assert_eq!(ignored(&router, "/v1/messages", &message).await, (200, Some("colour".to_owned())));
    let response = json!({"input": "a", "colour": 1});
    assert_eq!(ignored(&router, "/v1/responses", &response).await, (200, Some("colour".to_owned())));
}

#[tokio::test]
async fn names_of_llama_cpp_are_other_names_of_ours() {
    let router = Router::saying("Twenty tokens of text").await;
    let post =
        async |fields: Value| router.post("/v1/completions", &with(json!({"prompt": "a"}), fields)).await;
    let counted = post(json!({"n_predict": 3})).await.ok();
    assert_eq!(counted["usage"]["completion_tokens"], 3);
    post(json!({"repeat_penalty": 1.5})).await.ok();
    assert_eq!(router.last_sampling().repetition_penalty, 1.5);
    let both = post(json!({"n_predict": 3, "max_tokens": 2})).await.ok();
    assert_eq!(both["usage"]["completion_tokens"], 2);
    let all = post(json!({"n_predict": -1})).await.ok();
    assert!(all["usage"]["completion_tokens"].as_u64().unwrap() > 16, "more than the default: {all}");
}
