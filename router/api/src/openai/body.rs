//! The fields that the bodies of `/v1/chat/completions`, `/v1/completions` and `/infill` have in common.

/// Defines the body of a request of OpenAI's API: the route's own fields, followed by the common fields.
macro_rules! body {
    ($(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        crate::openai::generation_body! { $(#[$about])* pub struct $name {
            $($own)*
            /// Options for streams; ignored if `stream` is not true. With `include_usage` the last chunk has `usage`.
            /// With `continuous_usage_stats`, which is vLLM's, every chunk from the first token on has it, too. Both
            /// are false by default, and other members are ignored.
            pub stream_options: Option<StreamOptions>,
            /// The number of last tokens to keep of the prompt; -1 keeps as many as fit with `max_tokens`, or with one
            /// token. Part of vLLM's API.
            #[schema(minimum = -1)]
            pub truncate_prompt_tokens: Option<i64>,
            /// The end of the prompt at which `truncate_prompt_tokens` removes tokens: `left`, the default, or `right`.
            /// Part of vLLM's API.
            pub truncation_side: Option<TruncationSide>,
            /// If true, the answer or the first chunk has `prompt_token_ids`, and each choice `token_ids`, end tokens
            /// included. In a completion, `prompt_token_ids` is in each choice. Part of vLLM's API.
            #[schema(default = false)]
            pub return_token_ids: Option<bool>,
            /// Returns the prompt's logprobs, with this number of the likeliest tokens at each position. Not available
            /// in streams and with a grammar. Part of vLLM's API.
            #[schema(value_type = Option<i64>, minimum = 0, maximum = 20)]
            pub prompt_logprobs: Option<PromptLogprobsCount>,
        } }

        impl $name {
            /// Takes the common generation parameters out of the body, except for those of the grammar.
            pub fn shared_params(&mut self) -> Result<RawParams, ApiError> {
                let mut params = self.generation_params()?;
                params.tokens.truncate_prompt_tokens = self.truncate_prompt_tokens;
                params.tokens.truncation_side = self.truncation_side.unwrap_or_default();
                Ok(params)
            }
        }
    };
}

/// Defines the body of a request: the route's own fields, followed by those of every route that generates.
macro_rules! generation_body {
    ($(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        crate::sampling_body::sampling_body! { openai: $(#[$about])* pub struct $name {
            $($own)*
            /// The name of the served model, also `""`, `tgi` and `dummy`; the name of an adapter; or both as
            /// `MODEL:ADAPTER`. Another is refused with `model_not_found`; the default is the served one.
            pub model: Option<String>,
            /// The name of an adapter. Part of TGI's API.
            pub adapter_id: Option<String>,
            /// A list of `{"id": ID, "scale": FACTOR}`. `id` is an adapter's place in `GET /lora-adapters`, and `scale`
            /// is -100 to 100; at most one is not 0. Part of llama.cpp's API.
            pub lora: Option<Vec<LoraScale>>,
            /// The seed of sampling, an integer of 64 bits, signed or not. Equal seeds give the same bits, and -1 is a
            /// seed like any other; random if absent.
            #[schema(value_type = Option<i64>)]
            pub seed: Option<Seed>,
            /// A string, or a list of strings, that ends the output: at most 64 (`--max-stop-sequences`), each of 1 to
            /// 1024 bytes. The output does not include it. They apply after any reasoning.
            pub stop: Option<OneOrMany>,
            /// If true, the output includes the stop string.
            #[schema(default = false)]
            pub include_stop_str_in_output: Option<bool>,
            /// If true, the answer is a stream of server-sent events.
            #[schema(default = false)]
            pub stream: Option<bool>,
            /// The most seconds from the request's arrival to its last token; by default as `--request-timeout` has it.
            /// Not part of OpenAI's API.
            #[schema(exclusive_minimum = 0, maximum = 86400)]
            pub timeout: Option<f64>,
            /// llama.cpp's name of `repetition_penalty`, which counts if both are sent.
            #[schema(minimum = 0.01, maximum = 100)]
            pub repeat_penalty: Option<f64>,
            /// llama.cpp's name of `max_tokens`, which counts if both are sent: from 1, or -1 for as many tokens as fit
            /// into the context.
            #[schema(minimum = -1)]
            pub n_predict: Option<i64>,
            /// The least number of tokens before an end token is allowed, at most the output's limit. Not part of
            /// OpenAI's API.
            #[schema(minimum = 0, default = 0)]
            pub min_tokens: Option<i64>,
            /// If true, generation continues after an end token. Not part of OpenAI's API.
            #[schema(default = false)]
            pub ignore_eos: Option<bool>,
            /// At most 1024 words of 1 to 256 bytes. The last token of each is not sampled after the others, with and
            /// without a space before the word; a grammar that allows nothing else fails. Not with `prompt_logprobs`.
            /// Part of vLLM's API.
            pub bad_words: Option<Vec<String>>,
            /// The factor of DRY: a token that would continue a text of n tokens that occurred before, in prompt or
            /// output, is penalised by `dry_multiplier` × `dry_base`^(n − `dry_allowed_length`). At most 1,024 tokens
            /// are, those with the longest texts. Not with `prompt_logprobs`. Part of llama.cpp's API, like the next
            /// four fields.
            #[schema(minimum = 0, maximum = 100, default = 0)]
            pub dry_multiplier: Option<f64>,
            /// The factor by which each further repeated token raises the penalty.
            #[schema(minimum = 1, maximum = 100, default = 1.75)]
            pub dry_base: Option<f64>,
            /// The least number of repeated tokens that counts. Shorter repetitions have no penalty.
            #[schema(minimum = 0, maximum = 1024, default = 2)]
            pub dry_allowed_length: Option<i64>,
            /// The number of last tokens in which repetitions are searched; -1 for all.
            #[schema(minimum = -1, default = json!(-1))]
            pub dry_penalty_last_n: Option<i64>,
            /// At most 64 texts of 1 to 128 bytes that a repetition does not cross; the default is `["\n", ":", "\"",
            /// "*"]`.
            pub dry_sequence_breakers: Option<Vec<String>>,
            /// A map of at most 1024 token ids, written as strings, to values from -100 to 100 that are added to their
            /// logits before penalties and filters. A grammar takes precedence. Logprobs do not include it.
            #[schema(value_type = Option<HashMap<String, f64>>)]
            pub logit_bias: Option<LogitBias>,
            /// The ids of the only tokens that may be sampled, not empty. No other is, not even an end token. Part of
            /// vLLM's API, not of OpenAI's.
            pub allowed_token_ids: Option<Vec<i64>>,
            /// The ids of at most 128 tokens. The first of them in the output ends it with `finish_reason` `stop` and
            /// has no text, also with `ignore_eos`. Part of vLLM's API.
            pub stop_token_ids: Option<Vec<i64>>,
            /// If false, control tokens appear as their names in the output; end tokens never do. Part of vLLM's API.
            #[schema(default = true)]
            pub skip_special_tokens: Option<bool>,
            /// The format of the output: `{"type": "text"}`, the default, `{"type": "json_object"}`, `{"type":
            /// "json_schema", "json_schema": {"name": ..., "strict": ..., "schema": ...}}` or `{"type":
            /// "structural_tag", "format": ...}`. The schema may also be in `schema` or `value`.
            #[schema(value_type = Option<Object>)]
            pub response_format: Option<Value>,
            /// A JSON schema, or its text, that the output conforms to. Part of vLLM's API, like the next three fields;
            /// only one of the eight that constrain the output may be sent.
            #[schema(value_type = Option<Object>)]
            pub guided_json: Option<Value>,
            /// A regular expression that the whole output matches.
            pub guided_regex: Option<String>,
            /// The texts that the output is chosen from.
            pub guided_choice: Option<Vec<String>>,
            /// A grammar that the output conforms to, in Lark or EBNF.
            pub guided_grammar: Option<String>,
            /// The same, by llama.cpp's name; an empty one is none.
            pub grammar: Option<String>,
            /// The same, by SGLang's name.
            pub ebnf: Option<String>,
            /// An object with one of the members `json`, `regex`, `choice`, `grammar`, `structural_tag` and
            /// `"json_object": true`. Part of vLLM's API.
            #[schema(value_type = Option<Object>)]
            pub structured_outputs: Option<Value>,
            /// The class in the queue: `auto`, `default` and `scale` are normal, `flex` is low and `priority` high. A
            /// key gets at most its `max_priority`. The answer, except that of completions, has the granted class.
            pub service_tier: Option<String>,
            /// The class in vLLM's form: below 0 is high, above 0 low. Refused together with `service_tier`.
            #[schema(default = 0)]
            pub priority: Option<i64>,
            /// A text of at most 256 bytes. Requests share cached prefixes only with requests of the same salt. Not
            /// part of OpenAI's API.
            pub cache_salt: Option<String>,
            /// A text of at most 256 bytes that names nodes in `/v1/kv/tree`. It changes nothing else, because all
            /// requests of a tenant share their common prefixes anyway.
            pub prompt_cache_key: Option<String>,
            /// `in_memory`, the default, or `24h`, which pins the prompt in the cache for 24 hours.
            pub prompt_cache_retention: Option<String>,
            /// `{"priority": "normal"}`, the default; `{"priority": "high", "ttl_s": 300}`, which pins the prompt in
            /// the cache for 1 to 86400 seconds, 300 by default; or `{"priority": "low"}` for prompts that are not sent
            /// again, which are evicted first and never written to disk. It overrides `prompt_cache_retention`, which
            /// overrides `cache_control`. Not part of OpenAI's API.
            pub cache_retention: Option<CacheRetention>,
            /// If false, no tokens are drafted, which changes only the speed. Not part of OpenAI's API.
            #[schema(default = true)]
            pub speculation: Option<bool>,
        } }

        impl $name {
            /// Returns the fields that name the model and its adapter.
            pub fn names(&self) -> Named<'_> {
                Named {
                    model: self.model.as_deref(),
                    adapter_id: self.adapter_id.as_deref(),
                    lora: self.lora.as_deref().unwrap_or_default(),
                }
            }

            /// Takes the generation parameters out of the body, except for those of the grammar.
            pub fn generation_params(&mut self) -> Result<RawParams, ApiError> {
                let repeat_penalty = self.repeat_penalty.map(|penalty| {
                    bounded("repeat_penalty", penalty, range::REQUEST_REPETITION_PENALTY)
                });
                let repeat_penalty = repeat_penalty.transpose()?.map(f64::from);
                if let Some(asked) = self.n_predict.filter(|asked| *asked < 1 && *asked != -1) {
                    let problem = format!("is {asked}, must be at least 1, or -1 for as many as fit");
                    return Err(ApiError::value("n_predict", problem));
                }
                let keep_stop = self.include_stop_str_in_output.unwrap_or(false);
                let numbers = self.numbers();
                Ok(RawParams {
                    takes_defaults: true,
                    numbers: trunkline_contract::RequestNumbers {
                        repetition_penalty: numbers.repetition_penalty.or(repeat_penalty),
                        ..numbers
                    },
                    seed: self.seed.map(|seed| seed.0),
                    min_tokens: self.min_tokens,
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    stops: self.stop.take().unwrap_or_default().0,
                    stop_text: if keep_stop { StopText::Include } else { StopText::Omit },
                    timeout: self.timeout,
                    tokens: TokenFields {
                        stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                        logit_bias: self.logit_bias.take().unwrap_or_default(),
                        allowed_token_ids: self.allowed_token_ids.take(),
                        skip_special_tokens: self.skip_special_tokens,
                        ..TokenFields::default()
                    },
                    avoid: AvoidFields {
                        bad_words: self.bad_words.take().unwrap_or_default(),
                        dry_multiplier: self.dry_multiplier,
                        dry_base: self.dry_base,
                        dry_allowed_length: self.dry_allowed_length,
                        dry_penalty_last_n: self.dry_penalty_last_n,
                        dry_sequence_breakers: self.dry_sequence_breakers.take(),
                    },
                    cache_salt: self.cache_salt.take(),
                    class: Wanted::from_openai(self.service_tier.as_deref(), self.priority)?,
                    speculation: self.speculation,
                    retention: RawRetention {
                        prompt_cache_key: self.prompt_cache_key.take(),
                        prompt_cache_retention: self.prompt_cache_retention.take(),
                        cache_retention: self.cache_retention.take(),
                    },
                    ..RawParams::default()
                })
            }

            /// Takes the fields that constrain the output out of the body.
            pub fn structured(&mut self) -> StructuredFields {
                StructuredFields {
                    response_format: self.response_format.take(),
                    guided_json: self.guided_json.take(),
                    guided_regex: self.guided_regex.take(),
                    guided_choice: self.guided_choice.take(),
                    guided_grammar: self.guided_grammar.take(),
                    grammar: self.grammar.take(),
                    ebnf: self.ebnf.take(),
                    structured_outputs: self.structured_outputs.take(),
                }
            }
        }
    };
}

pub(super) use body;
pub(crate) use generation_body;
