//! A model whose tokens are bytes. Token `n` below 256 is byte `n`; three control tokens follow. A second model has
//! fill-in-the-middle tokens in place of the last three bytes, which occur in no UTF-8.

use std::path::Path;

use serde_json::{Map, Value, json};

/// The token `<|start|>`, which begins a message.
pub const START: u32 = 256;
/// The token `<|end|>`, which ends an output.
pub const END: u32 = 257;
pub const PAD: u32 = 258;
/// The tokens `<|fim_prefix|>`, `<|fim_suffix|>`, `<|fim_middle|>` and `<|file_sep|>` of the second model.
pub const INFILL: [u32; 4] = [253, 254, 255, 252];
/// The number of tokens in the vocabulary.
pub const VOCAB_SIZE: u32 = 259;
/// The most tokens of prompt and output.
pub const CONTEXT: u32 = 8192;

const INFILL_NAMES: [&str; 4] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"];
const CONTROL: [(&str, u32); 3] = [("<|start|>", START), ("<|end|>", END), ("<|pad|>", PAD)];

/// Renders `<|start|>role\ncontent<|end|>` for each message, then `<|start|>assistant\n`. The variables for reasoning
/// are rendered first. With an effort, the reasoning of each message precedes it.
const TEMPLATE: &str = "{% if enable_thinking is defined %}[thinking {{ enable_thinking | tojson }}]{% endif %}\
                        {% if reasoning_effort is defined %}[effort {{ reasoning_effort }}]{% endif %}\
                        {% for message in messages %}\
                        {% if reasoning_effort is defined and message.reasoning_content is defined %}\
                        [reasoning {{ message.reasoning_content }}]{% endif %}\
                        {{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>' }}\
                        {% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}";

/// Returns the tokens of a text.
pub fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Returns the tokens of a chat with one user message, as the template renders it.
pub fn prompt_of(user: &str) -> Vec<u32> {
    [vec![256], bytes("user\n"), bytes(user), vec![END, 256], bytes("assistant\n")].concat()
}

/// Returns the printable characters by which GPT-2's vocabulary represents bytes.
fn byte_names() -> Vec<String> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    let name = |b: u32| {
        let point = if printable(b) {
            b
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(point).unwrap().to_string()
    };
    (0..256).map(name).collect()
}

/// Writes the model's text files to a folder.
pub fn write_model(folder: &Path) {
    let vocab: Map<String, Value> =
        byte_names().into_iter().enumerate().map(|(id, name)| (name, json!(id))).collect();
    let added: Vec<Value> = CONTROL
        .iter()
        .map(|(content, id)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    let write = |name: &str, value: Value| std::fs::write(folder.join(name), value.to_string()).unwrap();
    write("tokenizer.json", tokenizer);
    write(
        "config.json",
        json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT, "bos_token_id": 256, "eos_token_id": END}),
    );
    write(
        "tokenizer_config.json",
        json!({"chat_template": TEMPLATE, "eos_token": "<|end|>", "pad_token": "<|pad|>"}),
    );
    write("generation_config.json", json!({"eos_token_id": END}));
}

/// Writes the text files of the model with fill-in-the-middle tokens. Like Qwen's, they are no control tokens.
pub fn write_infill_model(folder: &Path) {
    write_model(folder);
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let names = byte_names();
    for (id, name) in INFILL.iter().zip(INFILL_NAMES) {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        vocab.remove(&names[*id as usize]).unwrap();
        vocab.insert(name.to_owned(), json!(id));
        let mut token = tokenizer["added_tokens"][0].clone();
        (token["id"], token["content"], token["special"]) = (json!(id), json!(name), json!(false));
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    }
    std::fs::write(path, tokenizer.to_string()).unwrap();
}
