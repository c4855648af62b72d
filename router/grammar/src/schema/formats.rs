//! Patterns for formats of strings.

/// Returns a pattern for a format that the parser enforces less strictly than the format's document.
///
/// The patterns respect leap years and the lengths of names in RFC 1035 and RFC 5321, and exclude leap seconds, which
/// cannot be predicted.
pub(crate) fn exact_pattern(format: &str) -> Option<String> {
    let date = concat!(
        "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
        "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
        "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
    );
    let label = "[a-zA-Z0-9]{1,20}(?:-[a-zA-Z0-9]{1,20}){0,2}";
    let host = format!("{label}(?:\\.{label}){{0,2}}");
    let word = "[a-zA-Z0-9!#$%&'*+/=?_-]{1,20}";
    let time = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    match format {
        "date" => Some(format!("^{date}$")),
        "time" => Some(format!("^{time}$")),
        "date-time" => Some(format!("^{date}T{time}$")),
        "hostname" => Some(format!("^{host}$")),
        "email" => Some(format!("^{word}(?:\\.{word}){{0,2}}@{label}\\.{host}$")),
        _ => None,
    }
}
