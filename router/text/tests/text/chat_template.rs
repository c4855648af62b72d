use serde::Deserialize;
use serde_json::{Map, Value, json};
use trunkline_text::parts::without_generation_tags;
use trunkline_text::{ChatMessage, ChatRequest, ChatTemplates, ErrorClass, TextError};

use crate::support::{fixture, smollm2, testdata};

/// The output of transformers for `testdata/templates/`, written by `make_fixtures.py`.
#[derive(Deserialize)]
struct Fixture {
    now_unix_s: i64,
    chats: Vec<Chat>,
    rendered: Vec<Rendered>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<Value>,
    add_generation_prompt: bool,
    #[serde(default)]
    kwargs: Map<String, Value>,
    /// The rendered text, in `smollm2.json`.
    text: Option<String>,
    ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Rendered {
    template: String,
    chat: usize,
    text: Option<String>,
    refused: Option<String>,
}

impl Chat {
    fn request(&self, now_unix_s: i64) -> ChatRequest {
        let messages = self.messages.iter().enumerate();
        ChatRequest {
            messages: messages.map(|(idx, message)| ChatMessage::from_json(idx, message).unwrap()).collect(),
            tools: self.tools.clone(),
            add_generation_prompt: self.add_generation_prompt,
            kwargs: self.kwargs.clone(),
            now_unix_s,
            ..ChatRequest::default()
        }
    }
}

fn templates(sources: &[(&str, &str)]) -> Result<ChatTemplates, TextError> {
    let owned = sources.iter().map(|(name, source)| (name.to_string(), source.to_string())).collect();
    let variables = json!({"bos_token": "<s>", "eos_token": "</s>"});
    ChatTemplates::new(owned, variables.as_object().unwrap().clone())
}

fn model_template(name: &str) -> ChatTemplates {
    let path = testdata("templates").join(format!("{name}.jinja"));
    templates(&[("default", &std::fs::read_to_string(path).unwrap())]).unwrap()
}

fn render(source: &str, chat: &ChatRequest) -> Result<String, TextError> {
    templates(&[("default", source)]).unwrap().render(chat)
}

fn hi() -> ChatRequest {
    ChatRequest { messages: vec![ChatMessage::new("user", "Hi")], ..ChatRequest::default() }
}

#[test]
fn templates_that_would_print_without_end_are_refused() {
    for source in [
        "{% set ns = namespace(n=0) %}{% set ns.n = ns %}{{ ns.n }}",
        "{% set ns = namespace(n=0) %}{% set ns.n = [{'a': ns}] %}{{ ns }}",
        "{% set ns = namespace(n=0) %}{% set ns.n = ns %}{{ ns | tojson }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = ns %}{% set ns.c = ns %}{{ ns }}",
        "{{ messages | tojson(indent=10000000000) }}",
        "{{ 'a\\nb' | indent(10000000000) }}",
        "{{ 'a\\nb' | indent(width=10000000000) }}",
    ] {
        assert!(matches!(render(source, &hi()), Err(TextError::TemplateFailed { .. })), "{source}");
    }
    let plain = "{% set ns = namespace(n=[1, {'a': 'b'}]) %}{{ ns }}{{ ns.n | tojson(indent=2) }}{{ 'a\nb' | indent(2) }}";
    assert_eq!(
        render(plain, &hi()).unwrap(),
        "{'n': [1, {'a': 'b'}]}[\n  1,\n  {\n    \"a\": \"b\"\n  }\n]a\n  b"
    );
}

#[test]
fn models_templates_render_as_in_transformers() {
    let fixture: Fixture = fixture("templates.json");
    assert!(fixture.rendered.len() >= 30);
    for Rendered { template, chat, text, refused } in &fixture.rendered {
        let got = model_template(template).render(&fixture.chats[*chat].request(fixture.now_unix_s));
        match (got, text, refused) {
            (Ok(got), Some(text), None) => assert_eq!(&got, text, "{template} over chat {chat}"),
            (Err(TextError::TemplateRefused { message }), None, Some(refused)) => {
                assert_eq!(&message, refused)
            }
            (got, ..) => panic!("{template} over chat {chat}: {got:?}, expected {text:?} or {refused:?}"),
        }
    }
}

#[test]
fn smollm2_prompts_equal_transformers() {
    #[derive(Deserialize)]
    struct Smollm2 {
        chats: Vec<Chat>,
    }
    for chat in fixture::<Smollm2>("smollm2.json").chats {
        let prompt = smollm2().encode_chat(&chat.request(0)).unwrap();
        assert_eq!(Some(prompt.text), chat.text);
        assert_eq!(Some(prompt.token_ids), chat.ids);
    }
}

/// Compares a conversation with tools, in each model's format, with a file for people to read.
#[test]
fn conversations_with_tools() {
    let fixture: Fixture = fixture("templates.json");
    let chat = fixture.chats[3].request(fixture.now_unix_s);
    for name in ["llama3", "qwen2.5", "qwen3", "mistral", "smollm3"] {
        let rendered = model_template(name).render(&chat).unwrap();
        let file = testdata("conversations").join(format!("{name}.txt"));
        assert_eq!(rendered, std::fs::read_to_string(&file).unwrap(), "{}", file.display());
    }
}

#[test]
fn tools_choose_their_template() {
    let both = templates(&[("default", "plain"), ("tool_use", "tools")]).unwrap();
    let only_default = templates(&[("default", "plain")]).unwrap();
    let only_other = templates(&[("rag", "other")]).unwrap();
    let with_tools = ChatRequest { tools: vec![json!({})], ..hi() };
    assert_eq!(both.render(&hi()).unwrap(), "plain");
    assert_eq!(both.render(&with_tools).unwrap(), "tools");
    assert_eq!(only_default.render(&with_tools).unwrap(), "plain");
    assert_eq!(only_other.render(&hi()).unwrap(), "other");
    assert_eq!(both.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    assert_eq!(both.source("tool_use"), Some("tools"));
    assert!(matches!(templates(&[]).unwrap().render(&hi()), Err(TextError::NoChatTemplate)));
}

#[test]
fn a_templates_message_is_passed_on() {
    let error = render("{{ raise_exception('roles must ' ~ 'alternate') }}", &hi()).unwrap_err();
    assert_eq!(error.to_string(), "the chat template refuses the messages: roles must alternate");
    assert_eq!(error.class(), ErrorClass::Request);
    // The message also passes from inside a macro and a loop.
    let nested = "{% macro no() %}{% for m in messages %}{{ raise_exception('no') }}{% endfor %}{% endmacro %}{{ no() }}";
    assert!(matches!(render(nested, &hi()), Err(TextError::TemplateRefused { message }) if message == "no"));
}

/// The part of Qwen3.5's template that writes messages.
const FIRST_SYSTEM_ONLY: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
    <|{{ m.role }}|>{{ m.content }}{% endfor %}";

#[test]
fn templates_tell_whether_they_take_later_system_messages() {
    let takes = |source: &str| templates(&[("default", source)]).unwrap().takes_later_system_messages();
    for (source, expected) in [
        (FIRST_SYSTEM_ONLY, false),
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", true),
        // The system message is written once, and later ones are left out.
        (
            "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}\
             {% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
            false,
        ),
        // Users and assistants must alternate.
        (
            "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
             {{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
            false,
        ),
        // It takes no conversation at all, so nothing is known.
        ("{{ raise_exception('no') }}", true),
    ] {
        assert_eq!(takes(source), expected, "{source}");
    }
    // The template for tools counts, too.
    let of_tools = templates(&[("default", "{{ messages }}"), ("tool_use", FIRST_SYSTEM_ONLY)]).unwrap();
    assert!(!of_tools.takes_later_system_messages());
    for (name, expected) in
        [("llama3", true), ("qwen2.5", true), ("qwen3", true), ("mistral", false), ("smollm3", false)]
    {
        assert_eq!(model_template(name).takes_later_system_messages(), expected, "{name}");
    }
}

#[test]
fn failures_name_their_position() {
    let error = render("line\n{{ messages[0].content + 5 }}", &hi()).unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateFailed { detail } if detail.contains("default:2")),
        "{error}"
    );
    for source in
        ["{{ missing.field }}", "{{ messages[0].content.no_such_method() }}", "{{ missing | tojson }}"]
    {
        assert!(matches!(render(source, &hi()), Err(TextError::TemplateFailed { .. })), "{source}");
    }
    let error = templates(&[("default", "{% if %}")]).unwrap_err();
    assert!(error.to_string().contains("chat template `default` does not compile"), "{error}");
}

#[test]
fn endless_work_and_output_are_cut_off() {
    let steps = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    assert!(matches!(render(steps, &hi()), Err(TextError::TemplateLimit { unit: "steps", .. })));
    let bytes = "{% for a in range(100) %}{{ 'x' * 1000000 }}{% endfor %}";
    assert!(matches!(render(bytes, &hi()), Err(TextError::TemplateLimit { unit: "bytes", .. })));
    let recursion = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(matches!(render(recursion, &hi()), Err(TextError::TemplateFailed { .. })));
}

#[test]
fn kwargs_reach_the_template_and_replace_nothing() {
    let kwargs = |value: Value| ChatRequest { kwargs: value.as_object().unwrap().clone(), ..hi() };
    let source = "{{ mood }} {{ bos_token }} {{ documents }} {{ tools }}";
    assert_eq!(render(source, &kwargs(json!({"mood": "gay"}))).unwrap(), "gay <s> None None");
    let error = render(source, &kwargs(json!({"messages": []}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`chat_template_kwargs.messages` is set by the server and cannot be replaced"
    );
}

#[test]
fn generation_tags_print_nothing_and_strip_alike() {
    let source = "a\n  {%- generation -%}\n  b{% endgeneration %}\n  {% generation %}\nc\n  {%- endgeneration %}\nd {{ '{% generation %}' }}";
    let stripped = "a\n  {%- if true -%}\n  b{% endif %}\n  {% if true %}\nc\n  {%- endif %}\nd {{ '{% generation %}' }}";
    let rewritten = without_generation_tags(source);
    assert!(
        rewritten.starts_with("a\n  {%- if true -%}\n  b{% endif %}\n  {% if true %}\nc\n  {%- endif %}\nd")
    );
    let plain = without_generation_tags(stripped);
    assert_eq!(render(&rewritten, &hi()).unwrap(), render(&plain, &hi()).unwrap());
    for unclosed in ["{%", "a {% generation", "%} {%", "{%}", "{%} %}"] {
        assert_eq!(without_generation_tags(unclosed), unclosed);
    }
}

#[test]
fn a_divisor_of_zero_fails_the_template_and_nothing_else() {
    let rendered = |test: &str| render(&format!("{{{{ {test} }}}}"), &hi());
    for (test, wanted) in
        [("6 is divisibleby 3", "True"), ("7 is divisibleby(3)", "False"), ("1.5 is divisibleby 0.5", "True")]
    {
        assert_eq!(rendered(test).unwrap(), wanted, "{test}");
    }
    for test in ["0 is divisibleby 0", "6 is divisibleby false", "messages|length is divisibleby 0"] {
        let error = rendered(test).unwrap_err();
        assert!(matches!(error, TextError::TemplateFailed { .. }), "{test}: {error}");
    }
}

#[test]
fn reasoning_is_called_thinking_where_a_template_knows_only_that_name() {
    let source = "{% for message in messages %}[{{ message.thinking }}|{{ message.content }}]{% endfor %}";
    let message = |message: Value| ChatMessage::from_json(0, &message).unwrap();
    let calls = json!([{"type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let messages = vec![
        message(json!({"role": "assistant", "content": "a", "reasoning_content": "r"})),
        message(json!({"role": "assistant", "reasoning_content": "r", "tool_calls": calls})),
        // GPT-OSS's template refuses reasoning here.
        message(json!({"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": calls})),
        message(json!({"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "t"})),
    ];
    let chat = ChatRequest { messages, ..ChatRequest::default() };
    let text = templates(&[("default", source)]).unwrap().render(&chat).unwrap();
    assert_eq!(text, "[r|a][r|][|a][t|a]");
    let both = format!("{source}{{{{ messages[0].reasoning_content }}}}");
    let text = templates(&[("default", &both)]).unwrap().render(&chat).unwrap();
    assert_eq!(text, "[|a][|][|a][t|a]r");
}

#[test]
fn arguments_are_text_where_a_template_appends_them_to_text() {
    let call =
        json!({"type": "function", "function": {"name": "f", "arguments": {"city": "Zürich", "n": [1.0]}}});
    let message = ChatMessage::from_json(0, &json!({"role": "assistant", "tool_calls": [call]})).unwrap();
    let chat = ChatRequest { messages: vec![message], ..ChatRequest::default() };
    let rendered = |source: &str| templates(&[("default", source)]).unwrap().render(&chat).unwrap();
    let loops =
        |item: &str| format!("{{% for call in messages[0].tool_calls %}}{{{{ {item} }}}}{{% endfor %}}");
    // As in the templates of DeepSeek R1 and V3.1.
    let text = rendered(&loops("'<sep>' + call['function']['arguments'] + '<end>'"));
    assert_eq!(text, "<sep>{\"city\": \"Zürich\", \"n\": [1.0]}<end>");
    assert_eq!(rendered(&loops("call['function']['arguments']['city']")), "Zürich");
}

#[test]
fn tools_are_in_the_system_message_where_a_template_expects_them_there() {
    // As in the template of Phi-4-mini.
    let source = "{% for message in messages %}{% if 'tools' in message %}{{ message['content'] }}<|tool|>\
                  {{ message['tools'] }}<|/tool|>{% else %}{{ message['content'] }}{% endif %}{% endfor %}";
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let rendered = |messages: Vec<ChatMessage>, tools: Vec<Value>| {
        let chat = ChatRequest { messages, tools, ..ChatRequest::default() };
        templates(&[("default", source)]).unwrap().render(&chat).unwrap()
    };
    let (system, user) = (ChatMessage::new("system", "Be brief."), ChatMessage::new("user", "Hi"));
    let tools = "<|tool|>[{\"name\": \"f\", \"parameters\": {}}]<|/tool|>";
    assert_eq!(
        rendered(vec![system.clone(), user.clone()], vec![tool.clone()]),
        format!("Be brief.{tools}Hi")
    );
    let own = "You are a helpful assistant with some tools.";
    assert_eq!(rendered(vec![user.clone()], vec![tool]), format!("{own}{tools}Hi"));
    assert_eq!(rendered(vec![system, user], Vec::new()), "Be brief.Hi");
}
