//! Reads the key file, a TOML file with one table for each tenant.
//!
//! ```toml
//! [tenants.alice]
//! keys = ["sk-..."]              # or key_sha256 = ["hex", ...], or both; at least one key
//! weight = 2                     # weight of its part of the device's time among tenants with waiting work; default 1
//! share = 2                      # weight of its guaranteed share of the KV cache; default `weight`
//! max_priority = "high"          # highest priority class that it may use: high, normal or low; default normal
//! admin = true                   # may see which prefixes other tenants have cached; default false
//! models = ["small", "large"]    # the models that it may use; all if absent
//! adapters = ["sql", "chat"]     # the adapters that it may use; all if absent
//! requests_per_minute = 60       # no limit if absent, like the next two
//! tokens_per_minute = 100000     # prompt and output tokens together
//! max_concurrent_requests = 8    # each output counts as one
//! ```
//!
//! Errors never quote the file, because a misplaced value may be a key.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use trunkline_scheduler::{MAX_WEIGHT, Priority};
use trunkline_settings::is_adapter_name;

use super::key_ring::{
    DuplicateKey, KeyDigest, KeyRing, MAX_NAME_BYTES, MAX_SHARE, Tenant, digest, key_problem,
};
use super::limiter::MAX_LIMIT;

/// The largest key file in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The place of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line of the file, from 1.
    pub line: usize,
}

/// An error in the key file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {}: {problem}", place.line)]
pub struct KeyFileError {
    pub place: Place,
    /// A description that does not quote the file.
    pub problem: String,
}

/// Parses the text of a key file.
pub fn read(text: &str) -> Result<KeyRing, KeyFileError> {
    Reader { text }.file()
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn error(&self, span: Range<usize>, problem: impl Into<String>) -> KeyFileError {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = 1 + before.bytes().filter(|&byte| byte == b'\n').count();
        KeyFileError { place: Place { line }, problem: problem.into() }
    }

    fn file(&self) -> Result<KeyRing, KeyFileError> {
        let table = DeTable::parse(self.text).map_err(|error| {
            self.error(error.span().unwrap_or_default(), "invalid TOML or a repeated name")
        })?;
        let mut ring = KeyRing::default();
        for (key, value) in table.get_ref() {
            if key.get_ref().as_ref() != "tenants" {
                let problem = "only tables `[tenants.NAME]` are allowed at the top level";
                return Err(self.error(key.span(), problem));
            }
            let tenants = self.table(value, "`tenants`")?;
            for (name, value) in tenants {
                self.tenant(name.get_ref(), name.span(), self.table(value, "a tenant")?, &mut ring)?;
            }
        }
        if ring.num_keys() == 0 {
            let problem = "the file has no keys; hint: add `[tenants.NAME]` with `keys = [\"...\"]`";
            return Err(self.error(0..0, problem));
        }
        Ok(ring)
    }

    fn tenant(
        &self,
        name: &str,
        place: Range<usize>,
        table: &DeTable<'_>,
        ring: &mut KeyRing,
    ) -> Result<(), KeyFileError> {
        let is_named = (1..=MAX_NAME_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !is_named {
            let problem =
                format!("a tenant's name must have 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` or `-`");
            return Err(self.error(place, problem));
        }
        let mut tenant = Tenant::new(name);
        let mut share = None;
        let mut digests = Vec::new();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "weight" => tenant.weight = self.whole(value, "weight", MAX_WEIGHT)?,
                "share" => share = Some(self.whole(value, "share", MAX_SHARE)?),
                "max_priority" => tenant.max_priority = self.priority(value)?,
                "requests_per_minute" => {
                    let rate = self.whole(value, "requests_per_minute", MAX_LIMIT)?;
                    tenant.limits.requests_per_minute = Some(rate);
                }
                "tokens_per_minute" => {
                    let rate = self.whole(value, "tokens_per_minute", MAX_LIMIT)?;
                    tenant.limits.tokens_per_minute = Some(rate);
                }
                "max_concurrent_requests" => {
                    let limit = self.whole(value, "max_concurrent_requests", MAX_LIMIT)?;
                    tenant.limits.max_concurrent_requests = Some(limit);
                }
                "admin" => {
                    let problem = "`admin` must be `true` or `false`";
                    tenant.is_admin =
                        value.get_ref().as_bool().ok_or_else(|| self.error(value.span(), problem))?;
                }
                "models" => {
                    let mut names = Vec::new();
                    self.texts(value, "models", &mut names, |name| Ok::<_, String>(name.to_owned()))?;
                    tenant.models = Some(names.into_iter().map(|(name, _)| name).collect());
                }
                "adapters" => {
                    let mut names = Vec::new();
                    self.texts(value, "adapters", &mut names, |name| match is_adapter_name(name) {
                        true => Ok(name.to_owned()),
                        false => Err("an adapter of this tenant has a name that no adapter can have".to_owned()),
                    })?;
                    tenant.adapters = Some(names.into_iter().map(|(name, _)| name).collect());
                }
                "keys" => self.texts(value, "keys", &mut digests, |key| match key_problem(key) {
                    Some(problem) => Err(format!("a key of this tenant {problem}")),
                    None => Ok(digest(key.as_bytes())),
                })?,
                "key_sha256" => self.texts(value, "key_sha256", &mut digests, |text| {
                    from_hex(text).ok_or_else(|| {
                        "a `key_sha256` of this tenant is not 64 hexadecimal digits; hint: write the output of \
                         `printf %s \"$KEY\" | sha256sum`"
                            .to_owned()
                    })
                })?,
                _ => {
                    let problem = "unknown name in a tenant's table; hint: use `keys`, `key_sha256`, `weight`, \
                                   `share`, `max_priority`, `admin`, `models`, `adapters`, `requests_per_minute`, \
                                   `tokens_per_minute` or `max_concurrent_requests`";
                    return Err(self.error(key.span(), problem));
                }
            }
        }
        if digests.is_empty() {
            let problem = "this tenant has no keys; hint: add `keys = [\"...\"]`";
            return Err(self.error(place, problem));
        }
        tenant.share = share.unwrap_or(tenant.weight);
        let index = ring.add_tenant(tenant);
        for (digest, span) in digests {
            ring.add_key(digest, index)
                .map_err(|DuplicateKey| self.error(span, "a key of this tenant occurs twice in the file"))?;
        }
        Ok(())
    }

    fn priority(&self, value: &Spanned<DeValue<'_>>) -> Result<Priority, KeyFileError> {
        match value.get_ref().as_str() {
            Some("high") => Ok(Priority::High),
            Some("normal") => Ok(Priority::Normal),
            Some("low") => Ok(Priority::Low),
            _ => Err(self.error(value.span(), "`max_priority` must be `high`, `normal` or `low`")),
        }
    }

    fn whole(&self, value: &Spanned<DeValue<'_>>, field: &str, most: u32) -> Result<u32, KeyFileError> {
        let number = value.get_ref().as_integer().and_then(|integer| {
            u32::from_str_radix(integer.as_str(), integer.radix())
                .ok()
                .filter(|number| (1..=most).contains(number))
        });
        number
            .ok_or_else(|| self.error(value.span(), format!("`{field}` must be an integer from 1 to {most}")))
    }

    fn table<'v, 'i>(
        &self,
        value: &'v Spanned<DeValue<'i>>,
        what: &str,
    ) -> Result<&'v DeTable<'i>, KeyFileError> {
        let problem = || format!("{what} must be a table; hint: write `[tenants.NAME]`");
        value.get_ref().as_table().ok_or_else(|| self.error(value.span(), problem()))
    }

    /// Reads a string or a list of strings.
    fn texts<T>(
        &self,
        value: &Spanned<DeValue<'_>>,
        field: &str,
        out: &mut Vec<(T, Range<usize>)>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<(), KeyFileError> {
        let mut take = |value: &Spanned<DeValue<'_>>| {
            let text = value.get_ref().as_str();
            let problem = || format!("`{field}` must be a list of strings");
            let text = text.ok_or_else(|| self.error(value.span(), problem()))?;
            let digest = parse(text).map_err(|problem| self.error(value.span(), problem))?;
            out.push((digest, value.span()));
            Ok(())
        };
        match value.get_ref().as_array() {
            Some(list) => list.iter().try_for_each(take),
            None => take(value),
        }
    }
}

/// Parses a digest as `sha256sum` prints it: of its standard input, which it names `-`, or only the digits.
fn from_hex(text: &str) -> Option<KeyDigest> {
    let text = text.trim_end();
    let text = text.strip_suffix(" -").or_else(|| text.strip_suffix(" *-")).unwrap_or(text).trim_end();
    let mut digest = KeyDigest::default();
    if text.len() != 2 * digest.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}
