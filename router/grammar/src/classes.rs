//! What the character classes of regular expressions take before any other limit holds.

use crate::GrammarError;

/// Cost of all classes of a grammar. A Unicode class is some 800 ranges, 6 kB.
const MAX_COST: usize = 4096;
/// Regardless of case each character of a class is looked up, a million of them where it is a negated one.
const COST_REGARDLESS_OF_CASE: usize = 8;

/// Counts the classes of a grammar's expressions.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    cost: usize,
}

impl Classes {
    /// Those of one expression more, or of a text with expressions: an upper bound, as nothing is parsed yet.
    pub(crate) fn add(&mut self, expression: &str) -> Result<(), GrammarError> {
        let bytes = expression.as_bytes();
        let is_class =
            |pair: &[u8]| matches!(pair, [b'\\', b'p' | b'P' | b'd' | b'D' | b's' | b'S' | b'w' | b'W']);
        let count = bytes.windows(2).filter(|pair| is_class(pair)).count()
            + bytes.iter().filter(|&&byte| byte == b'[').count();
        let each = if ignores_case(expression) { COST_REGARDLESS_OF_CASE } else { 1 };
        self.cost += count * each;
        if self.cost <= MAX_COST {
            return Ok(());
        }
        let limit = MAX_COST / each;
        Err(GrammarError::too_complex(format!("more than {limit} character classes in regular expressions")))
    }
}

/// Whether a group sets the flag `i`, or, as Lark writes it, the end of an expression.
fn ignores_case(text: &str) -> bool {
    let of_group = |rest: &str| {
        let flags = rest.split(|c: char| !c.is_ascii_alphabetic() && c != '-').next().unwrap_or_default();
        flags.contains('i')
    };
    let of_lark = |rest: &str| {
        let word = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        word.contains('i') && word.bytes().all(|byte| b"imslux".contains(&byte))
    };
    text.split("(?").skip(1).any(of_group) || text.split('/').skip(1).any(of_lark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_counted_and_dearer_regardless_of_case() {
        let cost = |expression: &str| {
            let mut classes = Classes::default();
            classes.add(expression).map(|()| classes.cost)
        };
        assert_eq!(cost(r"ab.*\.\{"), Ok(0));
        assert_eq!(cost(r"[a-z]\w{3}\P{L}"), Ok(3));
        for folded in [r"(?i)\w", r"a(?i:\w)", r"(?sxi-m:\w)", r"a: /\w/i"] {
            assert_eq!(cost(folded), Ok(COST_REGARDLESS_OF_CASE), "{folded}");
        }
        for plain in [r"(?s)i\w", r"(?:i)\w", r"(?P<i>\w)(?<i>i)", r"a: /\w/ b: /items/"] {
            assert_eq!(cost(plain), Ok(1), "{plain}");
        }
        let mut classes = Classes::default();
        classes.add(&r"\w".repeat(MAX_COST)).unwrap();
        assert_eq!(classes.add("x"), Ok(()));
        assert_eq!(classes.add("[x]").unwrap_err().code(), "schema_too_complex");
        assert!(cost(&format!("(?i){}", "[x]".repeat(513))).unwrap_err().to_string().contains("512"));
    }
}
