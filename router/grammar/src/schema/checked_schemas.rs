//! The schemas of one grammar, which lose keywords until the parser accepts them.

use serde_json::{Value, json};

use crate::error::GrammarError;
use crate::limits::GrammarLimits;
use crate::schema::relaxing::remove_everywhere;
use crate::schema::strictness::{JsonSchema, RelaxedKeywords, Strictness};
use crate::schema::unsupported::named_by;
use crate::schema::{Checked, Rewriting, checked};

/// White space allowed between two lexemes of JSON. It is bounded so that an output cannot be white space for ever.
const JSON_WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,32}";
pub(crate) struct CheckedSchemas {
    sources: Vec<JsonSchema>,
    checked: Vec<Checked>,
    /// True while the schemas may contain alternatives that express other keywords.
    is_rewritten: bool,
    limits: GrammarLimits,
}

impl CheckedSchemas {
    pub(crate) fn new(sources: Vec<&JsonSchema>, limits: &GrammarLimits) -> Result<Self, GrammarError> {
        let sources: Vec<JsonSchema> = sources.into_iter().cloned().collect();
        let check = |rewriting| sources.iter().map(|source| checked(source, rewriting, limits)).collect();
        let (checked, is_rewritten) = match check(Rewriting::Allowed) {
            Err(GrammarError::TooComplex { .. }) => (check(Rewriting::OnlyIfStrict)?, false),
            outcome => (outcome?, true),
        };
        Ok(Self { sources, checked, is_rewritten, limits: *limits })
    }

    /// Returns the schemas in the parser's form.
    pub(crate) fn each(&self) -> impl Iterator<Item = Value> {
        self.checked.iter().map(|checked| with_options(checked.schema.clone()))
    }

    /// Returns the keywords that were left out.
    pub(crate) fn relaxed(self) -> RelaxedKeywords {
        self.checked.into_iter().flat_map(|checked| checked.relaxed).collect()
    }

    /// Leaves out what the parser's error is about. Returns false if nothing can be left out.
    ///
    /// It can return true only a few times, because each time the schemas lose keywords of a kind.
    pub(crate) fn relax(&mut self, error: &str) -> bool {
        let keywords = named_by(error).map_or(&[][..], |(keywords, _)| keywords);
        let each = self.sources.iter().zip(&mut self.checked);
        let num_changed = each
            .filter(|(source, _)| source.strictness != Strictness::Strict)
            .filter_map(|(source, Checked { schema, relaxed })| {
                remove_everywhere(schema, keywords, &source.strictness, relaxed).then_some(())
            })
            .count();
        if num_changed > 0 {
            return true;
        }
        if !std::mem::take(&mut self.is_rewritten) {
            return false;
        }
        let again = |source| checked(source, Rewriting::OnlyIfStrict, &self.limits);
        let Ok(plain) = self.sources.iter().map(again).collect::<Result<Vec<_>, _>>() else { return false };
        let is_different = plain.iter().zip(&self.checked).any(|(plain, last)| plain.schema != last.schema);
        self.checked = plain;
        is_different
    }
}

/// Sets the parser's options for writing JSON, in place of any that a client set.
pub(crate) fn with_options(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".to_owned(), json!({"whitespace_pattern": JSON_WHITESPACE}));
    }
    schema
}
