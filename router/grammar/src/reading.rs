//! A regular expression that means the same to all who read it.
//!
//! To ECMA-262, and so to JSON schema, `\d` and `\w` are of ASCII, to Rust and Python of Unicode, and each has its own
//! white space. What is written has to match for any reader: a class stands for what is in it for all of them.

use std::collections::HashSet;
use std::convert::Infallible;
use std::ops::Range;

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassPerl, ClassPerlKind, ClassSetBinaryOp, ClassSetBinaryOpKind, ClassSetItem,
    ErrorKind, Flag, Flags, GroupKind, Span, Visitor,
};

/// So many hyphens of one expression are seen to be meant as such.
const MAX_HYPHENS: usize = 64;

/// Why an expression cannot be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is none.
    Wrong(String),
    /// It is one, of a kind that has no automaton here.
    Unsupported(String),
}

/// The expression with classes for all readers.
pub(crate) fn for_all_readers(expression: &str) -> Result<String, Fault> {
    let mut text = expression.to_owned();
    let mut num_hyphens = 0;
    let ast = loop {
        match Parser::new().parse(&text) {
            Ok(ast) => break ast,
            Err(error) => {
                let hyphen = hyphen_beside_class(&text, &error).filter(|_| num_hyphens < MAX_HYPHENS);
                text.insert(hyphen.ok_or_else(|| fault(&text, &error))?, '\\');
                num_hyphens += 1;
            }
        }
    };
    let Ok(found) = ast::visit(&ast, Found::default());
    if let Some(span) = found.boundary {
        return Err(Fault::Unsupported(format!("a word boundary at character {}", character(&text, span))));
    }
    if !found.is_unicode {
        return Ok(text);
    }
    for (range, class) in found.classes.into_iter().rev() {
        text.replace_range(range, class);
    }
    Ok(text)
}

/// Where the hyphen is that cannot be a range's, as in `[\w-.]`: to others it is itself.
fn hyphen_beside_class(text: &str, error: &ast::Error) -> Option<usize> {
    let span = error.span();
    if *error.kind() != ErrorKind::ClassRangeLiteral {
        return None;
    }
    if text.get(span.end.offset..)?.starts_with('-') {
        return Some(span.end.offset);
    }
    text.get(..span.start.offset)?.ends_with('-').then(|| span.start.offset - 1)
}

fn fault(text: &str, error: &ast::Error) -> Fault {
    let at = character(text, *error.span());
    match error.kind() {
        ErrorKind::UnsupportedLookAround => Fault::Unsupported(format!("look-around at character {at}")),
        ErrorKind::UnsupportedBackreference => {
            Fault::Unsupported(format!("a backreference at character {at}"))
        }
        kind => Fault::Wrong(format!("{kind} at character {at}")),
    }
}

/// The number of a span's first character, from 1.
fn character(text: &str, span: Span) -> usize {
    1 + text.char_indices().take_while(|(offset, _)| *offset < span.start.offset).count()
}

/// What one walk over an expression finds.
struct Found {
    /// Places of Perl's classes, in their order, and what to write there.
    classes: Vec<(Range<usize>, &'static str)>,
    boundary: Option<Span>,
    /// No flag turns Unicode off.
    is_unicode: bool,
    /// What is in a class here is not in the outermost.
    is_outside: bool,
    /// Offsets of classes that stand beside their own complement, as in `[\s\S]`: together they are all there is.
    complements: HashSet<usize>,
    /// Symmetric differences that this is in: more of either may be more or less of all.
    num_open: usize,
}

impl Default for Found {
    fn default() -> Self {
        let (classes, complements) = Default::default();
        Self { classes, boundary: None, is_unicode: true, is_outside: false, complements, num_open: 0 }
    }
}

impl Found {
    fn see(&mut self, class: &ClassPerl) {
        if self.num_open == 0 && !self.complements.contains(&class.span.start.offset) {
            let range = class.span.start.offset..class.span.end.offset;
            self.classes.push((range, class_for_all(&class.kind, class.negated, self.is_outside)));
        }
    }

    fn see_union(&mut self, items: &[ClassSetItem]) {
        let classes: Vec<&ClassPerl> = items
            .iter()
            .filter_map(|item| match item {
                ClassSetItem::Perl(class) => Some(class),
                _ => None,
            })
            .collect();
        // The complement of one is the other to whoever reads them.
        let has = |kind: &ClassPerlKind, negated: bool| {
            classes.iter().any(|class| class.kind == *kind && class.negated == negated)
        };
        for class in &classes {
            if has(&class.kind, !class.negated) {
                self.complements.insert(class.span.start.offset);
            }
        }
    }

    fn see_flags(&mut self, flags: &Flags) {
        self.is_unicode &= flags.flag_state(Flag::Unicode) != Some(false);
    }
}

impl Visitor for Found {
    type Output = Self;
    type Err = Infallible;

    fn finish(self) -> Result<Self, Infallible> {
        Ok(self)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        match ast {
            Ast::ClassPerl(class) => self.see(class),
            Ast::ClassBracketed(class) => self.is_outside = class.negated,
            Ast::Flags(set) => self.see_flags(&set.flags),
            Ast::Group(group) => {
                if let GroupKind::NonCapturing(flags) = &group.kind {
                    self.see_flags(flags);
                }
            }
            Ast::Assertion(assertion) => {
                let is_anchor = matches!(
                    assertion.kind,
                    AssertionKind::StartLine
                        | AssertionKind::EndLine
                        | AssertionKind::StartText
                        | AssertionKind::EndText
                );
                if !is_anchor {
                    self.boundary.get_or_insert(assertion.span);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), Infallible> {
        if matches!(ast, Ast::ClassBracketed(_)) {
            self.is_outside = false;
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Perl(class) => self.see(class),
            ClassSetItem::Bracketed(class) => self.is_outside ^= class.negated,
            ClassSetItem::Union(union) => self.see_union(&union.items),
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_post(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        if let ClassSetItem::Bracketed(class) = item {
            self.is_outside ^= class.negated;
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, op: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.num_open += usize::from(op.kind == ClassSetBinaryOpKind::SymmetricDifference);
        Ok(())
    }

    fn visit_class_set_binary_op_in(&mut self, op: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.is_outside ^= op.kind == ClassSetBinaryOpKind::Difference;
        Ok(())
    }

    fn visit_class_set_binary_op_post(&mut self, op: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.is_outside ^= op.kind == ClassSetBinaryOpKind::Difference;
        self.num_open -= usize::from(op.kind == ClassSetBinaryOpKind::SymmetricDifference);
        Ok(())
    }
}

/// What is in a class for all readers; `is_outside`: for any of them, as what is in it will not match.
///
/// White space is of 6 characters in ASCII for all. Beyond it, Python adds U+001C to U+001F, ECMA-262 U+FEFF, and old
/// tables of Unicode U+180E; Python's letters and digits have numbers of other kinds, too.
fn class_for_all(kind: &ClassPerlKind, is_negated: bool, is_outside: bool) -> &'static str {
    let is_ascii = is_negated == is_outside;
    match (kind, is_ascii, is_negated) {
        (ClassPerlKind::Digit, true, false) => "[0-9]",
        (ClassPerlKind::Digit, true, true) => "[^0-9]",
        (ClassPerlKind::Digit, false, false) => r"[\p{Nd}]",
        (ClassPerlKind::Digit, false, true) => r"[^\p{Nd}]",
        (ClassPerlKind::Word, true, false) => "[0-9A-Za-z_]",
        (ClassPerlKind::Word, true, true) => "[^0-9A-Za-z_]",
        (ClassPerlKind::Word, false, false) => r"[\p{Alphabetic}\p{M}\p{N}\p{Pc}\p{Join_Control}]",
        (ClassPerlKind::Word, false, true) => r"[^\p{Alphabetic}\p{M}\p{N}\p{Pc}\p{Join_Control}]",
        (ClassPerlKind::Space, true, false) => r"[\t-\r\x20]",
        (ClassPerlKind::Space, true, true) => r"[^\t-\r\x20]",
        (ClassPerlKind::Space, false, false) => r"[\p{White_Space}\x1c-\x1f\u{feff}\u{180e}]",
        (ClassPerlKind::Space, false, true) => r"[^\p{White_Space}\x1c-\x1f\u{feff}\u{180e}]",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\p{Join_Control}";
    const SPACES: &str = r"\p{White_Space}\x1c-\x1f\u{feff}\u{180e}";

    #[test]
    fn classes_are_what_they_are_for_all_readers() {
        for (expression, expected) in [
            (r"\d{3}-\w+\s", r"[0-9]{3}-[0-9A-Za-z_]+[\t-\r\x20]".to_owned()),
            (r"\D\W\S", format!(r"[^\p{{Nd}}][^{WORDS}][^{SPACES}]")),
            (r"[\d.][^\d][\W]", format!(r"[[0-9].][^[\p{{Nd}}]][[^{WORDS}]]")),
            (r"[^\D\s]", format!(r"[^[^0-9][{SPACES}]]")),
            (r"[a[^\W[^\w]]]", "[a[^[^0-9A-Za-z_][^[0-9A-Za-z_]]]]".to_owned()),
            (r"[\w--\d&&\w]", r"[[0-9A-Za-z_]--[\p{Nd}]&&[0-9A-Za-z_]]".to_owned()),
            (r"[\w~~\d]\d", r"[\w~~\d][0-9]".to_owned()),
            (r"\\d[[:word:]]\p{L}é\d", r"\\d[[:word:]]\p{L}é[0-9]".to_owned()),
            (r"[\s[ab]\S][\w\W\d][^\d\D]", r"[\s[ab]\S][\w\W[0-9]][^\d\D]".to_owned()),
            (r"(?-u)\d", r"(?-u)\d".to_owned()),
            (r"[\w-.]+@[a-\d-x]", r"[[0-9A-Za-z_]\-.]+@[a\-[0-9]\-x]".to_owned()),
            (r"^(?i)a|b$", r"^(?i)a|b$".to_owned()),
        ] {
            let text = for_all_readers(expression).unwrap_or_else(|fault| panic!("{expression}: {fault:?}"));
            assert_eq!(text, expected);
            regex_syntax::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (expression, expected) in [
            ("é(?=a)b", Fault::Unsupported("look-around at character 2".into())),
            ("a(?<!b)", Fault::Unsupported("look-around at character 2".into())),
            (r"(a)\1", Fault::Unsupported("a backreference at character 4".into())),
            (r"a\b", Fault::Unsupported("a word boundary at character 2".into())),
            ("ab(", Fault::Wrong("unclosed group at character 3".into())),
        ] {
            assert_eq!(for_all_readers(expression), Err(expected), "{expression}");
        }
    }
}
