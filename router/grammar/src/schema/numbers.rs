//! Adapts the numbers of a schema to the parser's arithmetic.
//!
//! The parser stores numbers as doubles, integers in 64 bits, and writes a double with the fewest digits that identify
//! it. Where it would enforce another number, the number is moved so that fewer outputs are allowed and each is valid.

use serde_json::{Map, Number, Value, json};

use crate::schema::normalize::allows_type;
use crate::schema::unsupported::UnsupportedKeyword;

/// From here on doubles cannot represent all integers.
const FIRST_INEXACT: u128 = 1 << 53;
/// The largest double below 2^63.
const LARGEST: f64 = 9_223_372_036_854_774_784.0;
/// A bound at least this far from zero needs a second bound on its other side, because the parser has no expression for
/// all numbers beyond it.
const LARGEST_SINGLE_BOUND: f64 = 1e18;

/// The two ends of an interval, each with the keywords of its inclusive and its exclusive bound.
const ENDS: [(End, &str, &str); 2] =
    [(End::Lower, "minimum", "exclusiveMinimum"), (End::Upper, "maximum", "exclusiveMaximum")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Lower,
    Upper,
}

/// Refuses `const` and `enum` with numbers, at any depth, that the parser would write as other numbers.
pub(crate) fn check_values(schema: &Map<String, Value>) -> Result<(), UnsupportedKeyword> {
    for keyword in ["const", "enum"] {
        if let Some(number) = schema.get(keyword).and_then(inexact) {
            let reason =
                format!(" with the number {number}, which is not exact as a double; hint: use a string");
            return Err(UnsupportedKeyword::new(keyword, reason));
        }
    }
    Ok(())
}

/// Finds a number in a value that the parser would write as another number.
fn inexact(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => (!is_exact(number)).then_some(number),
        Value::Array(list) => list.iter().find_map(inexact),
        Value::Object(map) => map.values().find_map(inexact),
        _ => None,
    }
}

fn is_exact(number: &Number) -> bool {
    let Some(double) = number.as_f64() else { return false };
    if let Some(whole) = number.as_i64() {
        return double.abs() <= LARGEST && double as i128 == i128::from(whole);
    }
    // Other keywords may tell the parser that the number is an integer, and it would then cut it to 64 bits.
    match large_integer_part(number) {
        None => true,
        Some(whole) => double.abs() <= LARGEST && shortest_digits(double) == whole && double as i128 == whole,
    }
}

/// Moves bounds that the parser would misread or refuse inwards, to the nearest numbers that it enforces.
pub(crate) fn tighten_bounds(schema: &mut Map<String, Value>) -> Result<(), UnsupportedKeyword> {
    if !allows_type(schema, "number") && !allows_type(schema, "integer") {
        return Ok(());
    }
    let mut changed = None;
    for (end, inclusive, exclusive) in ENDS {
        tighten_end(schema, end, inclusive, exclusive, &mut changed)?;
    }
    let [lower, upper] = ENDS.map(|(end, inclusive, exclusive)| bound(schema, end, inclusive, exclusive));
    if lower.is_some_and(|lower| lower >= LARGEST_SINGLE_BOUND) && upper.is_none() {
        schema.insert("maximum".to_owned(), json!(LARGEST));
    }
    if upper.is_some_and(|upper| upper <= -LARGEST_SINGLE_BOUND) && lower.is_none() {
        schema.insert("minimum".to_owned(), json!(-LARGEST));
    }
    match (changed, lower, upper) {
        (Some(keyword), Some(lower), Some(upper)) if lower > upper => {
            Err(UnsupportedKeyword::new(keyword, " because no number within the bounds is exact as a double"))
        }
        _ => Ok(()),
    }
}

fn tighten_end(
    schema: &mut Map<String, Value>,
    end: End,
    inclusive: &'static str,
    exclusive: &'static str,
    changed: &mut Option<&'static str>,
) -> Result<(), UnsupportedKeyword> {
    // In draft 4 `exclusiveMinimum` is a boolean that makes `minimum` exclusive.
    let is_draft4_exclusive = schema.get(exclusive) == Some(&Value::Bool(true));
    for (keyword, is_exclusive) in [(inclusive, is_draft4_exclusive), (exclusive, true)] {
        let Some(whole) = schema.get(keyword).and_then(Value::as_number).and_then(large_integer_part) else {
            continue;
        };
        let tight = match (end, is_exclusive) {
            (_, false) => round_inwards(whole, end),
            (End::Lower, true) => round_inwards(whole.saturating_add(1), end),
            (End::Upper, true) => round_inwards(whole.saturating_sub(1), end),
        };
        let Some(tight) = tight else {
            return Err(UnsupportedKeyword::new(keyword, format!(" beyond {}", shortest_digits(LARGEST))));
        };
        if !is_exclusive
            && schema.get(keyword).and_then(Value::as_f64) == Some(tight)
            && shortest_digits(tight) == whole
        {
            continue;
        }
        *changed = Some(keyword);
        if keyword == exclusive {
            schema.shift_remove(exclusive);
        } else if is_draft4_exclusive {
            schema.insert(exclusive.to_owned(), Value::Bool(false));
        }
        // The tighter of two bounds at one end applies.
        let tight = match schema.get(inclusive).and_then(Value::as_f64).filter(|_| keyword == exclusive) {
            Some(other) if end == End::Lower => tight.max(other),
            Some(other) => tight.min(other),
            None => tight,
        };
        schema.insert(inclusive.to_owned(), json!(tight));
    }
    Ok(())
}

/// Returns the bound at one end as the parser reads it.
fn bound(schema: &Map<String, Value>, end: End, inclusive: &str, exclusive: &str) -> Option<f64> {
    let bounds = [inclusive, exclusive].map(|keyword| schema.get(keyword).and_then(Value::as_f64));
    match bounds {
        [Some(inclusive), Some(exclusive)] if end == End::Lower => Some(inclusive.max(exclusive)),
        [Some(inclusive), Some(exclusive)] => Some(inclusive.min(exclusive)),
        [inclusive, exclusive] => inclusive.or(exclusive),
    }
}

/// Returns the integer part of a number that a double may not represent, or `None` if the number is small enough.
fn large_integer_part(number: &Number) -> Option<i128> {
    let whole = match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(whole), ..) => i128::from(whole),
        (_, Some(whole), _) => i128::from(whole),
        (.., double) => double? as i128,
    };
    (whole.unsigned_abs() >= FIRST_INEXACT).then_some(whole)
}

/// Returns the double nearest to a bound whose value and whose shortest digits are both inside the bound.
fn round_inwards(whole: i128, end: End) -> Option<f64> {
    let is_within = |double: f64| match end {
        End::Lower => double as i128 >= whole && shortest_digits(double) >= whole,
        End::Upper => double as i128 <= whole && shortest_digits(double) <= whole,
    };
    let mut double = (whole as f64).clamp(-LARGEST, LARGEST);
    while !is_within(double) {
        double = if end == End::Lower { double.next_up() } else { double.next_down() };
        if double.abs() > LARGEST {
            return None;
        }
    }
    Some(double)
}

/// Returns the integer that the shortest digits of an integral double denote.
fn shortest_digits(double: f64) -> i128 {
    double.to_string().parse().unwrap_or(if double < 0.0 { i128::MIN } else { i128::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT64: [i64; 2] = [i64::MIN, i64::MAX];

    fn tightened(mut schema: Value) -> Result<Value, String> {
        let map = schema.as_object_mut().expect("an object");
        tighten_bounds(map).map_err(|keyword| keyword.at(&[]).to_string())?;
        Ok(schema)
    }

    #[test]
    fn bounds_that_the_parser_enforces_are_unchanged() {
        for schema in [
            json!({"minimum": -3, "exclusiveMaximum": 9_007_199_254_740_991_i64, "multipleOf": 3}),
            json!({"minimum": 0.1, "maximum": 1e15}),
            json!({"minimum": 9_007_199_254_740_992_i64}),
            json!({"exclusiveMinimum": true, "minimum": 5}),
            json!({"type": "string", "minimum": 1e300}),
            json!({"type": ["null", "boolean"], "minimum": 1e300}),
            json!({"minimum": "5"}),
        ] {
            assert_eq!(tightened(schema.clone()), Ok(schema));
        }
    }

    #[test]
    fn bounds_move_inwards_to_doubles_whose_digits_are_inside() {
        let beyond = 9_007_199_254_740_992_i64;
        for (schema, expected) in [
            (json!({"minimum": beyond + 1}), json!({"minimum": 9_007_199_254_740_994.0})),
            (json!({"maximum": beyond + 1}), json!({"maximum": 9_007_199_254_740_992.0})),
            (json!({"exclusiveMinimum": beyond}), json!({"minimum": 9_007_199_254_740_994.0})),
            (json!({"exclusiveMaximum": -beyond}), json!({"maximum": -9_007_199_254_740_994.0})),
            (
                json!({"minimum": beyond, "exclusiveMinimum": true}),
                json!({"minimum": 9_007_199_254_740_994.0, "exclusiveMinimum": false}),
            ),
            (json!({"minimum": 1e17, "exclusiveMinimum": beyond}), json!({"minimum": 1e17})),
            (
                json!({"minimum": INT64[0], "maximum": INT64[1]}),
                json!({"minimum": -LARGEST, "maximum": LARGEST}),
            ),
            (
                json!({"minimum": -1.797e308, "maximum": 1.797e308}),
                json!({"minimum": -LARGEST, "maximum": LARGEST}),
            ),
            (json!({"minimum": 2e18}), json!({"minimum": 2e18, "maximum": LARGEST})),
            (
                json!({"exclusiveMaximum": -2e18}),
                json!({"maximum": -2e18_f64.next_up(), "minimum": -LARGEST}),
            ),
        ] {
            assert_eq!(tightened(schema.clone()), Ok(expected), "{schema}");
        }
    }

    #[test]
    fn bounds_that_leave_nothing_are_refused_by_name() {
        let beyond = 9_007_199_254_740_993_i64;
        for (schema, keyword) in [
            (json!({"minimum": 1e20}), "minimum"),
            (json!({"exclusiveMaximum": -3e38}), "exclusiveMaximum"),
            (json!({"minimum": u64::MAX - 1}), "minimum"),
            (json!({"exclusiveMinimum": INT64[1] - 1}), "exclusiveMinimum"),
            (json!({"minimum": beyond, "maximum": beyond}), "maximum"),
        ] {
            let refusal = tightened(schema.clone()).unwrap_err();
            assert!(
                refusal.starts_with(&format!("keyword `{keyword}` at `#` is not supported ")),
                "{refusal}"
            );
        }
    }

    #[test]
    fn values_that_are_not_exact_are_refused() {
        let refusal = |value: Value| {
            let schema = json!({"enum": [1, {"a": [value]}]});
            check_values(schema.as_object().expect("an object"))
                .err()
                .map(|keyword| keyword.at(&[]).to_string())
        };
        for exact in [
            json!(0),
            json!(-0.5),
            json!(1e-7),
            json!(9_007_199_254_740_992_i64),
            json!(1_i64 << 62),
            json!(1e17),
            json!("9007199254740993"),
        ] {
            assert_eq!(refusal(exact.clone()), None, "{exact}");
        }
        for inexact in [
            json!(9_007_199_254_740_993_i64),
            json!(INT64[0]),
            json!(INT64[1]),
            json!(u64::MAX),
            json!(1e19),
            json!(10_u64.pow(19)),
            json!(1e300),
            json!(4_611_686_018_427_387_904.0),
        ] {
            let refusal = refusal(inexact.clone()).unwrap_or_else(|| panic!("{inexact} is accepted"));
            assert!(
                refusal.starts_with("keyword `enum` at `#` is not supported with the number"),
                "{refusal}"
            );
        }
    }
}
