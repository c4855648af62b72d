//! Compiles a client's grammar into the initial state of an output.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob, TokEnv};
use serde_json::{Value, json};
use trunkline_reply::ReasoningMarks;
use trunkline_text::Tokenizer;

use crate::budget::Budgeted;
use crate::constraint::{Constraint, Forcing};
use crate::error::GrammarError;
use crate::grammar::Grammar;
use crate::grammar_state::GrammarState;
use crate::lark::ebnf::{self, is_ebnf};
use crate::lark::{LarkWriter, expression, literal};
use crate::limits::GrammarLimits;
use crate::parser::{LexerMemory, Parser};
use crate::reasoning::{Reasoning, ReasoningTokens};
use crate::regex::automaton::Automaton;
use crate::regex::class_budget::ClassBudget;
use crate::regex::portable::{RegexError, portable};
use crate::regex::table::RegexTable;
use crate::schema::checked_schemas::{CheckedSchemas, with_options};
use crate::schema::strictness::RelaxedKeywords;
use crate::schema::unsupported::unsupported;
use crate::timeout::run_with_timeout;
use crate::vocabulary::Vocabulary;

/// Slices of the vocabulary that cover most of it: words with and without spaces.
///
/// The parser allows all tokens of a slice at once, without walking each, if all of them may follow. It has other
/// slices for the contents of JSON strings.
const WORD_SLICES: [&str; 2] = ["[A-Za-z ]{1,10}", "[A-Za-z]{1,10}"];

/// White space allowed between a call and its marks.
const CALL_SPACE: &str = r"/[ \t\r\n]{0,4}/";

pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    env: TokEnv,
    tokenizer: Arc<Tokenizer>,
    permitted: Arc<SimpleVob>,
    end_token_ids: Arc<[u32]>,
    reasoning_tokens: Arc<ReasoningTokens>,
    limits: GrammarLimits,
    memory: Arc<LexerMemory>,
}

impl GrammarCompiler {
    /// Creates a compiler for a vocabulary, its end tokens, and the marks of the reasoning that may precede an output.
    ///
    /// This takes tens of milliseconds.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        end_token_ids: &[u32],
        marks: ReasoningMarks,
        limits: GrammarLimits,
    ) -> Result<Self, GrammarError> {
        let (vocabulary, permitted) = Vocabulary::new(tokenizer, end_token_ids)?;
        // A model's files may name ids that its vocabulary lacks.
        let end_token_ids: Vec<u32> =
            end_token_ids.iter().copied().filter(|&id| id < tokenizer.vocab_size()).collect();
        let env: TokEnv = Arc::new(vocabulary);
        let mut slices = SlicedBiasComputer::json_slices();
        slices.extend(WORD_SLICES.map(str::to_owned));
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Vocabulary { detail: error.to_string() })?;
        factory.quiet();
        *factory.limits_mut() = limits.for_parser();
        let reasoning_tokens =
            ReasoningTokens::new(tokenizer, env.clone(), marks, &permitted, &end_token_ids);
        Ok(Self {
            factory: Arc::new(factory),
            env,
            tokenizer: tokenizer.clone(),
            permitted: Arc::new(permitted),
            end_token_ids: end_token_ids.into(),
            reasoning_tokens: Arc::new(reasoning_tokens),
            limits,
            memory: Arc::new(LexerMemory::new(limits)),
        })
    }

    /// Returns the memory of the lexers of all grammars and sequences.
    pub fn lexer_bytes(&self) -> usize {
        self.memory.num_bytes()
    }

    /// Compiles a grammar into the initial state of an output.
    ///
    /// This takes up to hundreds of milliseconds, so it must not run on an async thread.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        self.compile_holding(grammar, ())
    }

    /// Compiles a grammar, and drops `held` when the compiling thread ends.
    ///
    /// After a timeout that thread still runs, because it cannot be stopped.
    pub fn compile_holding<H: Send + 'static>(
        &self,
        grammar: &Grammar,
        held: H,
    ) -> Result<Constraint, GrammarError> {
        self.check(grammar)?;
        let grammar = &portable_grammar(grammar)?;
        let (state, relaxed) =
            self.initial_state(grammar, held)?.map_err(|error| self.explain(grammar, &error))?;
        let mut constraint =
            Constraint::new(state, self.end_token_ids.clone(), self.reasoning_tokens.clone());
        constraint.set_relaxed(relaxed);
        // A schema that refers only to itself compiles, although no text matches it.
        constraint.allowed(Forcing::Never).map_err(|error| match error {
            GrammarError::Failed { detail } => invalid(
                grammar,
                format!("no finite text matches it, or its beginning is too complex ({detail})"),
            ),
            other => other,
        })?;
        let mut constraint = constraint.warmed().map_err(|error| match error {
            GrammarError::Failed { detail } => {
                GrammarError::too_complex(format!("it fails some tokens into an output: {detail}"))
            }
            other => other,
        })?;
        if let Grammar::WithCalls { calls, .. } = grammar {
            let marks = calls.forms.iter().map(|(mark, _)| mark.as_str());
            if let Some(headers) = self.reasoning_tokens.mark_headers(&self.tokenizer, marks) {
                constraint.begin_with(headers);
            }
        }
        if let Grammar::Call(functions) = grammar {
            let names = functions.iter().map(|(name, _)| name.as_str());
            let headers = self.reasoning_tokens.call_headers(&self.tokenizer, names);
            let error = || GrammarError::Vocabulary { detail: "it cannot write the header of a call".into() };
            constraint.begin_with(headers.ok_or_else(error)?);
        }
        Ok(constraint)
    }

    /// Returns the initial state of an output without a grammar that reasons in at most `budget` tokens. The closing
    /// mark follows the last of them.
    pub fn budgeted(&self, reasoning: Reasoning, budget: u32) -> Constraint {
        let output = Budgeted::new(self.reasoning_tokens.clone(), reasoning, budget);
        // The request decides which tokens end such an output.
        Constraint::new(GrammarState::Budgeted(output), Arc::default(), self.reasoning_tokens.clone())
    }

    /// Returns the initial state of an output without a grammar, which only avoids texts.
    pub fn free(&self) -> Constraint {
        let any = self.reasoning_tokens.any.clone();
        Constraint::new(GrammarState::Free(any), Arc::default(), self.reasoning_tokens.clone())
    }

    /// Checks the limits that need no parsing, except those of schemas.
    fn check(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        match grammar {
            Grammar::JsonObject | Grammar::JsonSchema(_) | Grammar::Call(_) => Ok(()),
            Grammar::WithCalls { reply, calls } => {
                calls.forms.iter().try_for_each(|(_, body)| self.check(body))?;
                self.check(reply)
            }
            Grammar::Regex(regex) => {
                self.limits.check_bytes("the regular expression has", regex.len())?;
                ClassBudget::default().add(regex)
            }
            Grammar::Choices(choices) => {
                self.limits.check_bytes("the choices have", choices.iter().map(String::len).sum())?;
                if choices.is_empty() {
                    return Err(invalid(grammar, "the list is empty"));
                }
                if choices.iter().any(String::is_empty) {
                    return Err(invalid(grammar, "a choice is empty"));
                }
                Ok(())
            }
            Grammar::Lark(text) => {
                self.limits.check_bytes("the grammar has", text.len())?;
                ClassBudget::default().add(text)
            }
            Grammar::StructuralTag(tag) => {
                let text = tag.text();
                self.limits.check_bytes("the structural tag has", text.len())?;
                ClassBudget::default().add(&text)
            }
        }
    }

    /// Returns the initial state of an output and the keywords that were left out, or the parser's error message.
    fn initial_state<H: Send + 'static>(
        &self,
        grammar: &Grammar,
        held: H,
    ) -> Result<Result<(GrammarState, RelaxedKeywords), String>, GrammarError> {
        let source = self.with_text_marks(grammar);
        let mut schemas = CheckedSchemas::new(grammar.schemas(), &self.limits)?;
        let (factory, env) = (self.factory.clone(), self.env.clone());
        let (permitted, end_token_ids) = (self.permitted.clone(), self.end_token_ids.clone());
        let memory = self.memory.clone();
        run_with_timeout(self.limits.max_compile_ms, grammar.num_bytes(), move || {
            let _held = held;
            if let Some(automaton) = automaton(&source) {
                let table = RegexTable::new(automaton, env, permitted, end_token_ids);
                return Ok((GrammarState::from_table(table), RelaxedKeywords::new()));
            }
            loop {
                match factory.create_parser(top_level(&source, schemas.each())?) {
                    Ok(parser) => {
                        let parser = Parser::new(parser, memory);
                        let state = GrammarState::from_parser(parser, permitted, end_token_ids);
                        return Ok((state, schemas.relaxed()));
                    }
                    Err(error) => {
                        let error = error.to_string();
                        if !schemas.relax(&error) {
                            return Err(error);
                        }
                    }
                }
            }
        })
    }

    /// Leaves the closing mark of calls out if it is a control token, which no grammar contains.
    fn with_text_marks(&self, grammar: &Grammar) -> Grammar {
        let mut grammar = grammar.clone();
        if let Grammar::WithCalls { calls, .. } = &mut grammar
            && let Some(id) = calls.closing_mark.and_then(|mark| self.tokenizer.token_id(mark))
            && self.tokenizer.is_special(id)
        {
            calls.closing_mark = None;
        }
        grammar
    }

    /// Translates the parser's message into an error of this crate.
    fn explain(&self, grammar: &Grammar, error: &str) -> GrammarError {
        let detail = summary(error);
        let lower = error.to_lowercase();
        let exhausted = ["too large", "too complex", "fuel", "too many", "limit", "stack level exceeded"];
        let schemas = grammar.schemas();
        if let Some(unsupported) = schemas.iter().find_map(|schema| unsupported(&schema.schema, error)) {
            return unsupported;
        }
        // The rest of the message would be the whole expression.
        if let Some((start, _)) = detail.split_once("if regex is empty: ") {
            return GrammarError::too_complex(format!("{start}if its patterns match any text"));
        }
        if detail.contains("Regex is empty") {
            return invalid(
                grammar,
                "no text matches it, because patterns that apply together exclude each other",
            );
        }
        if exhausted.iter().any(|word| lower.contains(word)) {
            return GrammarError::too_complex(detail);
        }
        invalid(grammar, detail)
    }
}

/// Returns the parser's form of a grammar, whose schemas are `schemas`, or the fault of the grammar.
fn top_level(grammar: &Grammar, mut schemas: impl Iterator<Item = Value>) -> Result<TopLevelGrammar, String> {
    Ok(match grammar {
        Grammar::JsonObject => TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))),
        Grammar::JsonSchema(_) => TopLevelGrammar::from_json_schema(schemas.next().unwrap_or_default()),
        Grammar::Regex(regex) => TopLevelGrammar::from_regex(without_anchors(regex)),
        Grammar::Choices(choices) => {
            let literals: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
            TopLevelGrammar::from_lark(format!("start: {}", literals.join(" | ")))
        }
        Grammar::Lark(text) if !is_ebnf(text) => TopLevelGrammar::from_lark(text.clone()),
        Grammar::Lark(_) | Grammar::StructuralTag(_) | Grammar::WithCalls { .. } => {
            let mut writer = LarkWriter::default();
            let start = rule(grammar, &mut writer, &mut schemas)?;
            TopLevelGrammar::from_lark(writer.finish(&start))
        }
        Grammar::Call(functions) => {
            let (mut calls, mut rules) = (Vec::new(), String::new());
            for (idx, (name, _)) in functions.iter().enumerate() {
                calls.push(format!("{} a{idx}", literal(&ReasoningTokens::call_start(name))));
                rules.push_str(&format!("\na{idx}: %json {}", schemas.next().unwrap_or_default()));
            }
            TopLevelGrammar::from_lark(format!("start: {}{rules}", calls.join(" | ")))
        }
    })
}

/// Adds the rules of a grammar and returns what to write for it.
fn rule(
    grammar: &Grammar,
    writer: &mut LarkWriter,
    schemas: &mut impl Iterator<Item = Value>,
) -> Result<String, String> {
    Ok(match grammar {
        Grammar::JsonObject => writer.rule(&format!("%json {}", with_options(json!({"type": "object"})))),
        Grammar::JsonSchema(_) => writer.rule(&format!("%json {}", schemas.next().unwrap_or_default())),
        Grammar::Regex(regex) => writer.terminal(&expression(&format!("(?:{})", without_anchors(regex)))),
        Grammar::Choices(choices) => {
            let literals: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
            writer.rule(&literals.join(" | "))
        }
        Grammar::Lark(text) if is_ebnf(text) => ebnf::translate(text, writer)?,
        Grammar::Lark(text) => writer.rule(&format!("%lark {{\n{text}\n}}")),
        Grammar::StructuralTag(tag) => tag.write(writer, schemas)?,
        Grammar::WithCalls { reply, calls } => {
            let reply = rule(reply, writer, schemas)?;
            let space = writer.terminal(CALL_SPACE);
            let mut forms = Vec::new();
            for (mark, body) in &calls.forms {
                forms.push(format!("{} {space} {}", literal(mark), rule(body, writer, schemas)?));
            }
            let mut call = writer.rule(&forms.join(" | "));
            if let Some(mark) = calls.closing_mark {
                call.push_str(&format!(" {space} {}", literal(mark)));
            }
            let call = writer.rule(&call);
            let may_repeat = calls.may_repeat && calls.closing_mark.is_some();
            let more = if may_repeat { format!("({space} {call})*") } else { String::new() };
            format!("({reply} | {call} {more})")
        }
        Grammar::Call(_) => return Err("calls stand for a whole reply".into()),
    })
}

/// Rewrites a regular expression so that it matches the same texts in every dialect.
fn portable_grammar(grammar: &Grammar) -> Result<Grammar, GrammarError> {
    if let Grammar::WithCalls { reply, calls } = grammar {
        let reply = Box::new(portable_grammar(reply)?);
        return Ok(Grammar::WithCalls { reply, calls: calls.clone() });
    }
    let Grammar::Regex(regex) = grammar else { return Ok(grammar.clone()) };
    portable(regex).map(Grammar::Regex).map_err(|error| match error {
        RegexError::Invalid(detail) => invalid(grammar, detail),
        RegexError::Unsupported(construct) => invalid(grammar, format!("{construct} is not supported")),
    })
}

/// Returns the parser's message in one line.
///
/// For a regular expression the message first shows the position of the fault, and names the fault in its last line.
fn summary(error: &str) -> String {
    let first = error.lines().next().unwrap_or_default().trim();
    let named = error.lines().rev().find_map(|line| line.trim().strip_prefix("error: "));
    match named.filter(|_| first.ends_with(':')) {
        Some(named) => format!("{first} {named}"),
        None => first.to_owned(),
    }
}

/// Builds the table of an expression or of choices. Returns `None` if the parser must handle the grammar or report its
/// fault.
fn automaton(grammar: &Grammar) -> Option<Automaton> {
    match grammar {
        Grammar::Regex(regex) => Automaton::from_expression(without_anchors(regex)),
        Grammar::Choices(choices) => Automaton::from_texts(choices),
        Grammar::JsonObject
        | Grammar::JsonSchema(_)
        | Grammar::Lark(_)
        | Grammar::StructuralTag(_)
        | Grammar::Call(_)
        | Grammar::WithCalls { .. } => None,
    }
}

fn invalid(grammar: &Grammar, detail: impl Into<String>) -> GrammarError {
    GrammarError::Invalid { kind: grammar.kind(), detail: detail.into() }
}

/// Removes the anchors at both ends. An expression always matches the whole text, and the parser has no anchors.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // After an odd number of backslashes the `$` is a literal dollar sign.
        Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()) % 2 == 0 => rest,
        _ => regex,
    }
}

#[cfg(test)]
mod tests {
    use super::{summary, without_anchors};

    #[test]
    fn a_fault_of_an_expression_is_summarised_in_one_line() {
        let error = "regex parse error:\n    a(\n     ^\nerror: unclosed group";
        assert_eq!(summary(error), "regex parse error: unclosed group");
        assert_eq!(summary("1:5: error: unknown\nmore"), "1:5: error: unknown");
    }

    #[test]
    fn anchors_at_both_ends_are_removed() {
        assert_eq!(without_anchors("^ab$"), "ab");
        assert_eq!(without_anchors(r"ab\$"), r"ab\$");
        assert_eq!(without_anchors(r"ab\\$"), r"ab\\");
        assert_eq!(without_anchors("ab"), "ab");
    }
}
