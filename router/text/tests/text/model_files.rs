use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use trunkline_text::parts::tokenizer_from_gguf;
use trunkline_text::{
    ChatMessage, ChatRequest, EncodeSpecial, GenerationDefaults, GgufMetadata, ModelText, SpecialToken,
    SpecialTokens, TextError,
};

use crate::support::{smollm2, smollm2_path, spm, testdata};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Creates a folder with a tokenizer and a minimal config.
    fn with_tokenizer() -> Self {
        let folder = Self::new();
        fs::copy(testdata("spm_tokenizer.json"), folder.path("tokenizer.json")).unwrap();
        folder.write(
            "config.json",
            json!({"model_type": "llama", "max_position_embeddings": 4096, "eos_token_id": 2}),
        );
        folder
    }

    fn write(&self, file: &str, content: Value) {
        self.write_text(file, &content.to_string());
    }

    fn write_text(&self, file: &str, content: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn load(&self) -> Result<ModelText, TextError> {
        ModelText::load(self.0.path())
    }
}

fn token(id: u32, text: &str) -> Option<SpecialToken> {
    Some(SpecialToken { id, text: text.to_owned() })
}

#[test]
fn smollm2_says_what_it_is() {
    let model = smollm2();
    assert_eq!(model.architecture, "llama");
    assert_eq!(model.name.as_deref(), Some("Smollm2 135M 8k Lc100K Mix1 Ep2"));
    assert_eq!(model.max_context_tokens, Some(8192));
    assert_eq!(model.tokenizer.vocab_size(), 49_152);
    assert_eq!(model.end_token_ids, [0, 2]);
    assert_eq!(model.prefix_ids, [0u32; 0]);
    let expected = SpecialTokens {
        bos: token(1, "<|im_start|>"),
        eos: token(2, "<|im_end|>"),
        unk: token(0, "<|endoftext|>"),
        pad: token(2, "<|im_end|>"),
    };
    assert_eq!(model.special_tokens, expected);
    assert_eq!(model.chat_templates.as_ref().unwrap().names().collect::<Vec<_>>(), ["default"]);
    assert_eq!(model.chat_template_problem, None);
}

#[test]
fn sentence_piece_prompts_begin_with_bos_once() {
    let model = spm();
    assert_eq!(model.prefix_ids, [1]);
    assert_eq!(model.end_token_ids, [2]);
    let ids = model.encode_prompt("the").unwrap();
    assert_eq!(ids[0], 1);
    assert_eq!(model.encode_prompt("<s>the").unwrap(), ids);
}

#[test]
fn a_folder_is_loaded_with_all_its_files() {
    let folder = Folder::with_tokenizer();
    folder.write(
        "tokenizer_config.json",
        json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "add_bos_token": true,
               "model_max_length": 5, "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ sep_token }}"}),
    );
    folder.write(
        "special_tokens_map.json",
        json!({"bos_token": "wrong", "sep_token": "|", "unk_token": "<unk>"}),
    );
    folder.write(
        "generation_config.json",
        json!({"eos_token_id": [260, 2, 7], "do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20,
               "min_p": 0.05, "repetition_penalty": 1.1, "max_new_tokens": 99}),
    );
    let model = folder.load().unwrap();
    assert_eq!(model.architecture, "llama");
    assert_eq!(model.max_context_tokens, Some(4096));
    assert_eq!(model.end_token_ids, [2, 7, 260]);
    assert_eq!(model.prefix_ids, [1]);
    let expected =
        SpecialTokens { bos: token(1, "<s>"), eos: token(2, "</s>"), unk: token(0, "<unk>"), pad: None };
    assert_eq!(model.special_tokens, expected);
    let defaults = GenerationDefaults {
        do_sample: Some(true),
        temperature: Some(0.6),
        top_p: Some(0.9),
        top_k: Some(20),
        min_p: Some(0.05),
        repetition_penalty: Some(1.1),
        max_new_tokens: Some(99),
    };
    assert_eq!(model.generation_defaults, defaults);
    let chat = trunkline_text::ChatRequest {
        messages: vec![trunkline_text::ChatMessage::new("user", "x")],
        ..Default::default()
    };
    assert_eq!(model.encode_chat(&chat).unwrap().text, "<s>x|");
    assert_eq!(
        model.tokenizer.encode("the end", EncodeSpecial::Allow).unwrap(),
        spm().tokenizer.encode("the end", EncodeSpecial::Allow).unwrap()
    );
}

#[test]
fn a_folder_may_have_a_sentence_piece_model() {
    let folder = Folder::new();
    folder.write("config.json", json!({"model_type": "llama", "eos_token_id": 2}));
    fs::copy(testdata("bpe.model"), folder.path("tokenizer.model")).unwrap();
    let model = folder.load().unwrap();
    let expected =
        SpecialTokens { bos: token(1, "<s>"), eos: token(2, "</s>"), unk: token(0, "<unk>"), pad: None };
    assert_eq!((model.special_tokens, model.prefix_ids), (expected, vec![1]));

    folder.write("added_tokens.json", json!({"<|im_end|>": 901, "[tool]": 900}));
    folder.write("special_tokens_map.json", json!({"additional_special_tokens": ["<|im_end|>"]}));
    let config = json!({"eos_token": "<|im_end|>", "add_bos_token": false, "added_tokens_decoder": {
        "902": {"content": "<|x|>", "rstrip": true, "special": true}}});
    folder.write("tokenizer_config.json", config.clone());
    let model = folder.load().unwrap();
    assert_eq!((model.special_tokens.eos, model.prefix_ids), (token(901, "<|im_end|>"), vec![]));
    assert_eq!(model.end_token_ids, [2, 901]);
    let special = [900, 901, 902].map(|id| model.tokenizer.is_special(id));
    assert_eq!(special, [false, true, true]);
    assert_eq!(model.tokenizer.encode("<|x|>  [tool]", EncodeSpecial::Allow).unwrap(), [902, 900]);

    for (pointer, value, expected) in [
        ("added_tokens_decoder", json!([]), "`added_tokens_decoder` is not an object"),
        ("added_tokens_decoder", json!({"x": {"content": "a"}}), "entry `x` is not an id"),
        ("added_tokens_decoder", json!({"7": {}}), "entry `7` has no `content`"),
        ("added_tokens_decoder", json!({"9999999": {"content": "a"}}), "10000000 ids, but the limit is"),
    ] {
        let mut config = config.clone();
        config[pointer] = value;
        folder.write("tokenizer_config.json", config);
        let message = folder.load().unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_folder_may_have_a_tiktoken_file() {
    for (file, model_type, prefix_ids) in
        [("tokenizer.model", "glm4", vec![501, 502]), ("qwen.tiktoken", "qwen2", vec![])]
    {
        let folder = Folder::new();
        folder.write("config.json", json!({"model_type": model_type, "eos_token_id": 500}));
        fs::copy(testdata("small.tiktoken"), folder.path(file)).unwrap();
        folder.write(
            "tokenizer_config.json",
            json!({"added_tokens_decoder": {"500": {"content": "<|endoftext|>", "special": true},
                "501": {"content": "[gMASK]", "special": true}, "502": {"content": "<sop>", "special": true}}}),
        );
        let model = folder.load().unwrap();
        assert_eq!((model.prefix_ids, model.tokenizer.vocab_size()), (prefix_ids, 503));
        assert_eq!(model.tokenizer.encode("[gMASK]", EncodeSpecial::Allow).unwrap(), [501]);
    }
    let folder = Folder::new();
    folder.write("config.json", json!({"model_type": "qwen2"}));
    let message = folder.load().unwrap_err().to_string();
    assert!(
        message.contains("has no `tokenizer.json`") && message.contains("`tokenizer.model` or"),
        "{message}"
    );
    for name in ["a.tiktoken", "b.tiktoken"] {
        fs::copy(testdata("small.tiktoken"), folder.path(name)).unwrap();
    }
    assert!(folder.load().unwrap_err().to_string().contains("more than one `.tiktoken` file"));
}

#[test]
fn the_post_processors_bos_counts_unless_the_config_disables_it() {
    let folder = Folder::with_tokenizer();
    let path = folder.path("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    });
    folder.write("tokenizer.json", tokenizer);
    assert_eq!(folder.load().unwrap().prefix_ids, [1]);
    folder.write("tokenizer_config.json", json!({"bos_token": "<s>", "add_bos_token": false}));
    assert_eq!(folder.load().unwrap().prefix_ids, [0u32; 0]);
}

#[test]
fn template_files_take_precedence() {
    let folder = Folder::with_tokenizer();
    let names =
        || folder.load().unwrap().chat_templates.map(|t| t.names().map(str::to_owned).collect::<Vec<_>>());
    let default = || folder.load().unwrap().chat_templates.unwrap().source("default").map(str::to_owned);
    assert_eq!(names(), None);
    folder.write(
        "tokenizer_config.json",
        json!({"chat_template": [{"name": "default", "template": "config"}, {"name": "tool_use", "template": "t"}]}),
    );
    assert_eq!(names().unwrap(), ["default", "tool_use"]);
    assert_eq!(default().unwrap(), "config");
    folder.write("chat_template.json", json!({"chat_template": "json"}));
    assert_eq!(default().unwrap(), "json");
    folder.write_text("chat_template.jinja", "jinja");
    folder.write_text("additional_chat_templates/rag.jinja", "r");
    assert_eq!(default().unwrap(), "jinja");
    assert_eq!(names().unwrap(), ["default", "rag", "tool_use"]);
    folder.write_text("chat_template.jinja", "{% if %}");
    let model = folder.load().unwrap();
    assert!(model.chat_templates.is_none());
    assert!(model.chat_template_problem.unwrap().contains("does not compile"));
}

#[test]
fn missing_and_damaged_files_are_named() {
    let folder = Folder::new();
    assert!(folder.load().unwrap_err().to_string().contains("has no `config.json`; hint: "));
    folder.write_text("config.json", "{");
    let error = folder.load().unwrap_err();
    assert!(
        matches!(error, TextError::InvalidFile { .. }) && error.to_string().contains("config.json"),
        "{error}"
    );
    folder.write("config.json", json!([]));
    assert!(matches!(folder.load(), Err(TextError::InvalidFile { .. })));
    folder.write("config.json", json!({}));
    assert!(folder.load().unwrap_err().to_string().contains("has no `tokenizer.json`; hint: "));
    folder.write_text("tokenizer.json", "{}");
    assert!(matches!(folder.load(), Err(TextError::InvalidTokenizer { .. })));
    fs::copy(testdata("spm_tokenizer.json"), folder.path("tokenizer.json")).unwrap();
    assert!(folder.load().is_ok());
    fs::write(folder.path("chat_template.jinja"), [0xff, 0xfe]).unwrap();
    assert!(matches!(folder.load(), Err(TextError::InvalidFile { .. })));

    let missing = folder.path("none.gguf");
    assert!(matches!(ModelText::load(&missing), Err(TextError::Read { .. })));
    folder.write_text("empty.gguf", "");
    let error = ModelText::load(&folder.path("empty.gguf")).unwrap_err();
    assert_eq!(error.class(), trunkline_text::ErrorClass::Model);
    assert!(error.to_string().contains("is not a valid GGUF file"), "{error}");
}

#[test]
fn large_files_are_refused_unread() {
    let folder = Folder::with_tokenizer();
    let file = fs::File::create(folder.path("generation_config.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = folder.load().unwrap_err();
    assert!(error.to_string().contains("has 1099511627776 bytes, but the limit is 16777216"), "{error}");
}

proptest! {
    #![proptest_config(crate::support::drawn(1_000))]

    /// Loads a real file with flipped bits or cut short, up to the built tokenizer.
    #[test]
    fn damaged_models_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
        keep in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        static WHOLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut bytes = WHOLE.get_or_init(|| fs::read(testdata("spm.gguf")).unwrap()).clone();
        for (index, bit) in flips {
            let at = index.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        bytes.truncate(keep.map_or(bytes.len(), |index| index.index(bytes.len())));
        if let Ok(mut metadata) = GgufMetadata::parse(&bytes)
            && let Ok(built) = tokenizer_from_gguf(&mut metadata)
        {
            built.tokenizer.encode("the <s> é漢\n", EncodeSpecial::Allow).ok();
        }
    }
}

#[test]
fn a_template_file_replaces_the_models_own() {
    let folder = Folder::with_tokenizer();
    folder.write("tokenizer_config.json", json!({"bos_token": "<s>", "chat_template": "own"}));
    folder.write_text("additional_chat_templates/tool_use.jinja", "own with tools");
    folder.write_text("given.jinja", "{{ bos_token }}[{{ messages[0].content }}]");
    let given = folder.path("given.jinja");
    let load = |model: &Path| ModelText::load_with(model, Some(&given));
    for (model, bos) in [(folder.0.path().to_owned(), "<s>"), (smollm2_path(), "<|im_start|>")] {
        let text = load(&model).unwrap();
        let templates = text.chat_templates.unwrap();
        assert_eq!(templates.names().collect::<Vec<_>>(), ["default"]);
        let chat = ChatRequest { messages: vec![ChatMessage::new("user", "hi")], ..ChatRequest::default() };
        let rendered = templates.render(&chat).unwrap();
        assert_eq!(rendered, format!("{bos}[hi]"));
    }
    for (content, expected) in [(" \n", "it is empty"), ("{% if %}", "does not compile")] {
        folder.write_text("given.jinja", content);
        let error = load(folder.0.path()).unwrap_err().to_string();
        assert!(error.contains("given.jinja` is invalid") && error.contains(expected), "{error}");
    }
    fs::remove_file(&given).unwrap();
    let error = load(folder.0.path()).unwrap_err().to_string();
    assert!(error.contains("given.jinja` is invalid: it does not exist"), "{error}");
}
