//! Rewords serde's errors for clients, as in `must be a number, not a string`.

/// Returns the predicate of a sentence whose subject is the field, or the text unchanged if it is not one of serde's
/// own.
///
/// The client's strings are never repeated, because they may be part of a prompt.
pub(super) fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = if error.is_data() { without_position(&text) } else { &text };
    for start in ["invalid type: ", "invalid value: "] {
        if let Some((found, expected)) =
            text.strip_prefix(start).and_then(|rest| rest.rsplit_once(", expected "))
        {
            return format!("must be {}, not {}", wanted(expected), received(found));
        }
    }
    for start in ["unknown variant `", "unknown field `"] {
        if let Some((_, known)) = text.strip_prefix(start).and_then(|rest| rest.rsplit_once("`, expected ")) {
            return format!("must be {known}");
        }
    }
    if let Some((length, expected)) =
        text.strip_prefix("invalid length ").and_then(|rest| rest.split_once(", expected "))
    {
        return format!("has {length} items, expected {expected}");
    }
    if text.starts_with("number out of range") {
        return "is out of range".to_owned();
    }
    text.to_owned()
}

/// Removes a position such as ` at line 1 column 64`. The name of the field says more.
fn without_position(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(text, _)| text)
}

fn wanted(expected: &str) -> String {
    let words = match expected {
        "f32" | "f64" => "a number",
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "an integer",
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" | "u128" => "an integer of at least 0",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    };
    words.to_owned()
}

fn received(found: &str) -> String {
    let value = || found.split('`').nth(1).unwrap_or_default();
    match found.split([' ', '`']).next().unwrap_or_default() {
        "string" => "a string".to_owned(),
        "integer" | "floating" => format!("the number {}", value()),
        "boolean" => value().to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        _ => found.to_owned(),
    }
}
