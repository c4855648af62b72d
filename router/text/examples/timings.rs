//! Prints the times that a model's tokenizer takes to load, to encode and to stream, and that its chat template takes.
//!
//! Texts that are a single piece, or that have a boundary after every character, show whether encoding stays nearly
//! linear. Run `cargo run --release -p trunkline-text --example timings -- model.gguf`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for people")]

use std::path::PathBuf;
use std::time::Instant;

use trunkline_text::parts::tokenizer_from_gguf;
use trunkline_text::{
    ChatMessage, ChatRequest, DecodeSpecial, Detokenizer, EncodeSpecial, GgufMetadata, GgufValue, ModelText,
    TextStart, Tokenizer,
};

const PIECES: [&str; 14] =
    ["a", " ", "\n", " \n", "aB", "<|im_end|>", "<|im_", "'", "9", "é", "漢", "\u{301}", " a", "\u{10ffff}"];

fn print_encoding(name: &str, tokenizer: &Tokenizer, text: &str, piece: &str) {
    let begin = Instant::now();
    let num_ids = tokenizer.encode(text, EncodeSpecial::Allow).unwrap().len();
    println!("{name} {} KiB of {piece:?}: {num_ids} tokens, {:?}", text.len() / 1024, begin.elapsed());
}

fn main() {
    let path: PathBuf = std::env::args().nth(1).expect("usage: timings MODEL").into();
    let begin = Instant::now();
    let model = ModelText::load(&path).unwrap();
    println!("load {:?}", begin.elapsed());
    let text = "The quick brown fox jumps over the lazy dog, 12 times.\n".repeat(2_000);
    let begin = Instant::now();
    let ids = model.encode_prompt(&text).unwrap();
    println!("encode {} bytes to {} tokens {:?}", text.len(), ids.len(), begin.elapsed());
    let begin = Instant::now();
    let tokenizer = model.tokenizer.clone();
    let mut detokenizer = Detokenizer::new(tokenizer, DecodeSpecial::Skip, TextStart::Continuation);
    let num_bytes: usize = ids.iter().map(|&id| detokenizer.push(id).len()).sum();
    println!("stream {num_bytes} bytes {:?}", begin.elapsed());
    if let Some(templates) = &model.chat_templates {
        let roles = ["user", "assistant"].into_iter().cycle();
        let messages = roles.take(200).map(|role| ChatMessage::new(role, text[..500].to_owned())).collect();
        let chat = ChatRequest { messages, ..ChatRequest::default() };
        let begin = Instant::now();
        let num_bytes = templates.render(&chat).unwrap().len();
        println!("render 200 messages to {num_bytes} bytes {:?}", begin.elapsed());
    }
    for kilobytes in [64, 256, 1024] {
        for piece in PIECES {
            let text = piece.repeat(kilobytes * 1024 / piece.len());
            print_encoding("unchanged", &model.tokenizer, &text, piece);
        }
    }
    let Ok(metadata) = GgufMetadata::open(&path) else { return };
    for pre in ["llama-bpe", "qwen2", "tekken", "gpt-4o"] {
        let mut metadata = metadata.clone();
        metadata.set("tokenizer.ggml.pre", GgufValue::String(pre.into()));
        let tokenizer = tokenizer_from_gguf(&mut metadata).unwrap().tokenizer;
        for piece in PIECES {
            print_encoding(pre, &tokenizer, &(piece.repeat(256 * 1024 / piece.len()) + "x"), piece);
        }
    }
}
