//! Parts of a request that the server does not obey: the client and the operator hear of them.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Names the fields of the request that the server ignored.
pub const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-ignored-fields");
/// Names the keywords of JSON schema that the server left out of a grammar.
pub const RELAXED_KEYWORDS: HeaderName = HeaderName::from_static("x-relaxed-keywords");
/// The most fields or keywords of a request that are named.
const MAX_NAMED: usize = 16;
/// The longest name that is shown. A longer one is no field of any server.
const MAX_NAME_BYTES: usize = 48;
/// The most names that are remembered, so that the log has each once.
const MAX_REMEMBERED: usize = 256;

static LOGGED_FIELDS: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(Mutex::default);
static LOGGED_KEYWORDS: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(Mutex::default);

/// The unknown fields of one request.
#[derive(Debug, Default)]
pub struct IgnoredFields {
    names: Vec<String>,
    has_unnamed: bool,
}

impl IgnoredFields {
    /// Notes a field. Only names that look like names are kept, because a key may be a part of a prompt.
    pub fn note(&mut self, name: &str) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_name = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain);
        if is_name && self.names.len() < MAX_NAMED {
            self.names.push(name.to_owned());
        }
        self.has_unnamed |= !is_name;
    }

    /// Returns true if a field was noted whose name is not shown.
    pub fn has_unnamed(&self) -> bool {
        self.has_unnamed
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Names the fields in the answer and, the first time, in the log.
    pub fn report(self, path: &str, response: &mut Response) {
        for field in first_times(&LOGGED_FIELDS, &self.names) {
            tracing::warn!(field, path, "a request has a field that this server does not know and ignores");
        }
        set_header(response, IGNORED_FIELDS, &self.names);
    }
}

/// The keywords that were left out of the schemas of one request, because no grammar can hold them.
#[derive(Debug, Default)]
pub struct RelaxedKeywords {
    names: Vec<String>,
}

impl RelaxedKeywords {
    /// Notes a keyword of JSON schema.
    pub fn note(&mut self, keyword: &str) {
        if self.names.len() < MAX_NAMED && !self.names.iter().any(|name| name == keyword) {
            self.names.push(keyword.to_owned());
        }
    }

    /// Names the keywords in the answer and, the first time, in the log.
    pub fn report(self, path: &str, response: &mut Response) {
        for keyword in first_times(&LOGGED_KEYWORDS, &self.names) {
            tracing::warn!(
                keyword,
                path,
                "a schema has a keyword that no grammar can hold, so outputs need not obey it"
            );
        }
        set_header(response, RELAXED_KEYWORDS, &self.names);
    }
}

/// Returns the names that were not logged before, and remembers them.
fn first_times<'a>(logged: &Mutex<BTreeSet<String>>, names: &'a [String]) -> Vec<&'a str> {
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = |name: &&String| logged.len() < MAX_REMEMBERED && logged.insert((*name).clone());
    names.iter().filter(is_first).map(String::as_str).collect()
}

/// Sets a header to a list of names, unless there are none.
fn set_header(response: &mut Response, header: HeaderName, names: &[String]) {
    if names.is_empty() {
        return;
    }
    if let Ok(names) = HeaderValue::try_from(names.join(", ")) {
        response.headers_mut().insert(header, names);
    }
}
