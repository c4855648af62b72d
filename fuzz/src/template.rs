//! Chat templates, which are part of models. Any source must be compiled or refused, and any chat rendered or refused,
//! in bounded time and memory.

use serde_json::{Map, Value, json};
use trunkline_text::{ChatMessage, ChatRequest, ChatTemplates, MAX_RENDERED_BYTES};

/// Runs an input that consists of the template's source, a zero byte, and the chat's variables as JSON.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (source, kwargs) = text.split_once('\0').unwrap_or((&text, ""));
    let variables = Map::from_iter([("bos_token".to_owned(), Value::from("<s>"))]);
    let kwargs = match serde_json::from_str(kwargs) {
        Ok(Value::Object(kwargs)) => kwargs,
        _ => Map::new(),
    };
    let Ok(templates) = ChatTemplates::new(vec![("default".into(), source.into())], variables) else {
        return;
    };
    let chat = ChatRequest {
        messages: vec![ChatMessage::new("system", "be brief"), ChatMessage::new("user", "hi {{ x }}")],
        add_generation_prompt: true,
        tools: vec![json!({"type": "function", "function": {"name": "f", "parameters": {}}})],
        kwargs,
        ..ChatRequest::default()
    };
    if let Ok(rendered) = templates.render(&chat) {
        assert!(rendered.len() <= MAX_RENDERED_BYTES, "{} bytes", rendered.len());
        assert_eq!(templates.render(&chat).ok(), Some(rendered), "the same chat gives the same prompt");
    }
}

/// Returns templates like those of models.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}\0{}",
        "{%- if tools is defined and tools %}{{ tools | tojson(indent=2) }}{% endif %}{% set ns = namespace(n=0) %}\
         {% for m in messages %}{% set ns.n = ns.n + 1 %}{{ m.content | trim }}{{ loop.index0 }}{% endfor %}{{ ns.n }}\0{}",
        "{{ bos_token }}{% macro one(m) -%}{{ m.role.title() }}: {{ m.content.split(' ')[0] }}{%- endmacro %}\
         {% for m in messages[1:] %}{{ one(m) }}{% else %}{{ raise_exception('none') }}{% endfor %}\
         {{ strftime_now('%d %b %Y') }}\0{\"enable_thinking\":false}",
        "{% for i in range(10) %}{{ 'x' * i }}{{ '%s' | format(i) }}{% if i is divisibleby 2 %}{% break %}{% endif %}{% endfor %}\0",
    ]
    .map(Vec::from)
    .to_vec()
}

/// Returns fragments of the language, many of them expensive.
pub fn words() -> Vec<String> {
    [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "{% for x in range(99999999) %}",
        "{% endfor %}",
        "{% set a = a + a %}",
        "| length",
        "| tojson",
        "| join(',')",
        "* 99999999",
        "~",
        ".items()",
        "[::-1]",
        "loop.previtem",
        "namespace()",
        "cycler",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "strftime_now('%Y%n%Q')",
        "| batch(0)",
        "| indent(999999999)",
    ]
    .map(String::from)
    .to_vec()
}
