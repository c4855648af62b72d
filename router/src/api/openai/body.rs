//! The fields that `/v1/chat/completions` and `/v1/completions` have in common, in one list.

/// Defines the body of a request: the fields given here, and those that both routes have.
///
/// Not a struct inside the other: serde reads what is flattened twice, and errors would not name the field.
macro_rules! body {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$own_about:meta])* pub $own:ident: $kind:ty,)* }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$own_about])* pub $own: $kind,)*
            /// The served model's name, or nothing.
            pub model: Option<String>,
            /// 0 is greedy; default 1, or what the model's makers propose.
            #[schema(minimum = 0, maximum = 100)]
            pub temperature: Option<f64>,
            /// Keep the smallest set of tokens whose probability reaches it.
            #[schema(minimum = 0, maximum = 1)]
            pub top_p: Option<f64>,
            /// Keep the k likeliest; 0 or -1 keeps all.
            #[schema(minimum = -1)]
            pub top_k: Option<i64>,
            /// Drop tokens below this part of the likeliest one's probability.
            #[schema(minimum = 0, maximum = 1)]
            pub min_p: Option<f64>,
            /// Same seed, same output; random if absent.
            #[schema(value_type = Option<i64>)]
            pub seed: Option<Seed>,
            /// A string or a list of strings that end the output, and are not part of it.
            pub stop: Option<OneOrMany>,
            /// Keep the stop string in the output.
            pub include_stop_str_in_output: Option<bool>,
            /// Answer as server-sent events.
            pub stream: Option<bool>,
            /// Seconds that the request may take, from its arrival to its last token; not OpenAI's.
            #[schema(exclusive_minimum = 0, maximum = 86400)]
            pub timeout: Option<f64>,
            /// Only with `stream`.
            pub stream_options: Option<StreamOptions>,
            /// Subtracted from the logits of tokens that the output holds.
            #[schema(minimum = -2, maximum = 2)]
            pub presence_penalty: Option<f64>,
            /// Subtracted once per occurrence.
            #[schema(minimum = -2, maximum = 2)]
            pub frequency_penalty: Option<f64>,
            /// Divides the positive logits of tokens that prompt or output hold, multiplies the negative ones.
            #[schema(minimum = 0.01, maximum = 100)]
            pub repetition_penalty: Option<f64>,
            /// No end token before so many tokens.
            #[schema(minimum = 0)]
            pub min_tokens: Option<i64>,
            /// Go on after an end token.
            pub ignore_eos: Option<bool>,
            /// Keep the tokens whose information is nearest to the entropy, up to this probability.
            #[schema(exclusive_minimum = 0, maximum = 1)]
            pub typical_p: Option<f64>,
            /// Token ids as strings, and what is added to their logits, -100 to 100.
            #[schema(value_type = Option<HashMap<String, f64>>)]
            pub logit_bias: Option<LogitBias>,
            /// The only tokens that are sampled.
            pub allowed_token_ids: Option<Vec<i64>>,
            /// Tokens that end the output, and are not part of it. vLLM's, as the next four.
            pub stop_token_ids: Option<Vec<i64>>,
            /// False: control tokens have text in the output.
            pub skip_special_tokens: Option<bool>,
            /// Keep so many last tokens of the prompt; -1: as many as fit.
            #[schema(minimum = -1)]
            pub truncate_prompt_tokens: Option<i64>,
            /// Report logprobs of the prompt, with so many of the likeliest tokens in each place; not with `stream`.
            #[schema(minimum = 0, maximum = 20)]
            pub prompt_logprobs: Option<PromptLogprobsCount>,
            /// What the output is: `{"type": "text"}`, `{"type": "json_object"}`, or
            /// `{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}`.
            #[schema(value_type = Option<Object>)]
            pub response_format: Option<Value>,
            /// The output validates under this JSON schema. vLLM's, as the next four.
            #[schema(value_type = Option<Object>)]
            pub guided_json: Option<Value>,
            /// The output as a whole matches this regular expression.
            pub guided_regex: Option<String>,
            /// The output is one of these.
            pub guided_choice: Option<Vec<String>>,
            /// The output is of this Lark grammar.
            pub guided_grammar: Option<String>,
            /// One of the four: `json`, `regex`, `choice` or `grammar`.
            #[schema(value_type = Option<Object>)]
            pub structured_outputs: Option<Value>,
            /// Class in the queue: `auto`, `default`, `flex` or `priority`. The answer says which it got.
            pub service_tier: Option<String>,
            /// The same as vLLM has it: below 0 before others, above 0 after them. Not beside `service_tier`.
            pub priority: Option<i64>,
            /// Requests share cached prefixes only with those of the same salt.
            pub cache_salt: Option<String>,
            /// OpenAI's grouping of requests: shown in `/v1/kv/tree`, which finds nodes by it.
            pub prompt_cache_key: Option<String>,
            /// `in_memory`, the default, or `24h`: the prompt is pinned in the cache for so long.
            pub prompt_cache_retention: Option<String>,
            /// The same in our own words.
            pub cache_retention: Option<CacheRetention>,
        }

        impl $name {
            /// What it asks for in fields that both routes have, but for the grammar; taken out of it.
            pub fn shared_params(&mut self) -> Result<RawParams, ApiError> {
                let keep_stop = self.include_stop_str_in_output.unwrap_or(false);
                Ok(RawParams {
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    seed: self.seed.map(|seed| seed.0),
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    repetition_penalty: self.repetition_penalty,
                    min_tokens: self.min_tokens,
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    stops: self.stop.take().unwrap_or_default().0,
                    stop_text: Some(if keep_stop { StopText::Include } else { StopText::Omit }),
                    typical_p: self.typical_p,
                    tokens: TokenFields {
                        stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                        logit_bias: self.logit_bias.take().unwrap_or_default(),
                        allowed_token_ids: self.allowed_token_ids.take(),
                        prompt_logprobs: None,
                        skip_special_tokens: self.skip_special_tokens,
                        truncate_prompt_tokens: self.truncate_prompt_tokens,
                    },
                    cache_salt: self.cache_salt.take(),
                    class: Wanted::from_openai(self.service_tier.as_deref(), self.priority)?,
                    watermark: false,
                    retention: RawRetention {
                        prompt_cache_key: self.prompt_cache_key.take(),
                        prompt_cache_retention: self.prompt_cache_retention.take(),
                        cache_retention: self.cache_retention.take(),
                    },
                    ..RawParams::default()
                })
            }

            /// What it asks the output to be; taken out of it.
            pub fn structured(&mut self) -> StructuredFields {
                StructuredFields {
                    response_format: self.response_format.take(),
                    guided_json: self.guided_json.take(),
                    guided_regex: self.guided_regex.take(),
                    guided_choice: self.guided_choice.take(),
                    guided_grammar: self.guided_grammar.take(),
                    structured_outputs: self.structured_outputs.take(),
                }
            }
        }
    };
}

pub(super) use body;
