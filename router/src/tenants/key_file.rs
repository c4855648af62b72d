//! The file with the keys: TOML, one table per tenant.
//!
//! ```toml
//! [tenants.alice]
//! keys = ["sk-..."]              # one or more, or key_sha256 = ["hex", ...], or both
//! share = 2                      # weight of its guaranteed share of the KV cache, default 1
//! admin = true                   # may see what other tenants have cached, default false
//! requests_per_minute = 60       # this and the next two: not limited if absent
//! tokens_per_minute = 100000     # of prompts and outputs
//! max_concurrent_requests = 8    # each output counts as one
//! ```
//!
//! No error quotes the file: what stands in the wrong place may be a key.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key_ring::{
    DuplicateKey, KeyDigest, KeyRing, MAX_NAME_BYTES, MAX_SHARE, Tenant, digest, key_problem,
};
use super::limiter::{MAX_LIMIT, TenantLimits};

/// Most bytes of the file.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where an error stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Line of the file, from 1 on.
    pub line: usize,
}

/// What is wrong with the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {}: {problem}", place.line)]
pub struct KeyFileError {
    /// Where.
    pub place: Place,
    /// What, without quoting the file.
    pub problem: String,
}

/// Reads the text of a key file.
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
            self.error(error.span().unwrap_or_default(), "is not TOML, or has a name twice")
        })?;
        let mut ring = KeyRing::default();
        for (key, value) in table.get_ref() {
            if key.get_ref().as_ref() != "tenants" {
                let problem = "only tables `[tenants.NAME]` are known at the top of the file";
                return Err(self.error(key.span(), problem));
            }
            let tenants = self.table(value, "`tenants`")?;
            for (name, value) in tenants {
                self.tenant(name.get_ref(), name.span(), self.table(value, "a tenant")?, &mut ring)?;
            }
        }
        if ring.num_keys() == 0 {
            let problem = "holds no key; hint: `[tenants.NAME]` with `keys = [\"...\"]`";
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
            let problem = format!(
                "a tenant's name has 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` or `-`; this one does not"
            );
            return Err(self.error(place, problem));
        }
        let limits = TenantLimits::default();
        let mut tenant = Tenant { name: name.to_owned(), share: 1, is_admin: false, limits };
        let mut digests = Vec::new();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "share" => tenant.share = self.whole(value, "share", MAX_SHARE)?,
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
                    let problem = "`admin` is not `true` or `false`";
                    tenant.is_admin =
                        value.get_ref().as_bool().ok_or_else(|| self.error(value.span(), problem))?;
                }
                "keys" => self.texts(value, "keys", &mut digests, |key| match key_problem(key) {
                    Some(problem) => Err(format!("a key of this tenant {problem}")),
                    None => Ok(digest(key.as_bytes())),
                })?,
                "key_sha256" => self.texts(value, "key_sha256", &mut digests, |text| {
                    from_hex(text).ok_or_else(|| {
                        "a `key_sha256` of this tenant is not 64 hexadecimal digits; hint: `sha256sum`"
                            .to_owned()
                    })
                })?,
                _ => {
                    let problem = "a tenant has `keys`, `key_sha256`, `share`, `admin`, `requests_per_minute`, \
                                   `tokens_per_minute` and `max_concurrent_requests`; this is another name";
                    return Err(self.error(key.span(), problem));
                }
            }
        }
        if digests.is_empty() {
            let problem = "this tenant has no key; hint: `keys = [\"...\"]`";
            return Err(self.error(place, problem));
        }
        let index = ring.add_tenant(tenant);
        for (digest, span) in digests {
            ring.add_key(digest, index)
                .map_err(|DuplicateKey| self.error(span, "a key of this tenant stands twice in the file"))?;
        }
        Ok(())
    }

    fn whole(&self, value: &Spanned<DeValue<'_>>, field: &str, most: u32) -> Result<u32, KeyFileError> {
        let number = value.get_ref().as_integer().and_then(|integer| {
            u32::from_str_radix(integer.as_str(), integer.radix())
                .ok()
                .filter(|number| (1..=most).contains(number))
        });
        number.ok_or_else(|| {
            self.error(value.span(), format!("`{field}` is not a whole number from 1 to {most}"))
        })
    }

    fn table<'v, 'i>(
        &self,
        value: &'v Spanned<DeValue<'i>>,
        what: &str,
    ) -> Result<&'v DeTable<'i>, KeyFileError> {
        let problem = || format!("{what} is not a table; hint: `[tenants.NAME]`");
        value.get_ref().as_table().ok_or_else(|| self.error(value.span(), problem()))
    }

    /// A string or a list of strings.
    fn texts(
        &self,
        value: &Spanned<DeValue<'_>>,
        field: &str,
        out: &mut Vec<(KeyDigest, Range<usize>)>,
        parse: impl Fn(&str) -> Result<KeyDigest, String>,
    ) -> Result<(), KeyFileError> {
        let mut take = |value: &Spanned<DeValue<'_>>| {
            let text = value.get_ref().as_str();
            let problem = || format!("`{field}` is not a list of strings");
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

fn from_hex(text: &str) -> Option<KeyDigest> {
    let mut digest = KeyDigest::default();
    if text.len() != 2 * digest.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "sk-secret-0123456789";

    #[test]
    fn tenants_have_keys_shares_and_rights() {
        let ring = read(
            "[tenants.alice]\nkeys = [\"sk-secret-0123456789\", \"sk-secret-9876543210\"]\nshare = 2\nadmin = true\n\
             requests_per_minute = 60\ntokens_per_minute = 100_000\nmax_concurrent_requests = 8\n\
             [tenants.bob]\nkey_sha256 = \"9af15b336e6a9619928537df30b2e6a2376569fcf9d7e773eccede65606529a0\"\n",
        )
        .unwrap();
        assert_eq!((ring.tenants().len(), ring.num_keys()), (2, 3));
        let alice = ring.find(SECRET.as_bytes()).unwrap();
        let limits = TenantLimits {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(100_000),
            max_concurrent_requests: Some(8),
        };
        assert_eq!(*alice, Tenant { name: "alice".into(), share: 2, is_admin: true, limits });
        let bob = ring.tenants().iter().find(|tenant| tenant.name == "bob").unwrap();
        assert_eq!((bob.share, bob.is_admin, bob.limits), (1, false, TenantLimits::default()));
    }

    #[test]
    fn a_digest_stands_for_its_key() {
        let hex: String = digest(SECRET.as_bytes()).iter().map(|byte| format!("{byte:02X}")).collect();
        let ring = read(&format!("[tenants.a]\nkey_sha256 = [\"{hex}\"]")).unwrap();
        assert!(ring.find(SECRET.as_bytes()).is_some());
        // From FIPS 180-2, appendix B.1: "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let ring = read(&format!("[tenants.a]\nkey_sha256 = \"{abc}\"")).unwrap();
        assert!(ring.find(b"abc").is_some());
    }

    #[test]
    fn errors_say_the_line_and_never_quote_the_file() {
        for (text, line, wanted) in [
            ("", 1, "holds no key"),
            ("[tenants]", 1, "holds no key"),
            ("\n[tenants.a\n", 2, "is not TOML"),
            ("\n\nsk-secret-0123456789 = \"alice\"", 3, "only tables `[tenants.NAME]`"),
            ("\ntenants = \"sk-secret-0123456789\"", 2, "`tenants` is not a table"),
            ("[tenants]\nalice = \"sk-secret-0123456789\"", 2, "a tenant is not a table"),
            ("[tenants.a]\nsk-secret-0123456789 = 1", 2, "this is another name"),
            ("[tenants.a]\nshare = 1", 1, "this tenant has no key"),
            ("[tenants.a]\nkeys = [\"sk-secret-01234\"]", 2, "has 15 characters, must have at least 16"),
            ("[tenants.a]\nkeys = [\n\"sk-secret-0123456789\",\n7]", 4, "is not a list of strings"),
            ("[tenants.a]\nkeys = [\"sk-secret-0123456789 \"]", 2, "holds a blank"),
            ("[tenants.a]\nkey_sha256 = \"sk-secret-0123456789\"", 2, "is not 64 hexadecimal digits"),
            ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nshare = 0", 3, "`share` is not a whole number"),
            ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nshare = -1", 3, "`share` is not a whole number"),
            ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nshare = 1.5", 3, "`share` is not a whole number"),
            ("[tenants.a]\nrequests_per_minute = 0", 2, "`requests_per_minute` is not a whole number from 1"),
            (
                "[tenants.a]\ntokens_per_minute = \"sk-secret\"",
                2,
                "`tokens_per_minute` is not a whole number",
            ),
            ("[tenants.a]\nmax_concurrent_requests = 1e3", 2, "`max_concurrent_requests` is not a whole"),
            ("[tenants.a]\nadmin = \"sk-secret-0123456789\"", 2, "`admin` is not"),
            ("[tenants.\"a b\"]\nkeys = \"sk-secret-0123456789\"", 1, "a tenant's name has"),
            ("[tenants.a]\nkeys = \"sk-secret-0123456789\"\nkeys = \"x\"", 3, "has a name twice"),
            (
                "[tenants.a]\nkeys = \"sk-secret-0123456789\"\n[tenants.b]\nkeys = \"sk-secret-0123456789\"",
                4,
                "stands twice",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains(wanted), "{text}: {error}");
            assert_eq!(error.place.line, line, "{text}: {error}");
            assert!(!error.to_string().contains("sk-secret"), "{error}");
        }
    }
}
