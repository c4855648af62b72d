//! The form of an adapter on the command line.

/// Longest name of an adapter in bytes.
pub const MAX_ADAPTER_NAME_BYTES: usize = 128;

/// Splits `NAME=PATH_OR_HUB_ID`; without a name, the path or id is also the name. `None` if the name is not valid.
pub fn parse(text: &str) -> Option<(&str, &str)> {
    let (name, source) = text.split_once('=').unwrap_or((text, text));
    (is_adapter_name(name) && !source.is_empty()).then_some((name, source))
}

/// Returns true if an adapter may have this name.
pub fn is_adapter_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    (1..=MAX_ADAPTER_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_part)
}
