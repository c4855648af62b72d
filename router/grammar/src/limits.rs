//! Limits on the cost of a grammar.

use llguidance::api::ParserLimits;

use crate::error::GrammarError;

/// Parser items for each optional property that may come next at a position of the output.
const ROW_ITEMS_PER_PROPERTY: usize = 4;
/// Parser items at such a position for the end of the object and for properties that the schema does not list.
const OTHER_ROW_ITEMS: usize = 8;

/// Limits of one grammar, and of each of its masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Size of a schema as compact JSON, or of another grammar's text, in bytes.
    pub max_bytes: usize,
    /// Depth of nested objects and arrays in a schema.
    pub max_depth: usize,
    /// Total number of properties, pattern properties, alternatives and enumerated values in a schema.
    pub max_properties: usize,
    /// Time to compile, in milliseconds. It bounds the work that no other limit bounds.
    pub max_compile_ms: u64,
    /// Work on regular expressions before the first token, about 50,000 a millisecond.
    pub compile_fuel: u64,
    /// Work on regular expressions for one mask, about 14,000 a millisecond.
    pub mask_fuel: u64,
    /// Parser items for one mask, about 20,000 a millisecond.
    pub mask_items: usize,
    /// Parser items at one position of an output: about one for each way to continue, and four for each property that
    /// may come next.
    pub row_items: usize,
    /// States of the lexer, each 1 to 2 kB. They are kept while the sequence lives.
    pub lexer_states: usize,
    /// Memory of the lexers of all outputs together, in bytes. An output fails if they have more, unless its own lexer
    /// is small.
    pub all_lexers_bytes: usize,
    /// Memory of a small lexer, in bytes.
    pub small_lexer_bytes: usize,
    /// Number of symbols in the compiled grammar.
    pub grammar_symbols: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            max_bytes: 128 * 1024,
            max_depth: 64,
            max_properties: 4096,
            max_compile_ms: 900,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            mask_items: 50_000,
            row_items: 2000,
            lexer_states: 50_000,
            all_lexers_bytes: 1 << 30,
            small_lexer_bytes: 4 << 20,
            grammar_symbols: 200_000,
        }
    }
}

impl GrammarLimits {
    /// Returns the largest number of consecutive optional properties of an object. Each may come next at the position
    /// before them.
    pub fn max_optional_properties(&self) -> usize {
        self.row_items.saturating_sub(OTHER_ROW_ITEMS) / ROW_ITEMS_PER_PROPERTY
    }

    /// Checks a size in bytes. `subject` is the measured object and a verb, such as "the schema has".
    pub(crate) fn check_bytes(&self, subject: &'static str, num_bytes: usize) -> Result<(), GrammarError> {
        check(subject, num_bytes, " bytes", self.max_bytes, "--max-schema-bytes")
    }

    pub(crate) fn check_depth(&self, depth: usize) -> Result<(), GrammarError> {
        check("the schema has", depth, " levels of nesting", self.max_depth, "--max-schema-depth")
    }

    /// Checks the number of properties, alternatives and values that were counted so far.
    pub(crate) fn check_properties(&self, count: usize) -> Result<(), GrammarError> {
        let unit = " properties, alternatives and values";
        check("the schema has at least", count, unit, self.max_properties, "--max-schema-properties")
    }

    pub(crate) fn for_parser(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.mask_fuel,
            step_max_items: self.mask_items,
            max_items_in_row: self.row_items,
            max_lexer_states: self.lexer_states,
            max_grammar_size: self.grammar_symbols,
            // Errors reach clients and logs, which must not contain text of a prompt or an output.
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }
}

fn check(
    subject: &'static str,
    value: usize,
    unit: &'static str,
    limit: usize,
    flag: &'static str,
) -> Result<(), GrammarError> {
    if value <= limit { Ok(()) } else { Err(GrammarError::TooLarge { subject, value, unit, limit, flag }) }
}
