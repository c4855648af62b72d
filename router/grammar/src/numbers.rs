//! Numbers of a schema, where the parser would hold others: it takes all as doubles, whole ones through 64 bits, and
//! writes a double by its shortest digits. What is changed is changed towards fewer outputs, so that each is valid.

use serde_json::{Map, Number, Value, json};

use crate::form::may_be;
use crate::refusal::Refusal;

/// From here on doubles leave out whole numbers.
const INEXACT: u128 = 1 << 53;
/// The largest double below 2^63.
const WIDEST: f64 = 9_223_372_036_854_774_784.0;
/// A bound of that size needs another one beside it: the parser has no expression for all that is beyond.
const FURTHEST_ALONE: f64 = 1e18;

/// The two ends of an interval, as keywords: a bound that is itself within, and one that is not.
const ENDS: [(End, &str, &str); 2] =
    [(End::Lower, "minimum", "exclusiveMinimum"), (End::Upper, "maximum", "exclusiveMaximum")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Lower,
    Upper,
}

/// Refuses `const` and `enum` with numbers that would be written as others, at any depth.
pub(crate) fn check_values(schema: &Map<String, Value>) -> Result<(), Refusal> {
    for keyword in ["const", "enum"] {
        if let Some(number) = schema.get(keyword).and_then(inexact) {
            let reason =
                format!(" with the number {number}, which is not exact as a double; hint: use a string");
            return Err(Refusal::new(keyword, reason));
        }
    }
    Ok(())
}

/// Some number in a value that would be written as another.
fn inexact(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => (!is_written_as_it_is(number)).then_some(number),
        Value::Array(list) => list.iter().find_map(inexact),
        Value::Object(map) => map.values().find_map(inexact),
        _ => None,
    }
}

fn is_written_as_it_is(number: &Number) -> bool {
    let Some(double) = number.as_f64() else { return false };
    if let Some(whole) = number.as_i64() {
        return double.abs() <= WIDEST && double as i128 == i128::from(whole);
    }
    // The parser may find that it is an integer by what holds beside, and would cut it to 64 bits then.
    match whole_part(number) {
        None => true,
        Some(whole) => double.abs() <= WIDEST && written(double) == whole && double as i128 == whole,
    }
}

/// Moves bounds that the parser would take for others, or not at all, inwards to where it holds them.
pub(crate) fn tighten_bounds(schema: &mut Map<String, Value>) -> Result<(), Refusal> {
    if !may_be(schema, "number") && !may_be(schema, "integer") {
        return Ok(());
    }
    let mut changed = None;
    for (end, within, beyond) in ENDS {
        tighten_end(schema, end, within, beyond, &mut changed)?;
    }
    let [lower, upper] = ENDS.map(|(end, within, beyond)| bound(schema, end, within, beyond));
    if lower.is_some_and(|lower| lower >= FURTHEST_ALONE) && upper.is_none() {
        schema.insert("maximum".to_owned(), json!(WIDEST));
    }
    if upper.is_some_and(|upper| upper <= -FURTHEST_ALONE) && lower.is_none() {
        schema.insert("minimum".to_owned(), json!(-WIDEST));
    }
    match (changed, lower, upper) {
        (Some(keyword), Some(lower), Some(upper)) if lower > upper => Err(Refusal::new(
            keyword,
            " with bounds that have no number between them that is exact as a double",
        )),
        _ => Ok(()),
    }
}

fn tighten_end(
    schema: &mut Map<String, Value>,
    end: End,
    within: &'static str,
    beyond: &'static str,
    changed: &mut Option<&'static str>,
) -> Result<(), Refusal> {
    // Draft 4: whether `minimum` itself is too little.
    let is_beyond = schema.get(beyond) == Some(&Value::Bool(true));
    for (keyword, is_exclusive) in [(within, is_beyond), (beyond, true)] {
        let Some(whole) = schema.get(keyword).and_then(Value::as_number).and_then(whole_part) else {
            continue;
        };
        let tight = match (end, is_exclusive) {
            (_, false) => inwards(whole, end),
            (End::Lower, true) => inwards(whole.saturating_add(1), end),
            (End::Upper, true) => inwards(whole.saturating_sub(1), end),
        };
        let Some(tight) = tight else {
            return Err(Refusal::new(keyword, format!(" beyond {}", written(WIDEST))));
        };
        if !is_exclusive
            && schema.get(keyword).and_then(Value::as_f64) == Some(tight)
            && written(tight) == whole
        {
            continue;
        }
        *changed = Some(keyword);
        if keyword == beyond {
            schema.shift_remove(beyond);
        } else if is_beyond {
            schema.insert(beyond.to_owned(), Value::Bool(false));
        }
        // Of two bounds at one end the tighter holds.
        let tight = match schema.get(within).and_then(Value::as_f64).filter(|_| keyword == beyond) {
            Some(other) if end == End::Lower => tight.max(other),
            Some(other) => tight.min(other),
            None => tight,
        };
        schema.insert(within.to_owned(), json!(tight));
    }
    Ok(())
}

/// The end as the parser takes it.
fn bound(schema: &Map<String, Value>, end: End, within: &str, beyond: &str) -> Option<f64> {
    let [within, beyond] = [within, beyond].map(|keyword| schema.get(keyword).and_then(Value::as_f64));
    match (within, beyond) {
        (Some(within), Some(beyond)) if end == End::Lower => Some(within.max(beyond)),
        (Some(within), Some(beyond)) => Some(within.min(beyond)),
        (within, beyond) => within.or(beyond),
    }
}

/// A number whose double may be another one; none if it is small.
fn whole_part(number: &Number) -> Option<i128> {
    let whole = match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(whole), ..) => i128::from(whole),
        (_, Some(whole), _) => i128::from(whole),
        (.., double) => double? as i128,
    };
    (whole.unsigned_abs() >= INEXACT).then_some(whole)
}

/// The double nearest to a bound that is not outside it, neither by its value nor by its digits.
fn inwards(whole: i128, end: End) -> Option<f64> {
    let is_within = |double: f64| match end {
        End::Lower => double as i128 >= whole && written(double) >= whole,
        End::Upper => double as i128 <= whole && written(double) <= whole,
    };
    let mut double = (whole as f64).clamp(-WIDEST, WIDEST);
    while !is_within(double) {
        double = if end == End::Lower { double.next_up() } else { double.next_down() };
        if double.abs() > WIDEST {
            return None;
        }
    }
    Some(double)
}

/// What the shortest digits of a whole double say.
fn written(double: f64) -> i128 {
    double.to_string().parse().unwrap_or(if double < 0.0 { i128::MIN } else { i128::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT64: [i64; 2] = [i64::MIN, i64::MAX];

    fn tightened(mut schema: Value) -> Result<Value, String> {
        let map = schema.as_object_mut().expect("an object");
        tighten_bounds(map).map_err(|refusal| refusal.at(&[]).to_string())?;
        Ok(schema)
    }

    #[test]
    fn bounds_that_are_held_stay_as_they_are() {
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
    fn bounds_move_inwards_to_doubles_whose_digits_are_within() {
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
                json!({"minimum": -WIDEST, "maximum": WIDEST}),
            ),
            (
                json!({"minimum": -1.797e308, "maximum": 1.797e308}),
                json!({"minimum": -WIDEST, "maximum": WIDEST}),
            ),
            (json!({"minimum": 2e18}), json!({"minimum": 2e18, "maximum": WIDEST})),
            (json!({"exclusiveMaximum": -2e18}), json!({"maximum": -2e18_f64.next_up(), "minimum": -WIDEST})),
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
                .map(|refusal| refusal.at(&[]).to_string())
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
            let told = refusal(inexact.clone()).unwrap_or_else(|| panic!("{inexact} is taken"));
            assert!(told.starts_with("keyword `enum` at `#` is not supported with the number"), "{told}");
        }
    }
}
