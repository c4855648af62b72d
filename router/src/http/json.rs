//! Parses a JSON body into a dialect's type: errors name the field and the place, and fields that would change the
//! answer but are not supported are refused by name.

use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Longest value of a refused field that is compared with its neutral values, in bytes.
const MAX_NEUTRAL_BYTES: usize = 256;

/// A field that would change the answer and is not supported, except with a value that changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// Its name.
    pub field: &'static str,
    /// JSON texts of the values that change nothing. `null` always is one.
    pub neutral: &'static [&'static str],
    /// The way out.
    pub hint: &'static str,
}

/// Parses `body`. `prefix` names the object in errors (`parameters.`), empty at the top.
pub fn parse<T: DeserializeOwned>(body: &[u8], refused: &[Refused], prefix: &str) -> Result<T, ApiError> {
    check_fields(body, refused, prefix)?;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let detail = describe(&inner);
        let parent = match path.as_str() {
            "." | "" => prefix.to_owned(),
            path => format!("{prefix}{path}."),
        };
        // serde reports these at the object, but knows which field it means.
        if let Some(name) = field_after("missing field `", &detail) {
            return ApiError::MissingField { field: format!("{parent}{name}") };
        }
        if let Some(name) = field_after("duplicate field `", &detail) {
            return ApiError::InvalidType { field: format!("{parent}{name}"), detail };
        }
        match parent.strip_suffix('.') {
            Some(field) => ApiError::InvalidType { field: field.to_owned(), detail },
            None if inner.is_data() => ApiError::InvalidBody { detail },
            None => ApiError::InvalidJson { detail },
        }
    })
}

/// The name that an error of serde's own begins with; it comes from our types, never from the client.
fn field_after<'a>(start: &str, detail: &'a str) -> Option<&'a str> {
    detail.strip_prefix(start)?.split('`').next()
}

/// Checks that `body` is one JSON object and holds no refused field. Keeps nothing of it.
fn check_fields(body: &[u8], refused: &[Refused], prefix: &str) -> Result<(), ApiError> {
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer
        .deserialize_map(Fields { refused, found: &mut found })
        .and_then(|()| deserializer.end())
        .map_err(|error| {
            let detail = describe(&error);
            match prefix.strip_suffix('.') {
                _ if !error.is_data() => ApiError::InvalidJson { detail },
                Some(field) => ApiError::InvalidType { field: field.to_owned(), detail },
                None => ApiError::InvalidBody { detail },
            }
        })?;
    match found {
        Some(Refused { field, hint, .. }) => {
            Err(ApiError::UnsupportedField { field: format!("{prefix}{field}"), hint })
        }
        None => Ok(()),
    }
}

struct Fields<'a> {
    refused: &'a [Refused],
    found: &'a mut Option<Refused>,
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match self.refused.iter().find(|refused| refused.field == key) {
                Some(refused) => {
                    let value: &RawValue = map.next_value()?;
                    if self.found.is_none() && !is_neutral(value.get(), refused.neutral) {
                        *self.found = Some(*refused);
                    }
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

fn is_neutral(value: &str, neutral: &[&str]) -> bool {
    if value.len() > MAX_NEUTRAL_BYTES {
        return false;
    }
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    match parse(value) {
        Some(Value::Null) => true,
        Some(value) => neutral.iter().any(|text| parse(text).as_ref() == Some(&value)),
        None => false,
    }
}

/// What serde says, without quoting the client's strings: they may be a prompt.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let quoted = ["invalid type: string ", "invalid value: string "];
    for start in quoted {
        if let Some(rest) = text.strip_prefix(start)
            && let Some(at) = rest.rfind(", expected ")
        {
            return format!("{}a string{}", start.trim_end_matches("string "), &rest[at..]);
        }
    }
    for start in ["unknown variant `", "unknown field `"] {
        if let Some(rest) = text.strip_prefix(start)
            && let Some(at) = rest.rfind("`, expected ")
        {
            return format!("{}{}", start.trim_end_matches(" `"), &rest[at + 1..]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code)]
    struct Body {
        messages: Vec<Message>,
        top_k: Option<i64>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code)]
    struct Message {
        role: String,
    }

    const REFUSED: &[Refused] = &[Refused { field: "n", neutral: &["1"], hint: "send several requests" }];

    fn error(body: &[u8]) -> String {
        parse::<Body>(body, REFUSED, "").unwrap_err().to_string()
    }

    #[test]
    fn syntax_errors_say_where() {
        assert_eq!(
            error(b"{\"messages\": [{]}"),
            "body is not valid JSON: key must be a string at line 1 column 16"
        );
        assert!(error(b"").contains("EOF while parsing"));
        assert!(error(b"[]").contains("expected a JSON object"));
        assert!(error(b"{\"messages\": []} x").contains("trailing characters"));
    }

    #[test]
    fn wrong_types_name_the_path_and_do_not_quote_strings() {
        assert_eq!(
            error(b"{\"messages\": [{\"role\": 3}]}"),
            "`messages[0].role`: invalid type: integer `3`, expected a string at line 1 column 24"
        );
        let text = error(b"{\"messages\": \"a secret, expected nowhere\"}");
        assert!(!text.contains("secret"), "{text}");
        assert!(text.starts_with("`messages`: invalid type: a string, expected a sequence"), "{text}");
    }

    #[test]
    fn missing_and_repeated_fields_are_named() {
        let field = |body: &str, prefix: &str| {
            let error = parse::<Body>(body.as_bytes(), REFUSED, prefix).unwrap_err();
            (error.code(), error.param().map(str::to_owned))
        };
        let named = |code, field: &str| (code, Some(field.to_owned()));
        assert_eq!(field("{}", ""), named("missing_field", "messages"));
        assert_eq!(field("{}", "parameters."), named("missing_field", "parameters.messages"));
        assert_eq!(field(r#"{"messages": [{}]}"#, ""), named("missing_field", "messages[0].role"));
        assert_eq!(field(r#"{"messages": [], "top_k": 1, "top_k": 2}"#, ""), named("invalid_type", "top_k"));
        assert_eq!(field("[]", ""), ("invalid_type", None));
        assert_eq!(field("[]", "parameters."), named("invalid_type", "parameters"));
        assert_eq!(field("{", ""), ("invalid_json", None));
    }

    #[test]
    fn refused_fields_are_named_unless_neutral() {
        assert!(
            error(b"{\"messages\": [], \"n\": 2}")
                .starts_with("`n` is not supported; hint: send several requests")
        );
        assert!(parse::<Body>(b"{\"messages\": [], \"n\": 1, \"other\": {\"x\": []}}", REFUSED, "").is_ok());
        assert!(parse::<Body>(b"{\"messages\": [], \"n\": null}", REFUSED, "").is_ok());
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_crash() {
        let body = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse::<Body>(body.as_bytes(), REFUSED, "").is_err());
        let body = format!(
            "{{\"messages\": [], \"n\": {}{}, \"z\": {}{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000),
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(parse::<Body>(body.as_bytes(), REFUSED, "").is_err());
    }

    #[test]
    fn invalid_utf8_and_lone_surrogates_are_refused() {
        assert!(parse::<Body>(b"{\"messages\": [{\"role\": \"\xff\"}]}", REFUSED, "").is_err());
        assert!(parse::<Body>(b"{\"messages\": [{\"role\": \"\\ud800\"}]}", REFUSED, "").is_err());
    }
}
