//! Prompts that ask a model for the text between two others, with the fill-in-the-middle tokens of its tokenizer.
//!
//! Texts of a request never become one of these tokens, whether the tokenizer calls it a control token or not.

use crate::error::TextError;
use crate::model_files::ModelText;
use crate::tokenizer::TextStart;

/// A text to fill in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infill {
    pub prefix: String,
    pub suffix: String,
    /// The beginning of the text between prefix and suffix, which the output continues.
    pub middle: String,
    /// Other files, which precede the one to fill in.
    pub files: Vec<InfillFile>,
}

/// A file that is context for a text to fill in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InfillFile {
    pub name: String,
    pub text: String,
}

impl Infill {
    /// Returns the number of bytes to encode.
    pub fn num_bytes(&self) -> usize {
        let of_files = self.files.iter().map(|file| file.name.len() + file.text.len());
        self.prefix.len() + self.suffix.len() + self.middle.len() + of_files.sum::<usize>()
    }
}

impl ModelText {
    /// Encodes the prompt for a text to fill in, as the model was trained. The output continues it.
    ///
    /// Files come first and the end of the prefix as late as the model allows, so that prompts of a text that is being
    /// typed share most of their tokens. `field` is the client's name of the suffix, for the error if the model has no
    /// tokens for it.
    pub fn encode_infill(&self, infill: &Infill, field: &'static str) -> Result<Vec<u32>, TextError> {
        let tokens = self.infill.as_ref().ok_or(TextError::NoInfillTokens { field })?;
        let encode = |text: &str, start| self.tokenizer.encode_apart(text, tokens.end_token_ids(), start);
        // Models were trained with the extra space of SentencePiece only before the prefix.
        let prefix = encode(&infill.prefix, TextStart::Beginning)?;
        let suffix = encode(&infill.suffix, TextStart::Continuation)?;
        let middle = encode(&infill.middle, TextStart::Continuation)?;
        let mut ids = self.prefix_ids.clone();
        if let Some((token, text)) = tokens.repository.filter(|_| !infill.files.is_empty()) {
            ids.push(token);
            ids.extend(encode(text, TextStart::Continuation)?);
        }
        for InfillFile { name, text } in &infill.files {
            ids.extend(tokens.file.map(|(token, _)| token));
            ids.extend(encode(&format!("{name}\n{text}\n"), TextStart::Continuation)?);
        }
        if let Some((token, text)) = tokens.file.filter(|_| !infill.files.is_empty()) {
            ids.push(token);
            ids.extend(encode(text, TextStart::Continuation)?);
        }
        let parts = match tokens.middle {
            Some(token) => [&[tokens.prefix], &prefix[..], &[tokens.suffix], &suffix, &[token], &middle],
            None => [&[tokens.suffix], &suffix[..], &[tokens.prefix], &prefix, &middle, &[]],
        };
        Ok([&ids[..], &parts.concat()].concat())
    }
}
