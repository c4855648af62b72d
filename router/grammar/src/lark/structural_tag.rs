//! Structural tags of SGLang, vLLM and XGrammar: text in which parts between tags follow grammars.
//!
//! Text before a tag ends with its trigger, so no other trigger may be inside it. Everything else is read in order.

use serde_json::{Map, Value};

use crate::lark::{LarkWriter, ebnf, expression, literal};
use crate::regex::portable::{RegexError, portable};
use crate::schema::strictness::JsonSchema;

/// Deepest nesting of formats.
const MAX_DEPTH: usize = 16;

/// The form of an output that a request describes by tags.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuralTag {
    source: Value,
    is_strict: bool,
    format: Format,
}

#[derive(Debug, Clone, PartialEq)]
enum Format {
    Text(String),
    Schema(JsonSchema),
    Regex(String),
    Ebnf(String),
    /// Any text that contains none of these.
    Free(Vec<String>),
    Sequence(Vec<Format>),
    Choice(Vec<Format>),
    Tag(Box<Tag>),
    /// Text with tags that begin with triggers.
    Triggered {
        triggers: Vec<String>,
        tags: Vec<Tag>,
        at_least_one: bool,
        stops_after_first: bool,
    },
    /// Tags without other text.
    Separated {
        tags: Vec<Tag>,
        separator: String,
        at_least_one: bool,
        stops_after_first: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
struct Tag {
    begin: String,
    content: Format,
    end: String,
}

impl StructuralTag {
    /// Parses the members of a structural tag: `format`, or `structures` and `triggers`. Errors name the member.
    ///
    /// Keywords of its schemas that no grammar can hold are left out unless it is strict.
    pub fn parse(tag: &Map<String, Value>, is_strict: bool) -> Result<Self, String> {
        let format = match (tag.get("format"), tag.get("structures")) {
            (Some(format), None) => parse_format(format, is_strict, 0)?,
            (None, Some(Value::Array(structures))) => {
                let of_structure = |structure: &Value| {
                    let schema = structure.get("schema").ok_or("`structures` has no `schema`")?;
                    Ok(Tag {
                        begin: text(structure, "begin")?,
                        content: Format::Schema(JsonSchema::new(schema.clone(), is_strict)),
                        end: text(structure, "end")?,
                    })
                };
                let tags = structures.iter().map(of_structure).collect::<Result<Vec<Tag>, String>>()?;
                triggered(
                    strings(tag.get("triggers").unwrap_or(&Value::Null), "triggers")?,
                    tags,
                    false,
                    false,
                )?
            }
            _ => return Err("has neither `format` nor a list `structures`".into()),
        };
        Ok(Self { source: Value::Object(tag.clone()), is_strict, format })
    }

    /// Returns a text that only equal tags have.
    pub fn text(&self) -> String {
        format!("{} {}", if self.is_strict { "strict" } else { "relaxed" }, self.source)
    }

    pub(crate) fn schemas(&self) -> Vec<&JsonSchema> {
        let mut found = Vec::new();
        self.format.schemas(&mut found);
        found
    }

    /// Adds the rules of the tag and returns what to write for it. `schemas` are the checked forms of
    /// [`Self::schemas`].
    pub(crate) fn write(
        &self,
        writer: &mut LarkWriter,
        schemas: &mut impl Iterator<Item = Value>,
    ) -> Result<String, String> {
        Lark { writer, schemas }.format(&self.format, Place::Last)
    }
}

fn parse_format(format: &Value, is_strict: bool, depth: usize) -> Result<Format, String> {
    if depth > MAX_DEPTH {
        return Err(format!("has formats more than {MAX_DEPTH} deep"));
    }
    let inner = |member: &str| -> Result<Vec<Format>, String> {
        list(format, member)?.iter().map(|each| parse_format(each, is_strict, depth + 1)).collect()
    };
    let tags = || -> Result<Vec<Tag>, String> {
        list(format, "tags")?.iter().map(|each| parse_tag(each, is_strict, depth + 1)).collect()
    };
    Ok(match text(format, "type")?.as_str() {
        "const_string" => Format::Text(text(format, "value")?),
        "json_schema" => {
            let schema = format.get("json_schema").ok_or("`json_schema` is missing in a format")?;
            Format::Schema(JsonSchema::new(schema.clone(), is_strict || flag(format, "strict")?))
        }
        "regex" => {
            let pattern = text(format, "pattern")?;
            Format::Regex(portable(&pattern).map_err(|error| match error {
                RegexError::Invalid(detail) => format!("`pattern` is not a regular expression: {detail}"),
                RegexError::Unsupported(construct) => {
                    format!("`pattern` has {construct}, which is not supported")
                }
            })?)
        }
        "grammar" => Format::Ebnf(text(format, "grammar")?),
        "any_text" => Format::Free(match format.get("excludes").or_else(|| format.get("excluded_str")) {
            None => Vec::new(),
            Some(excluded) => strings(excluded, "excluded_str")?,
        }),
        "sequence" => Format::Sequence(inner("elements")?),
        "or" => Format::Choice(inner("elements")?),
        "tag" => Format::Tag(Box::new(parse_tag(format, is_strict, depth)?)),
        "triggered_tags" => triggered(
            texts(format, "triggers")?,
            tags()?,
            flag(format, "at_least_one")?,
            flag(format, "stop_after_first")?,
        )?,
        "tags_with_separator" => Format::Separated {
            tags: tags()?,
            separator: text(format, "separator")?,
            at_least_one: flag(format, "at_least_one")?,
            stops_after_first: flag(format, "stop_after_first")?,
        },
        _ => {
            return Err(
                "has a format of a `type` that is not supported; hint: use `const_string`, `json_schema`, \
                        `regex`, `grammar`, `any_text`, `sequence`, `or`, `tag`, `triggered_tags` or \
                        `tags_with_separator`"
                    .into(),
            );
        }
    })
}

fn parse_tag(tag: &Value, is_strict: bool, depth: usize) -> Result<Tag, String> {
    let content = tag.get("content").ok_or("`content` is missing in a tag")?;
    // Some clients allow several ends, of which the first is as good as any.
    let end = match tag.get("end") {
        Some(Value::Array(ends)) => ends.first().and_then(Value::as_str).map(str::to_owned),
        _ => Some(text(tag, "end")?),
    };
    Ok(Tag {
        begin: text(tag, "begin")?,
        content: parse_format(content, is_strict, depth + 1)?,
        end: end.ok_or("`end` of a tag must be a string")?,
    })
}

fn triggered(
    triggers: Vec<String>,
    tags: Vec<Tag>,
    at_least_one: bool,
    stops_after_first: bool,
) -> Result<Format, String> {
    if triggers.iter().any(String::is_empty) || tags.is_empty() {
        return Err("needs at least one tag, and triggers that are not empty".into());
    }
    let num_triggers = |tag: &Tag| triggers.iter().filter(|trigger| tag.begin.starts_with(*trigger)).count();
    if let Some(tag) = tags.iter().find(|tag| num_triggers(tag) != 1) {
        let num_triggers = num_triggers(tag);
        return Err(format!(
            "has a tag that begins with {num_triggers} of the `triggers`, but must with one"
        ));
    }
    Ok(Format::Triggered { triggers, tags, at_least_one, stops_after_first })
}

fn list<'a>(value: &'a Value, member: &str) -> Result<&'a Vec<Value>, String> {
    match value.get(member) {
        Some(Value::Array(list)) if !list.is_empty() => Ok(list),
        _ => Err(format!("`{member}` must be a list that is not empty")),
    }
}

fn text(value: &Value, member: &str) -> Result<String, String> {
    let text = value.get(member).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| format!("`{member}` must be a string"))
}

fn texts(value: &Value, member: &str) -> Result<Vec<String>, String> {
    strings(value.get(member).unwrap_or(&Value::Null), member)
}

fn strings(value: &Value, member: &str) -> Result<Vec<String>, String> {
    let texts =
        value.as_array().and_then(|list| list.iter().map(|text| text.as_str().map(str::to_owned)).collect());
    texts.ok_or_else(|| format!("`{member}` must be a list of strings"))
}

fn flag(value: &Value, member: &str) -> Result<bool, String> {
    match value.get(member) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(format!("`{member}` must be true or false")),
    }
}

impl Format {
    fn schemas<'a>(&'a self, found: &mut Vec<&'a JsonSchema>) {
        match self {
            Self::Schema(schema) => found.push(schema),
            Self::Sequence(formats) | Self::Choice(formats) => {
                formats.iter().for_each(|format| format.schemas(found));
            }
            Self::Tag(tag) => tag.content.schemas(found),
            Self::Triggered { tags, .. } | Self::Separated { tags, .. } => {
                tags.iter().for_each(|tag| tag.content.schemas(found));
            }
            Self::Text(_) | Self::Regex(_) | Self::Ebnf(_) | Self::Free(_) => {}
        }
    }
}

/// The position of a format in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The end of the output.
    Last,
    Before,
}

/// Writes formats in their order.
struct Lark<'w, I> {
    writer: &'w mut LarkWriter,
    schemas: &'w mut I,
}

impl<I: Iterator<Item = Value>> Lark<'_, I> {
    /// Adds the rules of a format and returns what to write in its place.
    fn format(&mut self, format: &Format, place: Place) -> Result<String, String> {
        let needs_end = "has text of any form before something else; hint: make it the content of a tag";
        Ok(match format {
            Format::Text(text) => literal(text),
            Format::Schema(_) => {
                let schema = self.schemas.next().unwrap_or_default();
                self.writer.rule(&format!("%json {schema}"))
            }
            Format::Regex(regex) => self.writer.terminal(&whole(regex)),
            Format::Ebnf(text) => ebnf::translate(text, self.writer)
                .map_err(|fault| format!("`grammar` is not EBNF: {fault}"))?,
            Format::Free(excluded) if place == Place::Last => self.free(excluded),
            Format::Free(_) => return Err(needs_end.into()),
            Format::Sequence(formats) => {
                let mut parts = Vec::new();
                for (idx, format) in formats.iter().enumerate() {
                    let place = if idx + 1 == formats.len() { place } else { Place::Before };
                    parts.push(self.format(format, place)?);
                }
                format!("({})", parts.join(" "))
            }
            Format::Choice(formats) => {
                let choices: Result<Vec<_>, _> =
                    formats.iter().map(|format| self.format(format, place)).collect();
                format!("({})", choices?.join(" | "))
            }
            Format::Tag(tag) => self.tag(tag, 0)?,
            Format::Triggered { stops_after_first: false, .. } if place == Place::Before => {
                return Err(needs_end.into());
            }
            Format::Triggered { at_least_one: false, .. } if place == Place::Before => {
                return Err(needs_end.into());
            }
            Format::Triggered { triggers, tags, at_least_one, stops_after_first } => {
                self.triggered(triggers, tags, *at_least_one, *stops_after_first)?
            }
            Format::Separated { tags, separator, at_least_one, stops_after_first } => {
                let tags: Result<Vec<_>, _> = tags.iter().map(|tag| self.tag(tag, 0)).collect();
                let tag = self.writer.rule(&tags?.join(" | "));
                let more = if *stops_after_first {
                    String::new()
                } else {
                    format!("({} {tag})*", literal(separator))
                };
                format!("({tag} {more}){}", if *at_least_one { "" } else { "?" })
            }
        })
    }

    /// Writes a tag without the first bytes of its beginning.
    fn tag(&mut self, tag: &Tag, num_written: usize) -> Result<String, String> {
        let begin = literal(tag.begin.get(num_written..).unwrap_or_default());
        let content = match &tag.content {
            _ if tag.end.is_empty() => self.format(&tag.content, Place::Before)?,
            // Read as one piece, so that the content ends where the end begins.
            Format::Free(excluded) => {
                let mut body =
                    format!("{} & ~{}", until(&tag.end), inside(std::slice::from_ref(&tag.end), "+"));
                if !excluded.is_empty() {
                    body.push_str(&format!(" & ~{}", inside(excluded, "*")));
                }
                self.writer.terminal(&body)
            }
            Format::Regex(regex) => self.writer.terminal(&format!("{} {}", whole(regex), literal(&tag.end))),
            content => format!("{} {}", self.format(content, Place::Before)?, literal(&tag.end)),
        };
        Ok(self.writer.rule(&format!("{begin} {content}")))
    }

    fn triggered(
        &mut self,
        triggers: &[String],
        tags: &[Tag],
        at_least_one: bool,
        stops_after_first: bool,
    ) -> Result<String, String> {
        let (mut whole, mut rest) = (Vec::new(), vec![Vec::new(); triggers.len()]);
        for tag in tags {
            let trigger =
                triggers.iter().position(|trigger| tag.begin.starts_with(trigger)).unwrap_or_default();
            let inner = self.tag(tag, triggers[trigger].len())?;
            whole.push(format!("{} {inner}", literal(&triggers[trigger])));
            rest[trigger].push(inner);
        }
        let first = self.writer.rule(&whole.join(" | "));
        if stops_after_first && at_least_one {
            return Ok(first);
        }
        let mut after_text = Vec::new();
        for (trigger, rest) in triggers.iter().zip(rest).filter(|(_, rest)| !rest.is_empty()) {
            let text = self.writer.terminal(&format!("{} & ~{}", until(trigger), inside(triggers, "+")));
            after_text.push(format!("{text} ({})", rest.join(" | ")));
        }
        let tag = self.writer.rule(&after_text.join(" | "));
        let free = self.free(triggers);
        Ok(match (at_least_one, stops_after_first) {
            (true, _) => format!("({first} ({tag})* {free})"),
            (false, true) => format!("({tag} | {free})"),
            (false, false) => format!("(({tag})* {free})"),
        })
    }

    /// Writes text without these.
    fn free(&mut self, excluded: &[String]) -> String {
        // Without the first part, bytes that are no text would follow the second.
        let mut body = expression("(?s:.)*");
        if !excluded.is_empty() {
            body.push_str(&format!(" & ~{}", inside(excluded, "*")));
        }
        self.writer.terminal(&body)
    }
}

/// Returns an expression that matches as a whole.
fn whole(regex: &str) -> String {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let regex = regex.strip_suffix('$').filter(|rest| !rest.ends_with('\\')).unwrap_or(regex);
    expression(&format!("(?:{regex})"))
}

/// Returns an expression for text that ends with another.
fn until(end: &str) -> String {
    expression(&format!("(?s:.)*{}", regex_syntax::escape(end)))
}

/// Returns an expression for text that has one of some texts inside it. `rest` says how often a character follows.
fn inside(texts: &[String], rest: &str) -> String {
    let texts: Vec<String> = texts.iter().map(|text| regex_syntax::escape(text)).collect();
    expression(&format!("(?s:.)*(?:{})(?s:.){rest}", texts.join("|")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(tag: Value) -> String {
        let parsed = StructuralTag::parse(tag.as_object().expect("an object"), true);
        match parsed.and_then(|tag| tag.write(&mut LarkWriter::default(), &mut std::iter::empty())) {
            Ok(lark) => panic!("{lark}"),
            Err(fault) => fault,
        }
    }

    #[test]
    fn faults_are_named() {
        let tag = |begin: &str| json!({"begin": begin, "content": {"type": "any_text"}, "end": "</f>"});
        let triggered =
            |tags: Value| json!({"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": tags}});
        for (tag, words) in [
            (json!({}), "has neither `format` nor a list `structures`"),
            (json!({"format": {}}), "`type` must be a string"),
            (json!({"format": {"type": "qwen_xml_parameter"}}), "of a `type` that is not supported"),
            (json!({"format": {"type": "regex", "pattern": "a(?=b)"}}), "`pattern` has look-around"),
            (json!({"format": {"type": "grammar", "grammar": "start: x"}}), "`grammar` is not EBNF"),
            (triggered(json!([tag("<g>")])), "begins with 0 of the `triggers`"),
            (triggered(json!([])), "`tags` must be a list"),
            (json!({"structures": [{"begin": "<f>", "end": ""}], "triggers": ["<f"]}), "has no `schema`"),
            (
                json!({"format": {"type": "sequence", "elements": [
                    {"type": "any_text"}, {"type": "const_string", "value": "x"}]}}),
                "has text of any form before something else",
            ),
        ] {
            let fault = fault(tag.clone());
            assert!(fault.contains(words), "{tag}: {fault}");
        }
    }
}
