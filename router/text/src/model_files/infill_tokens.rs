//! The fill-in-the-middle tokens of families of models.

use crate::tokenizer::Tokenizer;

/// The tokens and the prompts of models that were trained alike.
///
/// Models with a token for the middle have `PREFIX prefix SUFFIX suffix MIDDLE`, so what is typed at the end of the
/// prefix changes no token before it. Models without one have `SUFFIX suffix PREFIX prefix`.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    middle: Option<&'static str>,
    /// Names of the token before the name of a repository.
    repository: &'static [&'static str],
    /// The text behind that token for a repository without a name. `None` if the token is not part of a prompt.
    unnamed_repository: Option<&'static str>,
    /// Names of the token before each file.
    file: &'static [&'static str],
    /// The text behind that token for the file to fill in, which has no name.
    unnamed_file: &'static str,
    /// More tokens that end the output.
    ends: &'static [&'static str],
}

const PLAIN: Family = Family {
    prefix: "",
    suffix: "",
    middle: None,
    repository: &[],
    unnamed_repository: None,
    file: &[],
    unnamed_file: "",
    ends: &["<|endoftext|>"],
};

const FAMILIES: &[Family] = &[
    // Qwen2.5-Coder (arXiv:2409.12186) and CodeGemma, which has another token for files.
    Family {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: Some("<|fim_middle|>"),
        repository: &["<|repo_name|>"],
        unnamed_repository: Some("myproject\n"),
        file: &["<|file_sep|>", "<|file_separator|>"],
        unnamed_file: "filename\n",
        ends: &["<|fim_pad|>", "<|endoftext|>"],
    },
    // StarCoder2 (arXiv:2402.19173), which was also trained on repositories without names; StarCoder and Granite.
    Family {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: Some("<fim_middle>"),
        repository: &["<repo_name>", "<reponame>"],
        file: &["<file_sep>"],
        ends: &["<fim_pad>", "<|endoftext|>"],
        ..PLAIN
    },
    // SantaCoder.
    Family {
        prefix: "<fim-prefix>",
        suffix: "<fim-suffix>",
        middle: Some("<fim-middle>"),
        ends: &["<fim-pad>", "<|endoftext|>"],
        ..PLAIN
    },
    // DeepSeek-Coder (arXiv:2401.14196).
    Family {
        prefix: "<｜fim▁begin｜>",
        suffix: "<｜fim▁hole｜>",
        middle: Some("<｜fim▁end｜>"),
        ends: &["<｜end▁of▁sentence｜>"],
        ..PLAIN
    },
    // CodeLlama (arXiv:2308.12950).
    Family { prefix: "▁<PRE>", suffix: "▁<SUF>", middle: Some("▁<MID>"), ends: &["▁<EOT>"], ..PLAIN },
    // Codestral, as in mistral-common.
    Family { prefix: "[PREFIX]", suffix: "[SUFFIX]", ends: &["[MIDDLE]"], ..PLAIN },
];

/// The role of a token that a model's files may state, in addition to its name in the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Prefix,
    Suffix,
    Middle,
    Pad,
    Repository,
    File,
}

/// The fill-in-the-middle tokens of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfillTokens {
    pub(crate) prefix: u32,
    pub(crate) suffix: u32,
    /// `None` for models whose prefix comes last.
    pub(crate) middle: Option<u32>,
    /// The token and the text with which a prompt of several files begins.
    pub(crate) repository: Option<(u32, &'static str)>,
    /// The token before each file, and the text behind it for the file to fill in.
    pub(crate) file: Option<(u32, &'static str)>,
    /// All of these tokens and others that end the output, in ascending order.
    end_token_ids: Vec<u32>,
}

impl InfillTokens {
    /// Finds the tokens of a family. The ids that `stated` returns take precedence over tokens found by name.
    pub(super) fn find(tokenizer: &Tokenizer, stated: impl Fn(Role) -> Option<u32>) -> Option<Self> {
        let stated = |role| stated(role).filter(|id| *id < tokenizer.vocab_size());
        let id = |name: &str| tokenizer.token_id(name);
        let is_known = |family: &&Family| {
            let middle = family.middle.map_or(Some(0), id);
            id(family.prefix).is_some() && id(family.suffix).is_some() && middle.is_some()
        };
        let found = FAMILIES.iter().find(is_known);
        let family = found.unwrap_or(&PLAIN);
        let first = |role, names: &[&str]| stated(role).or_else(|| names.iter().find_map(|name| id(name)));
        let prefix = first(Role::Prefix, &[family.prefix])?;
        let suffix = first(Role::Suffix, &[family.suffix])?;
        let middle = match (found, family.middle) {
            (Some(_), None) => None,
            (_, name) => Some(first(Role::Middle, name.as_slice())?),
        };
        let repository = first(Role::Repository, family.repository);
        let file = first(Role::File, family.file);
        let ends = family.ends.iter().filter_map(|name| id(name));
        let roles = [Some(prefix), Some(suffix), middle, repository, file, stated(Role::Pad)];
        let mut end_token_ids: Vec<u32> = roles.into_iter().flatten().chain(ends).collect();
        end_token_ids.sort_unstable();
        end_token_ids.dedup();
        Some(Self {
            prefix,
            suffix,
            middle,
            repository: repository.zip(family.unnamed_repository),
            file: file.map(|id| (id, family.unnamed_file)),
            end_token_ids,
        })
    }

    /// Returns the tokens that end the text between prefix and suffix, in addition to the model's end tokens. All
    /// tokens with a role in prompts are among them.
    pub fn end_token_ids(&self) -> &[u32] {
        &self.end_token_ids
    }
}
