//! What a grammar may take.

use llguidance::api::ParserLimits;

/// Parser items of an optional property at a place where it may come next.
const ROW_ITEMS_OF_PROPERTY: usize = 4;
/// Parser items at such a place that are of no listed property: the object's end, properties that it does not list.
const ROW_ITEMS_BESIDE: usize = 8;

/// Limits of one grammar, and of each of its masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Bytes of a schema as compact JSON, or of a grammar's text.
    pub max_bytes: usize,
    /// Objects and arrays inside one another.
    pub max_depth: usize,
    /// Entries of all `properties` and `patternProperties`, alternatives and enumerated values together.
    pub max_properties: usize,
    /// Time to compile, in milliseconds, for what no other limit bounds.
    pub max_compile_ms: u64,
    /// Work on regular expressions before the first token, about 50,000 a millisecond.
    pub compile_fuel: u64,
    /// Work on regular expressions for one mask, about 14,000 a millisecond.
    pub mask_fuel: u64,
    /// Parser items for one mask, about 20,000 a millisecond.
    pub mask_items: usize,
    /// Parser items at one place of an output: about one for each way to go on there, four for each property that may
    /// come next.
    pub row_items: usize,
    /// States of the lexer, 1 to 2 kB each, kept while the sequence lives.
    pub lexer_states: usize,
    /// Symbols of the compiled grammar.
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
            grammar_symbols: 200_000,
        }
    }
}

impl GrammarLimits {
    /// Optional properties of an object one after another, at most: in front of them each may be the next one.
    pub fn max_optional_properties(&self) -> usize {
        self.row_items.saturating_sub(ROW_ITEMS_BESIDE) / ROW_ITEMS_OF_PROPERTY
    }

    pub(crate) fn of_parser(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.mask_fuel,
            step_max_items: self.mask_items,
            max_items_in_row: self.row_items,
            max_lexer_states: self.lexer_states,
            max_grammar_size: self.grammar_symbols,
            // Errors go to clients and logs, which must hold no text of a prompt or an output.
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }
}
