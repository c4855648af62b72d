//! Rewrites regular expressions so that an output matches in every dialect.
//!
//! In ECMA-262, and therefore in JSON schema, `\d` and `\w` match only ASCII. In Rust and Python they match Unicode,
//! and each dialect has its own white space. An output must be valid for every reader, so a class becomes the
//! characters that it contains in all dialects.

use std::collections::HashSet;
use std::convert::Infallible;
use std::ops::Range;

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassPerl, ClassPerlKind, ClassSetBinaryOp, ClassSetBinaryOpKind, ClassSetItem,
    ErrorKind, Flag, Flags, GroupKind, Span, Visitor,
};

/// Most hyphens of an expression that are escaped because they cannot form a range.
const MAX_HYPHENS: usize = 64;

/// The reason why an expression is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RegexError {
    /// The expression has a fault, which the text names with its position.
    Invalid(String),
    /// The expression contains this construct, for which there is no automaton.
    Unsupported(String),
}

/// Rewrites an expression with classes that mean the same in every dialect.
pub(crate) fn portable(expression: &str) -> Result<String, RegexError> {
    let mut text = expression.to_owned();
    let mut num_hyphens = 0;
    let ast = loop {
        match Parser::new().parse(&text) {
            Ok(ast) => break ast,
            Err(error) => {
                let hyphen = hyphen_beside_class(&text, &error).filter(|_| num_hyphens < MAX_HYPHENS);
                text.insert(hyphen.ok_or_else(|| regex_error(&text, &error))?, '\\');
                num_hyphens += 1;
            }
        }
    };
    let Ok(found) = ast::visit(&ast, ClassVisitor::default());
    if let Some(span) = found.boundary {
        return Err(RegexError::Unsupported(format!(
            "a word boundary at character {}",
            character(&text, span)
        )));
    }
    if !found.is_unicode {
        return Ok(text);
    }
    for (range, class) in found.classes.into_iter().rev() {
        text.replace_range(range, class);
    }
    Ok(text)
}

/// Returns the position of a hyphen that cannot form a range, as in `[\w-.]`. Other dialects read it as a literal.
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

fn regex_error(text: &str, error: &ast::Error) -> RegexError {
    let at = character(text, *error.span());
    match error.kind() {
        ErrorKind::UnsupportedLookAround => RegexError::Unsupported(format!("look-around at character {at}")),
        ErrorKind::UnsupportedBackreference => {
            RegexError::Unsupported(format!("a backreference at character {at}"))
        }
        kind => RegexError::Invalid(format!("{kind} at character {at}")),
    }
}

/// Returns the number of a span's first character, counted from 1.
fn character(text: &str, span: Span) -> usize {
    1 + text.char_indices().take_while(|(offset, _)| *offset < span.start.offset).count()
}

/// Collects the Perl classes of an expression and their replacements.
struct ClassVisitor {
    /// Ranges of classes to replace, in ascending order, with the replacements.
    classes: Vec<(Range<usize>, &'static str)>,
    /// The first word boundary.
    boundary: Option<Span>,
    /// Cleared if a flag turns Unicode off.
    is_unicode: bool,
    /// True if the characters matched here are excluded from the outermost class.
    is_excluded: bool,
    /// Offsets of classes beside their own complement, as in `[\s\S]`. Together they match every character.
    complements: HashSet<usize>,
    /// Number of enclosing symmetric differences. A class inside one is not replaced, because narrowing it could widen
    /// the whole.
    num_symmetric_differences: usize,
}

impl Default for ClassVisitor {
    fn default() -> Self {
        let (classes, complements) = Default::default();
        let (boundary, is_unicode, is_excluded, num_symmetric_differences) = (None, true, false, 0);
        Self { classes, boundary, is_unicode, is_excluded, complements, num_symmetric_differences }
    }
}

impl ClassVisitor {
    fn add_class(&mut self, class: &ClassPerl) {
        if self.num_symmetric_differences == 0 && !self.complements.contains(&class.span.start.offset) {
            let range = class.span.start.offset..class.span.end.offset;
            self.classes.push((range, portable_class(&class.kind, class.negated, self.is_excluded)));
        }
    }

    fn add_union(&mut self, items: &[ClassSetItem]) {
        let classes: Vec<&ClassPerl> = items
            .iter()
            .filter_map(|item| match item {
                ClassSetItem::Perl(class) => Some(class),
                _ => None,
            })
            .collect();
        // In every dialect the two classes are complements of each other.
        let has = |kind: &ClassPerlKind, negated: bool| {
            classes.iter().any(|class| class.kind == *kind && class.negated == negated)
        };
        for class in &classes {
            if has(&class.kind, !class.negated) {
                self.complements.insert(class.span.start.offset);
            }
        }
    }

    fn add_flags(&mut self, flags: &Flags) {
        self.is_unicode &= flags.flag_state(Flag::Unicode) != Some(false);
    }
}

impl Visitor for ClassVisitor {
    type Output = Self;
    type Err = Infallible;

    fn finish(self) -> Result<Self, Infallible> {
        Ok(self)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        match ast {
            Ast::ClassPerl(class) => self.add_class(class),
            Ast::ClassBracketed(class) => self.is_excluded = class.negated,
            Ast::Flags(set) => self.add_flags(&set.flags),
            Ast::Group(group) => {
                if let GroupKind::NonCapturing(flags) = &group.kind {
                    self.add_flags(flags);
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
            self.is_excluded = false;
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Perl(class) => self.add_class(class),
            ClassSetItem::Bracketed(class) => self.is_excluded ^= class.negated,
            ClassSetItem::Union(union) => self.add_union(&union.items),
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_post(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        if let ClassSetItem::Bracketed(class) = item {
            self.is_excluded ^= class.negated;
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, op: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.num_symmetric_differences += usize::from(op.kind == ClassSetBinaryOpKind::SymmetricDifference);
        Ok(())
    }

    fn visit_class_set_binary_op_in(&mut self, op: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.is_excluded ^= op.kind == ClassSetBinaryOpKind::Difference;
        Ok(())
    }

    fn visit_class_set_binary_op_post(&mut self, op: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.is_excluded ^= op.kind == ClassSetBinaryOpKind::Difference;
        self.num_symmetric_differences -= usize::from(op.kind == ClassSetBinaryOpKind::SymmetricDifference);
        Ok(())
    }
}

/// Returns the characters that a class contains in all dialects, or in any dialect if it is excluded.
///
/// All dialects have the same 6 ASCII characters of white space. Python adds U+001C to U+001F, ECMA-262 U+FEFF, and old
/// Unicode tables U+180E. Python's `\w` also includes numeric characters that are not decimal digits.
fn portable_class(kind: &ClassPerlKind, is_negated: bool, is_excluded: bool) -> &'static str {
    let is_ascii = is_negated == is_excluded;
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
    fn classes_become_portable() {
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
            let text = portable(expression).unwrap_or_else(|error| panic!("{expression}: {error:?}"));
            assert_eq!(text, expected);
            regex_syntax::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    #[test]
    fn errors_name_the_position() {
        for (expression, expected) in [
            ("é(?=a)b", RegexError::Unsupported("look-around at character 2".into())),
            ("a(?<!b)", RegexError::Unsupported("look-around at character 2".into())),
            (r"(a)\1", RegexError::Unsupported("a backreference at character 4".into())),
            (r"a\b", RegexError::Unsupported("a word boundary at character 2".into())),
            ("ab(", RegexError::Invalid("unclosed group at character 3".into())),
        ] {
            assert_eq!(portable(expression), Err(expected), "{expression}");
        }
    }
}
