//! Translates the EBNF of XGrammar and llama.cpp (GBNF): `root ::= "a" [0-9]+ | other`.
//!
//! The syntax is that of <https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>. A rule that does not
//! contain itself becomes one expression. The parser reads the expressions of other rules one after the other and makes
//! each as long as it can, so a grammar that needs a shorter one has fewer outputs than its author wrote.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use crate::lark::{LarkWriter, literal};

/// Deepest nesting of groups.
const MAX_GROUPS: usize = 64;
/// Deepest nesting of alternatives and repetitions. Each takes a group in Lark, whose parser accepts no more.
const MAX_DEPTH: usize = 28;
/// Most repetitions that a count may name.
const MAX_COUNT: u32 = 10_000;
/// The rule that the output follows.
const ROOT: &str = "root";

/// Returns true if a grammar is written in EBNF and not in Lark.
pub(crate) fn is_ebnf(text: &str) -> bool {
    text.lines().any(|line| line.split(['#', '"']).next().is_some_and(|line| line.contains("::=")))
}

/// Adds the rules of a grammar and returns the name of the first to follow.
pub(crate) fn translate(text: &str, writer: &mut LarkWriter) -> Result<String, String> {
    let rules = Rules::parse(text)?;
    let root = rules.find(ROOT).ok_or_else(|| format!("the rule `{ROOT}` is missing"))?;
    Ok(Translation::new(&rules, writer).rule(root))
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(String),
    /// A class of characters in the syntax of regular expressions.
    Class(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat {
        node: Box<Node>,
        least: u32,
        most: Option<u32>,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// The beginning of a rule: its name and `::=`.
    Begin(String),
    Name(String),
    Text(String),
    Class(String),
    Open,
    Close,
    Bar,
    Repeat(u32, Option<u32>),
}

struct Rules {
    names: Vec<String>,
    indices: HashMap<String, usize>,
    /// The bodies, by the index of the name.
    bodies: Vec<Option<Node>>,
}

/// A part of a rule and the deepest nesting of alternatives and repetitions in it.
struct Parsed {
    node: Node,
    depth: usize,
}

impl Rules {
    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = tokens(text)?.into_iter().peekable();
        let mut rules = Self { names: Vec::new(), indices: HashMap::new(), bodies: Vec::new() };
        while let Some(token) = tokens.next() {
            let Token::Begin(name) = token else { return Err("a rule begins with `name ::=`".into()) };
            let idx = rules.intern(name);
            let body = rules.choice(&mut tokens, 0)?.node;
            if rules.bodies[idx].replace(body).is_some() {
                return Err(format!("the rule `{}` is defined twice", rules.names[idx]));
            }
            if let Some(Token::Close) = tokens.peek() {
                return Err(format!("the rule `{}` closes a group that it does not open", rules.names[idx]));
            }
        }
        match rules.bodies.iter().position(Option::is_none) {
            Some(idx) => Err(format!("the rule `{}` is not defined", rules.names[idx])),
            None => Ok(rules),
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.indices.get(name).copied()
    }

    fn intern(&mut self, name: String) -> usize {
        self.find(&name).unwrap_or_else(|| {
            self.indices.insert(name.clone(), self.names.len());
            self.names.push(name);
            self.bodies.push(None);
            self.names.len() - 1
        })
    }

    fn choice(
        &mut self,
        tokens: &mut Peekable<impl Iterator<Item = Token>>,
        num_groups: usize,
    ) -> Result<Parsed, String> {
        if num_groups > MAX_GROUPS {
            return Err(format!("groups are nested more than {MAX_GROUPS} deep"));
        }
        let Parsed { node, mut depth } = self.sequence(tokens, num_groups)?;
        let mut choices = vec![node];
        while tokens.next_if_eq(&Token::Bar).is_some() {
            let next = self.sequence(tokens, num_groups)?;
            choices.push(next.node);
            depth = depth.max(next.depth);
        }
        if choices.len() == 1 {
            return Ok(Parsed { node: choices.swap_remove(0), depth });
        }
        Ok(Parsed { node: Node::Choice(choices), depth: deeper(depth)? })
    }

    fn sequence(
        &mut self,
        tokens: &mut Peekable<impl Iterator<Item = Token>>,
        num_groups: usize,
    ) -> Result<Parsed, String> {
        let (mut nodes, mut deepest) = (Vec::new(), 0);
        // The depth of the last node, to which a repetition adds a level.
        let mut last_depth = 0;
        while let Some(token) =
            tokens.next_if(|token| !matches!(token, Token::Begin(_) | Token::Bar | Token::Close))
        {
            let Parsed { node, depth } = match token {
                Token::Text(text) => Parsed { node: Node::Text(text), depth: 0 },
                Token::Class(class) => Parsed { node: Node::Class(class), depth: 0 },
                Token::Name(name) => Parsed { node: Node::Rule(self.intern(name)), depth: 0 },
                Token::Open => {
                    let inner = self.choice(tokens, num_groups + 1)?;
                    tokens.next_if_eq(&Token::Close).ok_or("a group is not closed")?;
                    inner
                }
                Token::Repeat(least, most) => {
                    let node = Box::new(nodes.pop().ok_or("a repetition follows nothing")?);
                    Parsed { node: Node::Repeat { node, least, most }, depth: deeper(last_depth)? }
                }
                Token::Begin(_) | Token::Bar | Token::Close => continue,
            };
            nodes.push(node);
            last_depth = depth;
            deepest = deepest.max(depth);
        }
        let node = if nodes.len() == 1 { nodes.swap_remove(0) } else { Node::Sequence(nodes) };
        Ok(Parsed { node, depth: deepest })
    }
}

/// Returns the depth of alternatives or a repetition around a part of this depth.
fn deeper(depth: usize) -> Result<usize, String> {
    if depth == MAX_DEPTH {
        return Err(format!("alternatives and repetitions are nested more than {MAX_DEPTH} deep"));
    }
    Ok(depth + 1)
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut chars = text.chars().peekable();
    let mut found = Vec::new();
    while let Some(char) = chars.next() {
        let token = match char {
            '#' => {
                while chars.next_if(|char| *char != '\n').is_some() {}
                continue;
            }
            '"' => Token::Text(quoted(&mut chars)?),
            '[' => Token::Class(class(&mut chars)?),
            '.' => Token::Class("(?s:.)".into()),
            '(' if chars.peek() == Some(&'=') => return Err("look-ahead `(=...)` is not supported".into()),
            '(' => Token::Open,
            ')' => Token::Close,
            '|' => Token::Bar,
            '*' => Token::Repeat(0, None),
            '+' => Token::Repeat(1, None),
            '?' => Token::Repeat(0, Some(1)),
            '{' => count(&mut chars)?,
            ':' if chars.next() == Some(':') && chars.next() == Some('=') => match found.pop() {
                Some(Token::Name(name)) => Token::Begin(name),
                _ => return Err("`::=` follows no name".into()),
            },
            char if char.is_alphanumeric() || char == '_' => {
                let mut name = String::from(char);
                let is_more = |char: &char| char.is_alphanumeric() || "_-.".contains(*char);
                while let Some(char) = chars.next_if(is_more) {
                    name.push(char);
                }
                Token::Name(name)
            }
            char if char.is_whitespace() => continue,
            char => return Err(format!("`{char}` is not supported outside of literals")),
        };
        found.push(token);
    }
    Ok(found)
}

fn quoted(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut text = String::new();
    loop {
        match chars.next() {
            None | Some('\n') => return Err("a literal is not closed".into()),
            Some('"') => return Ok(text),
            Some('\\') => text.push(escaped(chars)?),
            Some(char) => text.push(char),
        }
    }
}

fn escaped(chars: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    let num_digits = match chars.next().ok_or("an escape is incomplete")? {
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        char if char.is_ascii_alphanumeric() => {
            return Err(format!("the escape `\\{char}` is not supported"));
        }
        char => return Ok(char),
    };
    let digits: String = chars.by_ref().take(num_digits).collect();
    let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == num_digits);
    code.and_then(char::from_u32).ok_or_else(|| format!("`{digits}` is not the code of a character"))
}

fn class(chars: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let spelled = |char: char| format!("\\x{{{:x}}}", u32::from(char));
    let is_negated = chars.next_if_eq(&'^').is_some();
    let mut ranges = String::new();
    while let Some(first) = class_char(chars)? {
        ranges.push_str(&spelled(first));
        if chars.next_if_eq(&'-').is_some() {
            match class_char(chars)? {
                Some(last) if last < first => return Err(format!("the range `{first}-{last}` is empty")),
                Some(last) => ranges.push_str(&format!("-{}", spelled(last))),
                // A hyphen at the end is a character.
                None => {
                    ranges.push_str(&spelled('-'));
                    break;
                }
            }
        }
    }
    match (ranges.is_empty(), is_negated) {
        (true, true) => Ok("(?s:.)".into()),
        (true, false) => Err("a class is empty".into()),
        (false, true) => Ok(format!("[^{ranges}]")),
        (false, false) => Ok(format!("[{ranges}]")),
    }
}

/// Returns the next character of a class, or `None` at its end.
fn class_char(chars: &mut Peekable<Chars<'_>>) -> Result<Option<char>, String> {
    match chars.next() {
        None | Some('\n') => Err("a class is not closed".into()),
        Some(']') => Ok(None),
        Some('\\') => escaped(chars).map(Some),
        char => Ok(char),
    }
}

/// Parses what follows `{`: `3}`, `3,}` or `3,5}`.
fn count(chars: &mut Peekable<Chars<'_>>) -> Result<Token, String> {
    let mut text = String::new();
    while let Some(char) = chars.next_if(|char| *char != '}') {
        text.push(char);
    }
    chars.next().ok_or("a repetition is not closed")?;
    let number = |text: &str| match text.trim().parse::<u32>() {
        Ok(count) if count <= MAX_COUNT => Ok(count),
        _ => Err(format!("`{{{text}}}` is not a number of repetitions up to {MAX_COUNT}")),
    };
    let (least, most) = match text.split_once(',') {
        None => (number(&text)?, Some(number(&text)?)),
        Some((least, "")) => (number(least)?, None),
        Some(("", most)) => (0, Some(number(most)?)),
        Some((least, most)) => (number(least)?, Some(number(most)?)),
    };
    if most.is_some_and(|most| most < least) {
        return Err(format!("`{{{text}}}` allows no number of repetitions"));
    }
    Ok(Token::Repeat(least, most))
}

/// Writes rules in Lark.
struct Translation<'a> {
    rules: &'a Rules,
    writer: &'a mut LarkWriter,
    /// Set, by index, for each rule that may contain itself or contains such a rule.
    is_recursive: Vec<bool>,
    /// The names of the rules that were written or are being written.
    names: Vec<Option<String>>,
    is_written: Vec<bool>,
}

impl<'a> Translation<'a> {
    fn new(rules: &'a Rules, writer: &'a mut LarkWriter) -> Self {
        let (is_recursive, names) = (rules.recursive(), vec![None; rules.names.len()]);
        Self { rules, writer, is_recursive, names, is_written: vec![false; rules.names.len()] }
    }

    /// Writes a rule unless it is written, and returns its name.
    fn rule(&mut self, root: usize) -> String {
        let mut waiting = vec![root];
        while let Some(&idx) = waiting.last() {
            // Several rules may have waited for this one.
            if self.is_written[idx] {
                waiting.pop();
                continue;
            }
            let Some(body) = &self.rules.bodies[idx] else { break };
            if self.names[idx].is_none() && self.is_recursive[idx] {
                self.names[idx] = Some(self.writer.reserve());
            }
            let mut inner = Vec::new();
            references(body, &mut inner);
            // A rule that contains itself needs only the names of those inside it.
            inner.retain(|inner| self.names[*inner].is_none());
            if inner.is_empty() {
                waiting.pop();
                self.is_written[idx] = true;
                if self.is_recursive[idx] {
                    if let Some(name) = self.names[idx].clone() {
                        let body = self.body(body);
                        self.writer.define(&name, &body);
                    }
                } else {
                    let expression = self.expression(body);
                    self.names[idx] = Some(self.writer.terminal(&expression));
                }
            } else {
                waiting.extend(inner);
            }
        }
        self.names[root].clone().unwrap_or_default()
    }

    /// Writes a part without recursive rules.
    fn expression(&self, node: &Node) -> String {
        let joined = |nodes: &[Node], separator: &str| {
            nodes.iter().map(|node| self.expression(node)).collect::<Vec<_>>().join(separator)
        };
        match node {
            Node::Text(text) => literal(text),
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(idx) => self.names[*idx].clone().unwrap_or_default(),
            Node::Sequence(nodes) if nodes.is_empty() => literal(""),
            Node::Sequence(nodes) => joined(nodes, " "),
            Node::Choice(nodes) => format!("({})", joined(nodes, " | ")),
            Node::Repeat { node, least, most } => repeated(&self.expression(node), *least, *most),
        }
    }

    /// Writes a part that may contain recursive rules. Its other parts become expressions.
    fn body(&mut self, node: &Node) -> String {
        if !self.has_recursive(node) {
            let expression = self.expression(node);
            return self.writer.terminal(&expression);
        }
        match node {
            Node::Sequence(nodes) => {
                let groups = nodes.chunk_by(|a, b| !self.has_recursive(a) && !self.has_recursive(b));
                let groups: Vec<Node> = groups
                    .map(
                        |group| {
                            if let [node] = group { node.clone() } else { Node::Sequence(group.to_vec()) }
                        },
                    )
                    .collect();
                groups.iter().map(|group| self.body(group)).collect::<Vec<_>>().join(" ")
            }
            Node::Choice(nodes) => {
                let choices: Vec<String> = nodes.iter().map(|node| self.body(node)).collect();
                format!("({})", choices.join(" | "))
            }
            Node::Repeat { node, least, most } => {
                let inner = self.body(node);
                repeated(&inner, *least, *most)
            }
            node => self.expression(node),
        }
    }

    fn has_recursive(&self, node: &Node) -> bool {
        let mut inner = Vec::new();
        references(node, &mut inner);
        inner.into_iter().any(|idx| self.is_recursive[idx])
    }
}

impl Rules {
    /// Returns for each rule whether it contains itself, or a rule that does.
    fn recursive(&self) -> Vec<bool> {
        let inner: Vec<Vec<usize>> = self
            .bodies
            .iter()
            .map(|body| {
                let mut inner = Vec::new();
                body.iter().for_each(|body| references(body, &mut inner));
                inner
            })
            .collect();
        // A rule is not recursive once all rules inside it are known not to be.
        let mut is_recursive = vec![true; inner.len()];
        let mut containing = vec![Vec::new(); inner.len()];
        let mut num_left: Vec<usize> = inner.iter().map(Vec::len).collect();
        inner
            .iter()
            .enumerate()
            .for_each(|(idx, inner)| inner.iter().for_each(|rule| containing[*rule].push(idx)));
        let mut plain: Vec<usize> = (0..inner.len()).filter(|idx| num_left[*idx] == 0).collect();
        while let Some(idx) = plain.pop() {
            is_recursive[idx] = false;
            for &outer in &containing[idx] {
                num_left[outer] -= 1;
                if num_left[outer] == 0 {
                    plain.push(outer);
                }
            }
        }
        is_recursive
    }
}

fn repeated(inner: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (_, Some(0)) => literal(""),
        (0, None) => format!("({inner})*"),
        (1, None) => format!("({inner})+"),
        (0, Some(1)) => format!("({inner})?"),
        (least, None) => format!("({inner}){{{least},}}"),
        (least, Some(most)) => format!("({inner}){{{least},{most}}}"),
    }
}

/// Collects the rules that a part names, with repetitions.
fn references(node: &Node, found: &mut Vec<usize>) {
    match node {
        Node::Rule(idx) => found.push(*idx),
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes.iter().for_each(|node| references(node, found)),
        Node::Repeat { node, .. } => references(node, found),
        Node::Text(_) | Node::Class(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> Result<String, String> {
        let mut writer = LarkWriter::default();
        translate(text, &mut writer).map(|root| writer.finish(&root))
    }

    #[test]
    fn rules_that_do_not_contain_themselves_become_expressions() {
        assert_eq!(
            translated("root ::= \"a\\n\" digit{2,} | # a comment\n  [^x-z\\]]? .\ndigit ::= [0-9-]")
                .unwrap(),
            "start: R2\nR1: /[\\x{30}-\\x{39}\\x{2d}]/\nR2: (\"a\\n\" (R1){2,} | (/[^\\x{78}-\\x{7a}\\x{5d}]/)? /(?s:.)/)\n"
        );
    }

    #[test]
    fn rules_that_contain_themselves_stay_rules() {
        assert_eq!(
            translated("root ::= list-item\nlist-item ::= \"(\" sign list-item* \")\" | \"x\"\nsign ::= [+]")
                .unwrap(),
            "start: r1\nR3: /[\\x{2b}]/\nR4: \"(\" R3\nR5: \")\"\nR6: \"x\"\nr2: (R4 (r2)* R5 | R6)\nr1: r2\n"
        );
    }

    #[test]
    fn faults_are_named() {
        for (text, fault) in [
            ("start ::= \"a\"", "the rule `root` is missing"),
            ("root ::= other", "the rule `other` is not defined"),
            ("root ::= \"a\"\nroot ::= \"b\"", "the rule `root` is defined twice"),
            ("root ::= \"a", "a literal is not closed"),
            ("root ::= [a", "a class is not closed"),
            ("root ::= (\"a\"", "a group is not closed"),
            ("root ::= \"a\")", "the rule `root` closes a group that it does not open"),
            ("root ::= \"a\"{3,2}", "`{3,2}` allows no number of repetitions"),
            ("root ::= \"a\"{99999}", "`{99999}` is not a number of repetitions up to 10000"),
            ("root ::= * \"a\"", "a repetition follows nothing"),
            ("root ::= \"a\" (=\"b\")", "look-ahead `(=...)` is not supported"),
            ("root ::= <[3]>", "`<` is not supported outside of literals"),
            ("root ::= \"\\q\"", "the escape `\\q` is not supported"),
        ] {
            assert_eq!(translated(text).unwrap_err(), fault, "{text}");
        }
        let nested = |open: &str, close: &str, count: usize| {
            translated(&format!("root ::= {}\"a\"{}", open.repeat(count), close.repeat(count)))
        };
        let deep = "alternatives and repetitions are nested more than 28 deep";
        for (open, close, most, fault) in [
            ("(", ")", MAX_GROUPS, "groups are nested more than 64 deep"),
            ("", "*", MAX_DEPTH, deep),
            ("", "{1,2}", MAX_DEPTH, deep),
            ("(", ")+", MAX_DEPTH, deep),
            ("(\"b\" | ", ")", MAX_DEPTH, deep),
        ] {
            assert!(nested(open, close, most).is_ok(), "{open}{close}");
            assert_eq!(nested(open, close, most + 1).unwrap_err(), fault, "{open}{close}");
        }
        let apart = "\"a\"* ".repeat(1_000);
        assert!(translated(&format!("root ::= {apart}")).is_ok(), "repetitions beside each other");
    }

    #[test]
    fn ebnf_is_told_from_lark() {
        assert!(is_ebnf("root ::= \"a\"") && is_ebnf("# text\nroot  ::=\n \"a\""));
        assert!(!is_ebnf("start: \"::=\"") && !is_ebnf("# root ::= x\nstart: /a/"));
    }
}
