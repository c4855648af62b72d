//! Structured output in every dialect.

use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_generation::model::ReplyStyle;
use trunkline_reply::{ReasoningMarks, ToolFormat};

use crate::support::{END, Router, START, ShardPlan, bytes, user, with};

const CHAT: &str = "/v1/chat/completions";

/// Starts a router whose shard would not follow the grammar on its own.
async fn router() -> Router {
    Router::saying("no json at all").await
}

fn schema() -> Value {
    json!({
        "type": "object", "properties": {"answer": {"enum": ["first", "fourth"]}, "ok": {"type": "boolean"}},
        "required": ["answer", "ok"], "additionalProperties": false,
    })
}

fn chat(fields: Value) -> Value {
    with(json!({"messages": user("x"), "max_tokens": 2000}), fields)
}

#[track_caller]
fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(["first", "fourth"].contains(&value["answer"].as_str().unwrap()), "{text}");
    assert!(value["ok"].is_boolean() && value.as_object().unwrap().len() == 2, "{text}");
}

#[tokio::test]
async fn every_field_of_openai_and_vllm_constrains_the_output() {
    let router = router().await;
    let strict =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema()}});
    for fields in [
        json!({"response_format": strict}),
        json!({"response_format": {"type": "json_object", "value": schema()}}),
        json!({"guided_json": schema()}),
        json!({"guided_json": schema().to_string()}),
        json!({"structured_outputs": {"json": schema()}}),
        json!({"response_format": strict, "logprobs": true}),
    ] {
        let answer = router.post(CHAT, &chat(fields.clone())).await.ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{fields}");
        check(answer["choices"][0]["message"]["content"].as_str().unwrap());
        let body = with(json!({"prompt": "x", "max_tokens": 500}), with(fields, json!({"logprobs": null})));
        let answer = router.post("/v1/completions", &body).await.ok();
        check(answer["choices"][0]["text"].as_str().unwrap());
    }
    let is_abc = |text: &str| text.len() == 3 && text.chars().all(|c| ('a'..='c').contains(&c));
    let is_choice = |text: &str| ["yes", "no"].contains(&text);
    let is_framed = |text: &str| text == "abbbc";
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let is_tagged = |text: &str| text.starts_with("<f>{") && text.ends_with("}</f>");
    let tag =
        json!({"begin": "<f>", "content": {"type": "json_schema", "json_schema": schema()}, "end": "</f>"});
    let tag = with(json!({"type": "tag"}), tag);
    let cases: [(Value, Check<'_>); 9] = [
        (json!({"guided_regex": "^[a-c]{3}$"}), &is_abc),
        (json!({"structured_outputs": {"regex": "[a-c]{3}"}}), &is_abc),
        (json!({"guided_choice": ["yes", "no"]}), &is_choice),
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), &is_choice),
        (json!({"guided_grammar": "start: \"a\" \"b\"~3 \"c\""}), &is_framed),
        (json!({"ebnf": "root ::= \"a\" b{3} \"c\"\nb ::= [b]"}), &is_framed),
        (json!({"grammar": "root ::= \"a\" b{3} \"c\"\nb ::= [b]"}), &is_framed),
        (json!({"response_format": {"type": "structural_tag", "format": tag}}), &is_tagged),
        (json!({"structured_outputs": {"structural_tag": {"format": tag}}}), &is_tagged),
    ];
    for (fields, is_right) in cases {
        let answer = router.post(CHAT, &chat(fields.clone())).await.ok();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(is_right(text), "{fields}: {text}");
    }
}

#[tokio::test]
async fn streams_and_several_choices_are_constrained() {
    let router = router().await;
    let fields = json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema()}}, "n": 3,
                        "stream": true});
    let events = router.post(CHAT, &chat(fields)).await.events();
    let mut texts = vec![String::new(); 3];
    for choice in events.iter().filter_map(|event| event["choices"].as_array()).flatten() {
        texts[choice["index"].as_u64().unwrap() as usize]
            .push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    texts.iter().for_each(|text| check(text));
}

#[tokio::test]
async fn tgis_grammar_constrains_the_output() {
    let router = router().await;
    for grammar in [
        json!({"type": "json", "value": schema()}),
        json!({"type": "json_schema", "value": {"name": "x", "schema": schema()}}),
    ] {
        let body = json!({"inputs": "x", "parameters": {"grammar": grammar, "max_new_tokens": 500, "details": true}});
        let answer = router.post("/generate", &body).await.ok();
        check(answer["generated_text"].as_str().unwrap());
        assert_eq!(answer["details"]["finish_reason"], "eos_token");
    }
    let body = json!({"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "[0-9]{4}"}}});
    let text = router.post("/generate", &body).await.ok()["generated_text"].as_str().unwrap().to_owned();
    assert!(text.len() == 4 && text.chars().all(|c| c.is_ascii_digit()), "{text}");
}

#[tokio::test]
async fn anthropics_fields_constrain_the_output() {
    let router = router().await;
    let format = json!({"type": "json_schema", "schema": schema()});
    for fields in [json!({"output_format": format}), json!({"output_config": {"format": format}})] {
        let answer = router.post("/v1/messages", &chat(fields)).await.ok();
        assert_eq!(answer["stop_reason"], "end_turn");
        check(answer["content"][0]["text"].as_str().unwrap());
    }
}

#[tokio::test]
async fn responses_and_messages_call_required_tools() {
    let router = router().await;
    let format = json!({"type": "json_schema", "name": "x", "schema": schema()});
    let answer = router.post("/v1/responses", &json!({"input": "x", "text": {"format": format}})).await.ok();
    check(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    assert_eq!(answer["text"]["format"], format);
    let body = json!({"input": "x", "tools": [{"type": "function", "name": "pick", "parameters": schema()}],
                      "tool_choice": "required", "parallel_tool_calls": false});
    let answer = router.post("/v1/responses", &body).await.ok();
    assert_eq!(answer["output"][0]["type"], "function_call", "{answer}");
    check(answer["output"][0]["arguments"].as_str().unwrap());
    let body = chat(json!({"tools": [{"name": "pick", "input_schema": schema()}],
                           "tool_choice": {"type": "tool", "name": "pick"}}));
    let answer = router.post("/v1/messages", &body).await.ok();
    assert_eq!(answer["content"][0]["type"], "tool_use");
    assert_eq!(answer["stop_reason"], "tool_use");
    check(&answer["content"][0]["input"].to_string());
}

#[tokio::test]
async fn required_and_named_tools_are_called_with_valid_arguments() {
    let router = router().await;
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let nested = json!({
        "$defs": {"answer": {"enum": ["first", "fourth"]}}, "type": "object",
        "properties": {"answer": {"$ref": "#/$defs/answer"}, "ok": {"type": "boolean"}},
        "required": ["answer", "ok"], "additionalProperties": false,
    });
    for (tools, choice, is_parallel) in [
        (json!([tool("pick", nested.clone())]), json!("required"), false),
        (json!([tool("pick", schema()), tool("take", nested.clone())]), json!("required"), false),
        (
            json!([tool("skip", json!({})), tool("take", nested.clone())]),
            json!({"type": "function", "function": {"name": "take"}}),
            true,
        ),
        (json!([tool("skip", json!({})), tool("take", nested)]), json!({"function": {"name": "take"}}), true),
    ] {
        let fields = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": is_parallel});
        let answer = router.post(CHAT, &chat(fields)).await.ok();
        let choice = &answer["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(calls.len(), 1, "{answer}");
        assert!(["pick", "take"].contains(&calls[0]["function"]["name"].as_str().unwrap()));
        check(calls[0]["function"]["arguments"].as_str().unwrap());
        assert!(choice["message"]["content"].is_null());
    }
}

#[tokio::test]
async fn a_required_call_that_is_cut_says_so_and_has_the_arguments_so_far() {
    let router = router().await;
    let parameters = json!({"type": "object", "properties": {"a": {"const": "x".repeat(3000)}},
                            "required": ["a"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "pick", "parameters": parameters}});
    let choice = json!({"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "pick"}}]}});
    let fields =
        json!({"tools": [tool], "tool_choice": choice, "max_tokens": 900, "parallel_tool_calls": false});
    let answer = router.post(CHAT, &chat(fields)).await.ok();
    let (reason, message) = (&answer["choices"][0]["finish_reason"], &answer["choices"][0]["message"]);
    assert_eq!(json!([reason, message["content"]]), json!(["length", null]), "{answer}");
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(arguments.contains('x') && serde_json::from_str::<Value>(arguments).is_err(), "{arguments}");
    let tool = json!({"name": "pick", "input_schema": parameters});
    let body =
        chat(json!({"tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
                           "max_tokens": 900}));
    let answer = router.post("/v1/messages", &body).await.ok();
    assert_eq!(
        json!([answer["stop_reason"], answer["content"][0]["type"]]),
        json!(["max_tokens", "tool_use"])
    );
    let tool = json!({"type": "function", "name": "pick", "parameters": parameters});
    let body = json!({"input": "x", "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
                      "max_output_tokens": 900});
    let answer = router.post("/v1/responses", &body).await.ok();
    assert_eq!(
        json!([answer["status"], answer["output"][0]["type"]]),
        json!(["incomplete", "function_call"])
    );
    assert_eq!(answer["output"][0]["status"], "incomplete");
}

#[tokio::test]
async fn a_reply_follows_its_schema_or_calls_a_tool() {
    let tool = json!({"type": "function", "function": {"name": "pick", "parameters": schema()}});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema()}});
    let fields = json!({"tools": [tool], "response_format": format});
    let arguments = "{\"answer\":\"first\",\"ok\":true}";
    let call = format!("<tool_call>\n{{\"name\":\"pick\",\"arguments\":{arguments}}}\n</tool_call>");
    for said in [&call, arguments, "no json at all", "<tool_call>no json at all"] {
        let router = Router::saying(said).await;
        let answer = router.post(CHAT, &chat(fields.clone())).await.ok();
        let message = &answer["choices"][0]["message"];
        if said.starts_with('<') {
            let function = &message["tool_calls"][0]["function"];
            assert_eq!(json!([function["name"], message["content"]]), json!(["pick", null]), "{answer}");
            check(function["arguments"].as_str().unwrap());
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        } else {
            assert_eq!(message.get("tool_calls"), None, "{answer}");
            check(message["content"].as_str().unwrap());
        }
        // Without the permission to call, the reply follows the schema.
        let none = with(chat(fields.clone()), json!({"tool_choice": "none"}));
        check(router.post(CHAT, &none).await.ok()["choices"][0]["message"]["content"].as_str().unwrap());
    }
}

#[tokio::test]
async fn each_format_with_marks_has_calls_beside_a_schema() {
    let parameters = json!({"type": "object", "required": ["note", "mode", "days"], "additionalProperties": false,
        "properties": {"note": {"type": "string"}, "mode": {"enum": ["fast", "safe"]},
                       "unit": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
        "$defs": {"days": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}}});
    let tools = json!([{"type": "function", "function": {"name": "other"}},
        {"type": "function", "function": {"name": "plan", "strict": true, "parameters": parameters}}]);
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema()}});
    let fields = json!({"tools": tools, "response_format": format});
    let qwen = "<tool_call>\n<function=plan>\n<parameter=note>\na \"b\"\n\n</parameter>\n\
                <parameter=mode>\nsafe\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n</function>\n\
                </tool_call>";
    let glm = "<tool_call>plan\n<arg_key>note</arg_key>\n<arg_value>a \"b\"\n</arg_value>\n\
               <arg_key>mode</arg_key>\n<arg_value>safe</arg_value>\n\
               <arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>";
    let list = "[{\"name\": \"plan\", \"arguments\": {\"note\": \"a \\\"b\\\"\\n\", \"mode\": \"safe\", \"days\": [1, 2]}}]";
    let named = "{\"note\": \"a \\\"b\\\"\\n\", \"mode\": \"safe\", \"days\": [1, 2]}";
    let kimi = format!(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.plan:0<|tool_call_argument_begin|>{named}\
         <|tool_call_end|>"
    );
    let deepseek =
        format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>plan<｜tool▁sep｜>{named}<｜tool▁call▁end｜>");
    let (phi, command) =
        (format!("<|tool_call|>{list}<|/tool_call|>"), format!("<|START_ACTION|>{list}<|END_ACTION|>"));
    for (format, said) in [
        (ToolFormat::QWEN3_CODER, qwen),
        (ToolFormat::GLM, glm),
        (ToolFormat::PHI4, &phi),
        (ToolFormat::COMMAND, &command),
        (ToolFormat::KIMI, &kimi),
        (ToolFormat::DEEPSEEK, &deepseek),
    ] {
        let style = ReplyStyle { tools: Some(format), ..ReplyStyle::default() };
        for (said, is_right) in
            [(said, true), (&said.replace("safe", "wild").replace("2]", "2,3]"), false), ("no json", false)]
        {
            let router = Router::start_with_replies(ShardPlan::saying(said), style).await;
            let answer = router.post(CHAT, &chat(fields.clone())).await.ok();
            let message = &answer["choices"][0]["message"];
            if !said.starts_with('<') {
                check(message["content"].as_str().unwrap());
                continue;
            }
            let function = &message["tool_calls"][0]["function"];
            assert_eq!(json!([function["name"], message["content"]]), json!(["plan", null]), "{answer}");
            let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            if is_right {
                assert_eq!(arguments, json!({"note": "a \"b\"\n", "mode": "safe", "days": [1, 2]}));
            }
            assert!(["fast", "safe"].contains(&arguments["mode"].as_str().unwrap()), "{arguments}");
            assert!((1..=2).contains(&arguments["days"].as_array().unwrap().len()), "{arguments}");
        }
    }
}

#[tokio::test]
async fn costly_grammars_are_refused() {
    let router = router().await;
    let format = |schema: Value| {
        chat(json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}))
    };
    let object = |i: u32| json!({"type": "object", "properties": {format!("p{i}"): {"type": "string"}}});
    let alternatives: Vec<Value> =
        (0..24).map(|i| json!({"anyOf": [object(2 * i), object(2 * i + 1)]})).collect();
    let product = json!({ "allOf": alternatives });
    let endless = json!({"type": "string", "minLength": 1_000_000_000, "pattern": "^(a|aa)+$"});
    // The grammar fails only deep inside an output, so compiling it finds nothing.
    let late = json!({"type": "object", "properties": {"a": {"const": "x".repeat(60)}, "b": endless},
                      "required": ["a", "b"], "additionalProperties": false});
    for (body, code, words) in [
        (format(json!({"enum": vec!["x"; 5000]})), "schema_too_large", "--max-schema-properties"),
        (format(product), "schema_too_complex", "`response_format`: the grammar is too complex"),
        (format(endless.clone()), "schema_too_complex", "some tokens into an output: lexer error"),
        (format(late), "grammar_failed", "cannot continue"),
    ] {
        let message = router.post(CHAT, &body).await.fails(400, code);
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn every_event_of_tgi_has_a_token_also_where_the_grammar_ends_the_output() {
    let router = router().await;
    let parameters = json!({"grammar": {"type": "regex", "value": "ab"}, "details": true});
    let body = json!({"inputs": "x", "parameters": parameters});
    let events = router.post("/generate_stream", &body).await.events();
    let ids: Vec<&Value> = events.iter().map(|event| &event["token"]["id"]).collect();
    assert_eq!(json!(ids), json!([97, 98, END]));
    let last = events.last().unwrap();
    assert_eq!(json!([last["token"]["special"], last["generated_text"]]), json!([true, "ab"]));
    assert_eq!(last["details"]["finish_reason"], "eos_token");
}

#[tokio::test]
async fn a_grammar_starts_after_the_reasoning_that_the_prompt_opened() {
    for marks in [ReasoningMarks::Think, ReasoningMarks::Mistral] {
        let plan = ShardPlan::saying(&format!("{{ hm {}no json at all", marks.close()));
        let style = ReplyStyle { reasons: true, marks, ..ReplyStyle::default() };
        let router = Router::start_with_replies(plan.clone(), style).await;
        let asked = |fields: Value| {
            let begun =
                json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": marks.open()}]);
            let continues =
                json!({"messages": begun, "continue_final_message": true, "add_generation_prompt": false});
            with(chat(fields), continues)
        };
        for fields in [json!({"guided_json": schema()}), json!({"guided_json": schema(), "logprobs": true})] {
            let answer = router.post(CHAT, &asked(fields)).await.ok();
            let message = &answer["choices"][0]["message"];
            assert_eq!(message["reasoning_content"], "{ hm ", "{answer}");
            check(message["content"].as_str().unwrap());
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        }
        // Calls come after the reasoning too.
        let tool = json!({"type": "function", "function": {"name": "look_up", "parameters": schema()}});
        let answer =
            router.post(CHAT, &asked(json!({"tools": [tool], "tool_choice": "required"}))).await.ok();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "{ hm ");
        check(message["tool_calls"][0]["function"]["arguments"].as_str().unwrap());
        // A reply that does not end its reasoning has no content and is incomplete.
        let endless = asked(json!({"guided_json": schema(), "max_tokens": 3}));
        let answer = router.post(CHAT, &endless).await.ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        // Without reasoning the grammar applies from the first token.
        let router = Router::with(plan).await;
        let answer = router.post(CHAT, &asked(json!({"guided_json": schema()}))).await.ok();
        check(answer["choices"][0]["message"]["content"].as_str().unwrap());
    }
}

/// Writes a message of reasoning if `thought` has one, then a message with this header.
fn harmony(thought: Option<&str>, header: &str) -> ShardPlan {
    let mut tokens = Vec::new();
    if let Some(thought) = thought {
        tokens = [bytes("<|channel|>analysis<|message|>"), bytes(thought), vec![END, START]].concat();
        tokens.extend(bytes("assistant"));
    }
    tokens.extend(bytes(&format!("{header}no json at all")));
    ShardPlan { script: Arc::new(move |_| tokens.clone()), ..ShardPlan::default() }
}

#[tokio::test]
async fn messages_of_reasoning_precede_the_grammar_in_the_harmony_format() {
    let marks = ReasoningMarks::Harmony;
    let style =
        ReplyStyle { reasons: true, marks, tools: Some(ToolFormat::HARMONY), ..ReplyStyle::default() };
    for thought in [Some("{ hm "), None] {
        let router = Router::start_with_replies(harmony(thought, "<|channel|>final<|message|>"), style).await;
        for fields in [json!({"guided_json": schema()}), json!({"guided_json": schema(), "logprobs": true})] {
            let answer = router.post(CHAT, &chat(fields)).await.ok();
            let message = &answer["choices"][0]["message"];
            assert_eq!(message["reasoning_content"].as_str(), thought, "{answer}");
            check(message["content"].as_str().unwrap());
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        }
        let streamed = chat(json!({"guided_json": schema(), "stream": true}));
        let events = router.post(CHAT, &streamed).await.events();
        let joined = |field: &str| -> String {
            let parts = events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str());
            parts.collect()
        };
        assert_eq!(joined("reasoning_content"), thought.unwrap_or_default());
        check(&joined("content"));
        // A reply that continues a message has no header.
        let begun =
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer: "}]);
        let continues =
            json!({"messages": begun, "continue_final_message": true, "add_generation_prompt": false});
        let answer = router.post(CHAT, &with(chat(json!({"guided_json": schema()})), continues)).await.ok();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message.get("reasoning_content"), None);
        check(message["content"].as_str().unwrap());
    }
}

#[tokio::test]
async fn required_calls_are_messages_in_the_harmony_format() {
    let marks = ReasoningMarks::Harmony;
    let style =
        ReplyStyle { reasons: true, marks, tools: Some(ToolFormat::HARMONY), ..ReplyStyle::default() };
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let other = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let tools = json!([tool("wait", other), tool("look_up", schema())]);
    let named = json!({"type": "function", "function": {"name": "look_up"}});
    let header = "<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>";
    for thought in [Some("{ hm "), None] {
        let router = Router::start_with_replies(harmony(thought, header), style).await;
        for choice in [json!("required"), named.clone()] {
            let fields = json!({"tools": tools, "tool_choice": choice});
            let answer = router.post(CHAT, &chat(fields.clone())).await.ok();
            let message = &answer["choices"][0]["message"];
            assert_eq!((message["reasoning_content"].as_str(), &message["content"]), (thought, &Value::Null));
            let calls = message["tool_calls"].as_array().unwrap();
            assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("look_up")));
            check(calls[0]["function"]["arguments"].as_str().unwrap());
            let events = router.post(CHAT, &with(chat(fields), json!({"stream": true}))).await.events();
            let deltas = || events.iter().filter_map(|event| event["choices"][0].get("delta"));
            let arguments =
                deltas().filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str());
            check(&arguments.collect::<String>());
            let reasoning: String =
                deltas().filter_map(|delta| delta["reasoning_content"].as_str()).collect();
            assert_eq!(reasoning, thought.unwrap_or_default());
            assert!(deltas().all(|delta| delta["content"].as_str().is_none_or(str::is_empty)), "{events:?}");
        }
    }
    // Beside a format, the header decides between a call and the format.
    for (header, is_call) in [(header, true), ("<|channel|>final<|message|>", false)] {
        let router = Router::start_with_replies(harmony(Some("hm"), header), style).await;
        let fields = json!({"tools": tools, "guided_json": schema()});
        let answer = router.post(CHAT, &chat(fields)).await.ok();
        let message = &answer["choices"][0]["message"];
        assert_eq!(
            (message["reasoning_content"].as_str(), message["content"].is_null()),
            (Some("hm"), is_call)
        );
        let arguments = &message["tool_calls"][0]["function"]["arguments"];
        check(if is_call { arguments } else { &message["content"] }.as_str().unwrap());
    }
    // A call precedes nothing else, also where the reply would continue a message.
    let router = Router::start_with_replies(harmony(None, header), style).await;
    let begun = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "I look."}]);
    let continues = json!({
        "messages": begun, "continue_final_message": true, "add_generation_prompt": false, "tools": tools,
        "tool_choice": "required",
    });
    let answer = router.post(CHAT, &with(chat(json!({})), continues)).await.ok();
    check(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap());
}

#[tokio::test]
async fn a_grammar_is_compiled_once() {
    let router = router().await;
    for num_hits in 0..3 {
        let answer = router.post(CHAT, &chat(json!({"guided_json": schema()}))).await.ok();
        check(answer["choices"][0]["message"]["content"].as_str().unwrap());
        assert_eq!(router.metric("trunkline_grammar_hits_total").await, f64::from(num_hits));
        assert_eq!(router.metric("trunkline_grammar_compile_seconds_count").await, 1.0);
    }
    // The same text as another kind of grammar is compiled separately.
    for (fields, num_compiled) in [
        (json!({"guided_regex": "ab"}), 2.0),
        (json!({"guided_choice": ["ab"]}), 3.0),
        (json!({"guided_regex": "ab"}), 3.0),
    ] {
        let answer = router.post(CHAT, &chat(fields)).await.ok();
        assert_eq!(answer["choices"][0]["message"]["content"], "ab");
        assert_eq!(router.metric("trunkline_grammar_compile_seconds_count").await, num_compiled);
    }
    assert!(router.metric("trunkline_grammar_mask_seconds_count").await > 6.0);
}
