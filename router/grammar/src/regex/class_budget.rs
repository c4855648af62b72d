//! A limit on character classes, whose cost arises before any other limit applies.

use crate::error::GrammarError;

/// Largest cost of all classes of a grammar. A Unicode class has some 800 ranges, which take 6 kB.
const MAX_COST: usize = 4096;
/// Cost of a class that ignores case. Each of its characters is looked up, up to a million in a negated class.
const CASE_INSENSITIVE_COST: usize = 8;

/// The cost of the classes in a grammar's expressions so far.
#[derive(Debug, Default)]
pub(crate) struct ClassBudget {
    cost: usize,
}

impl ClassBudget {
    /// Adds the classes of an expression, or of a grammar's text. The count is an upper bound, because nothing is
    /// parsed yet.
    pub(crate) fn add(&mut self, expression: &str) -> Result<(), GrammarError> {
        let bytes = expression.as_bytes();
        let is_class =
            |pair: &[u8]| matches!(pair, [b'\\', b'p' | b'P' | b'd' | b'D' | b's' | b'S' | b'w' | b'W']);
        let count = bytes.windows(2).filter(|pair| is_class(pair)).count()
            + bytes.iter().filter(|&&byte| byte == b'[').count();
        let each = if ignores_case(expression) { CASE_INSENSITIVE_COST } else { 1 };
        self.cost += count * each;
        if self.cost <= MAX_COST {
            return Ok(());
        }
        let limit = MAX_COST / each;
        let detail = format!("its regular expressions have more than {limit} character classes");
        Err(GrammarError::too_complex(detail))
    }
}

/// Returns true if a group sets the flag `i`, or the end of an expression as Lark writes it.
fn ignores_case(text: &str) -> bool {
    let in_group = |rest: &str| {
        let flags = rest.split(|c: char| !c.is_ascii_alphabetic() && c != '-').next().unwrap_or_default();
        flags.contains('i')
    };
    let in_lark = |rest: &str| {
        let word = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        word.contains('i') && word.bytes().all(|byte| b"imslux".contains(&byte))
    };
    text.split("(?").skip(1).any(in_group) || text.split('/').skip(1).any(in_lark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_counted_and_cost_more_if_they_ignore_case() {
        let cost = |expression: &str| {
            let mut budget = ClassBudget::default();
            budget.add(expression).map(|()| budget.cost)
        };
        assert_eq!(cost(r"ab.*\.\{"), Ok(0));
        assert_eq!(cost(r"[a-z]\w{3}\P{L}"), Ok(3));
        for folded in [r"(?i)\w", r"a(?i:\w)", r"(?sxi-m:\w)", r"a: /\w/i"] {
            assert_eq!(cost(folded), Ok(CASE_INSENSITIVE_COST), "{folded}");
        }
        for plain in [r"(?s)i\w", r"(?:i)\w", r"(?P<i>\w)(?<i>i)", r"a: /\w/ b: /items/"] {
            assert_eq!(cost(plain), Ok(1), "{plain}");
        }
        let mut budget = ClassBudget::default();
        budget.add(&r"\w".repeat(MAX_COST)).unwrap();
        assert_eq!(budget.add("x"), Ok(()));
        assert_eq!(budget.add("[x]").unwrap_err().code(), "schema_too_complex");
        assert!(cost(&format!("(?i){}", "[x]".repeat(513))).unwrap_err().to_string().contains("512"));
    }
}
