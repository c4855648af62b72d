//! From what a client sent to the beginning of an output.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob, TokEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use trunkline_reply::ReasoningMarks;
use trunkline_text::Tokenizer;

use crate::automaton::Automaton;
use crate::classes::Classes;
use crate::expression::Expression;
use crate::in_time::in_time;
use crate::place::Place;
use crate::reading::{Fault, for_all_readers};
use crate::reasoning::ReasoningTokens;
use crate::refusal::unsupported;
use crate::schema;
use crate::vocabulary::Vocabulary;
use crate::{Constraint, Forcing, GrammarError, GrammarLimits};

/// What may stand between two lexemes of JSON: some blanks, so that no output is blanks for ever.
const JSON_BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,32}";
/// Words with their blanks, and words: most of a vocabulary. Where any of them may follow they are allowed at once,
/// without a walk over each, as the parser does it for the texts of JSON strings.
const WORDS: [&str; 2] = ["[A-Za-z ]{1,10}", "[A-Za-z]{1,10}"];

/// What an output has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that validates under this schema (a draft as its `$schema` says, else 2020-12).
    JsonSchema(Value),
    /// Text that matches a regular expression as a whole (the syntax of Rust's `regex`, without look-around).
    Regex(String),
    /// One of these texts.
    Choices(Vec<String>),
    /// A grammar in `llguidance`'s variant of Lark.
    Lark(String),
}

impl Grammar {
    fn kind(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Choices(_) => "list of choices",
            Self::Lark(_) => "Lark grammar",
        }
    }
}

/// Compiles grammars for one model.
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    env: TokEnv,
    permitted: Arc<SimpleVob>,
    end_token_ids: Arc<[u32]>,
    reasoning_tokens: Arc<ReasoningTokens>,
    limits: GrammarLimits,
}

impl GrammarCompiler {
    /// For a vocabulary, the tokens that end an output, and the marks of the reasoning that may come before it. Tens
    /// of milliseconds.
    pub fn new(
        tokenizer: &Tokenizer,
        end_token_ids: &[u32],
        marks: ReasoningMarks,
        limits: GrammarLimits,
    ) -> Result<Self, GrammarError> {
        let (vocabulary, permitted) = Vocabulary::new(tokenizer, end_token_ids)?;
        // A model's files may name what its vocabulary does not have.
        let end_token_ids: Vec<u32> =
            end_token_ids.iter().copied().filter(|&id| id < tokenizer.vocab_size()).collect();
        let env: TokEnv = Arc::new(vocabulary);
        let mut slices = SlicedBiasComputer::json_slices();
        slices.extend(WORDS.map(str::to_owned));
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Vocabulary { detail: error.to_string() })?;
        factory.quiet();
        *factory.limits_mut() = limits.of_parser();
        let reasoning_tokens =
            ReasoningTokens::new(tokenizer, env.clone(), marks, &permitted, &end_token_ids);
        Ok(Self {
            factory: Arc::new(factory),
            env,
            permitted: Arc::new(permitted),
            end_token_ids: end_token_ids.into(),
            reasoning_tokens: Arc::new(reasoning_tokens),
            limits,
        })
    }

    /// The beginning of an output. From a fraction of a millisecond to some hundreds of them: not on an async thread.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        self.compile_holding(grammar, ())
    }

    /// The same. `held` is dropped when the most of the work is done: where it is given up because it takes too long,
    /// not before its thread ends, which cannot be stopped.
    pub fn compile_holding<H: Send + 'static>(
        &self,
        grammar: &Grammar,
        held: H,
    ) -> Result<Constraint, GrammarError> {
        self.check(grammar)?;
        let grammar = &for_all(grammar)?;
        let place = self.place(grammar, held)?.map_err(|error| self.explain(grammar, &error))?;
        let mut constraint =
            Constraint::new(place, self.end_token_ids.clone(), self.reasoning_tokens.clone());
        // A schema that refers to nothing but itself compiles, and no text begins it.
        constraint.allowed(Forcing::Never).map_err(|error| match error {
            GrammarError::Failed { detail } => invalid(
                grammar,
                format!("no finite text matches it, or its beginning is too complex ({detail})"),
            ),
            other => other,
        })?;
        constraint.warmed().map_err(|error| match error {
            GrammarError::Failed { detail } => {
                GrammarError::too_complex(format!("some tokens into an output: {detail}"))
            }
            other => other,
        })
    }

    /// What its text tells before it is read.
    fn check(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        match grammar {
            Grammar::JsonObject | Grammar::JsonSchema(_) => Ok(()),
            Grammar::Regex(regex) => {
                self.check_bytes("the regular expression in bytes", regex.len())?;
                Classes::default().add(regex)
            }
            Grammar::Choices(choices) => {
                self.check_bytes("the choices in bytes", choices.iter().map(String::len).sum())?;
                if choices.is_empty() {
                    return Err(invalid(grammar, "it is empty"));
                }
                if choices.iter().any(String::is_empty) {
                    return Err(invalid(grammar, "a choice is empty"));
                }
                Ok(())
            }
            Grammar::Lark(text) => {
                self.check_bytes("the grammar in bytes", text.len())?;
                Classes::default().add(text)
            }
        }
    }

    /// Where an output begins, or what the parser has against the grammar.
    fn place<H: Send + 'static>(
        &self,
        grammar: &Grammar,
        held: H,
    ) -> Result<Result<Place, String>, GrammarError> {
        let (source, top) = (grammar.clone(), self.top_level(grammar)?);
        let (factory, env) = (self.factory.clone(), self.env.clone());
        let (permitted, end_token_ids) = (self.permitted.clone(), self.end_token_ids.clone());
        in_time(self.limits.max_compile_ms, move || {
            let _held = held;
            if let Some(automaton) = automaton(&source) {
                return Ok(Place::of_expression(Expression::new(automaton, env, permitted, end_token_ids)));
            }
            let matcher = Matcher::new(factory.create_parser(top));
            match matcher.get_error() {
                Some(error) => Err(error),
                None => Ok(Place::of_parser(matcher, permitted, end_token_ids)),
            }
        })
    }

    fn top_level(&self, grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match grammar {
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))),
            Grammar::JsonSchema(schema) => {
                let schema = schema::checked(schema, &self.limits)?;
                TopLevelGrammar::from_json_schema(with_options(schema))
            }
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(without_anchors(regex)),
            Grammar::Choices(choices) => {
                // A JSON string is a literal of Lark, escapes included.
                let literals: Vec<String> =
                    choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", literals.join(" | ")))
            }
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        })
    }

    fn check_bytes(&self, what: &'static str, value: usize) -> Result<(), GrammarError> {
        let limit = self.limits.max_bytes;
        if value > limit {
            return Err(GrammarError::TooLarge { what, value, limit, flag: "--max-schema-bytes" });
        }
        Ok(())
    }

    /// The parser's words as one of our errors.
    fn explain(&self, grammar: &Grammar, error: &str) -> GrammarError {
        let detail = told(error);
        let lower = error.to_lowercase();
        let exhausted = ["too large", "too complex", "fuel", "too many", "limit", "stack level exceeded"];
        if let Grammar::JsonSchema(schema) = grammar
            && let Some(unsupported) = unsupported(schema, error)
        {
            return unsupported;
        }
        // The parser would show the whole expression.
        if let Some((told, _)) = detail.split_once("if regex is empty: ") {
            return GrammarError::too_complex(format!("{told}if its patterns match any text"));
        }
        if detail.contains("Regex is empty") {
            return invalid(grammar, "no text matches it, as patterns that hold at once exclude each other");
        }
        if exhausted.iter().any(|word| lower.contains(word)) {
            return GrammarError::too_complex(detail);
        }
        if matches!(grammar, Grammar::Lark(text) if text.contains("::=")) {
            let hint = "hint: a grammar is Lark, not EBNF or GBNF; it begins with `start: ...`";
            return invalid(grammar, format!("{detail}; {hint}"));
        }
        invalid(grammar, detail)
    }
}

/// The grammar as it means the same to all who read it.
fn for_all(grammar: &Grammar) -> Result<Grammar, GrammarError> {
    let Grammar::Regex(regex) = grammar else { return Ok(grammar.clone()) };
    for_all_readers(regex).map(Grammar::Regex).map_err(|fault| match fault {
        Fault::Wrong(why) => invalid(grammar, why),
        Fault::Unsupported(what) => invalid(grammar, format!("{what} is not supported")),
    })
}

/// What the parser says, in one line: of an expression it shows where the fault is before it names it.
fn told(error: &str) -> String {
    let first = error.lines().next().unwrap_or_default().trim();
    let named = error.lines().rev().find_map(|line| line.trim().strip_prefix("error: "));
    match named.filter(|_| first.ends_with(':')) {
        Some(named) => format!("{first} {named}"),
        None => first.to_owned(),
    }
}

/// Of an expression or of choices; none if the parser has to do it, or to say what is wrong.
fn automaton(grammar: &Grammar) -> Option<Automaton> {
    match grammar {
        Grammar::Regex(regex) => Automaton::of_expression(without_anchors(regex)),
        Grammar::Choices(choices) => Automaton::of_texts(choices),
        Grammar::JsonObject | Grammar::JsonSchema(_) | Grammar::Lark(_) => None,
    }
}

fn invalid(grammar: &Grammar, detail: impl Into<String>) -> GrammarError {
    GrammarError::Invalid { kind: grammar.kind(), detail: detail.into() }
}

/// The schema with our own choices of how JSON is written; a client's are not heard.
fn with_options(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".to_owned(), json!({"whitespace_pattern": JSON_BLANKS}));
    }
    schema
}

/// The whole text is matched anyway, and the parser knows no anchors.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // An odd number of backslashes makes it a dollar sign.
        Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()) % 2 == 0 => rest,
        _ => regex,
    }
}

#[cfg(test)]
mod tests {
    use super::{told, without_anchors};

    #[test]
    fn a_fault_of_an_expression_is_told_in_one_line() {
        let error = "regex parse error:\n    a(\n     ^\nerror: unclosed group";
        assert_eq!(told(error), "regex parse error: unclosed group");
        assert_eq!(told("1:5: error: unknown\nmore"), "1:5: error: unknown");
    }

    #[test]
    fn anchors_at_both_ends_are_taken_off() {
        assert_eq!(without_anchors("^ab$"), "ab");
        assert_eq!(without_anchors(r"ab\$"), r"ab\$");
        assert_eq!(without_anchors(r"ab\\$"), r"ab\\");
        assert_eq!(without_anchors("ab"), "ab");
    }
}
