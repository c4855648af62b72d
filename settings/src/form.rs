//! The form of a setting's values.

use std::ops::{Bound, RangeBounds};

use crate::adapter::{self, MAX_ADAPTER_NAME_BYTES};
use crate::quantity::{self, Unit};
use crate::value::{AUTO, Named, OFF};

/// Longest name in bytes.
const MAX_NAME_BYTES: usize = 4096;
/// Stands for every origin.
const ANY_ORIGIN: &str = "*";

/// The form and range of a setting's values.
#[derive(Debug)]
pub enum Form {
    /// A flag without a value; elsewhere `true` or `false`.
    Switch,
    /// A whole number within a range.
    Number {
        /// Placeholder in the help text, which is also the unit.
        unit: &'static str,
        min: u64,
        max: u64,
    },
    /// A number with a fraction.
    Decimal {
        /// Placeholder in the help text.
        unit: &'static str,
        /// Bounds of the valid numbers.
        range: (Bound<f32>, Bound<f32>),
    },
    /// An amount that may have a unit, such as `10GiB` or `5m`; a plain number counts the base unit.
    Quantity {
        unit: &'static Unit,
        min: u64,
        max: u64,
    },
    /// One of a few names.
    Choice {
        /// Placeholder in the help text.
        what: &'static str,
        named: &'static [Named],
    },
    /// A name that other processes get on their command line.
    Name {
        /// Placeholder in the help text.
        what: &'static str,
    },
    /// `off`, `auto`, or a number from 1 to a limit.
    OffAutoOrCount(u64),
    Host,
    File,
    Folder,
    FolderOrOff,
    /// Names separated by commas.
    Names,
    /// Browser origins separated by commas.
    Origins,
    /// Unix sockets separated by commas.
    Sockets {
        max: usize,
    },
    /// Adapters as `NAME=PATH_OR_HUB_ID`, separated by commas.
    Adapters {
        max: usize,
    },
    /// A URL of an object store.
    ObjectStore,
    /// A ZeroMQ endpoint over TCP.
    Endpoint,
    /// The URL of a collector of traces.
    Collector,
}

impl Form {
    pub const fn count(min: u64, max: u64) -> Self {
        Self::Number { unit: "N", min, max }
    }

    /// A number of tokens. The upper bound exceeds any context and keeps the sum of two numbers within 32 bits.
    pub const fn tokens(min: u64) -> Self {
        Self::Number { unit: "TOKENS", min, max: 1 << 31 }
    }

    pub const fn bytes(min: u64, max: u64) -> Self {
        Self::Quantity { unit: &quantity::BYTES, min, max }
    }

    /// A duration in whole seconds, at most a day.
    pub const fn seconds(min: u64) -> Self {
        Self::Quantity { unit: &quantity::SECONDS, min, max: 24 * 3600 }
    }

    /// A duration in milliseconds from 0 to `max`.
    pub const fn milliseconds(max: u64) -> Self {
        Self::Quantity { unit: &quantity::MILLISECONDS, min: 0, max }
    }

    /// Returns the placeholder that stands for a value in the help text; a switch has none.
    pub fn value_name(&self) -> &'static str {
        match self {
            Self::Switch => "",
            Self::Number { unit, .. } | Self::Decimal { unit, .. } => unit,
            Self::Quantity { unit, .. } => unit.value_name,
            Self::Choice { what, .. } | Self::Name { what } => what,
            Self::OffAutoOrCount(_) => "off|auto|N",
            Self::Host => "HOST",
            Self::File => "FILE",
            Self::Folder => "DIR",
            Self::FolderOrOff => "DIR|off",
            Self::Names => "NAME",
            Self::Origins => "ORIGIN",
            Self::Sockets { .. } => "PATH",
            Self::Adapters { .. } => "NAME=PATH",
            Self::ObjectStore | Self::Collector => "URL",
            Self::Endpoint => "ENDPOINT",
        }
    }

    /// Returns a valid value as processes hand it on, which is a plain number in place of one with a unit; `None` if
    /// the value is not valid.
    pub fn plain(&self, text: &str) -> Option<String> {
        match self {
            Self::Quantity { unit, min, max } => unit
                .parse(text)
                .filter(|amount| (*min..=*max).contains(amount))
                .map(|amount| amount.to_string()),
            _ => self.accepts(text).then(|| text.to_owned()),
        }
    }

    /// Returns a plain value as a user would write it: an amount with the largest unit that leaves it whole.
    pub fn shown(&self, plain: &str) -> String {
        match (self, plain.parse()) {
            (Self::Quantity { unit, .. }, Ok(amount)) => unit.shown(amount),
            _ => plain.to_owned(),
        }
    }

    /// Returns true if `text` is a valid value.
    pub fn accepts(&self, text: &str) -> bool {
        match self {
            Self::Switch => matches!(text, "true" | "false"),
            Self::Number { min, max, .. } => {
                text.parse().is_ok_and(|number: u64| (*min..=*max).contains(&number))
            }
            Self::Decimal { range, .. } => text.parse().is_ok_and(|number: f32| range.contains(&number)),
            Self::Quantity { .. } => self.plain(text).is_some(),
            Self::Choice { named, .. } => named.iter().any(|named| named.is(text)),
            Self::Name { .. } => is_name(text),
            Self::OffAutoOrCount(max) => {
                text == OFF || text == AUTO || text.parse().is_ok_and(|number| (1..=*max).contains(&number))
            }
            Self::Host => !text.trim().is_empty(),
            Self::File | Self::Folder | Self::FolderOrOff | Self::ObjectStore => !text.is_empty(),
            Self::Names => text.split(',').all(is_name),
            Self::Origins => text.split(',').all(is_origin),
            Self::Sockets { max } => {
                text.split(',').count() <= *max && text.split(',').all(|path| !path.is_empty())
            }
            Self::Adapters { max } => {
                text.split(',').count() <= *max && text.split(',').all(|text| adapter::parse(text).is_some())
            }
            Self::Endpoint => is_endpoint(text),
            Self::Collector => is_collector(text),
        }
    }

    /// Describes valid values, to follow the word "expected".
    pub fn expected(&self) -> String {
        match self {
            Self::Switch => "`true` or `false`".into(),
            Self::Number { unit, min, max } => match *unit {
                "TOKENS" => format!("a number of tokens from {min} to {max}"),
                "PERCENT" => format!("a percentage from {min} to {max}"),
                _ => format!("a whole number from {min} to {max}"),
            },
            Self::Decimal { range, .. } => format!("a number {}", described(range)),
            Self::Quantity { unit, min, max } => {
                format!(
                    "{} from {} to {}, such as {}",
                    unit.what,
                    unit.shown(*min),
                    unit.shown(*max),
                    unit.examples
                )
            }
            Self::Choice { named, .. } => {
                let names: Vec<String> = named.iter().map(|named| format!("`{}`", named.name)).collect();
                format!("one of {}", names.join(", "))
            }
            Self::Name { .. } => format!(
                "1 to {MAX_NAME_BYTES} bytes of text without control characters that do not begin with a dash"
            ),
            Self::OffAutoOrCount(max) => format!("`off`, `auto` or a whole number from 1 to {max}"),
            Self::Host => "a host name or an address, such as `127.0.0.1` or `0.0.0.0`".into(),
            Self::File => "a path to a file".into(),
            Self::Folder => "a path to a folder".into(),
            Self::FolderOrOff => "a path to a folder, or `off`".into(),
            Self::Names => "names separated by commas, none of which is empty or begins with a dash".into(),
            Self::Origins => {
                "origins without a path, such as `https://chat.example.com`, separated by commas, or `*`"
                    .into()
            }
            Self::Sockets { max } => format!("paths of at most {max} Unix sockets, separated by commas"),
            Self::Adapters { .. } => format!(
                "`NAME=PATH_OR_HUB_ID`, several separated by commas, with names of 1 to {MAX_ADAPTER_NAME_BYTES} letters, \
                 digits, `.`, `_`, `-` or `/`"
            ),
            Self::ObjectStore => "a URL, such as `s3://bucket/prefix`".into(),
            Self::Endpoint => {
                "`tcp://HOST:PORT`; hint: `tcp://*:5557` listens, `tcp://HOST:5557` connects".into()
            }
            Self::Collector => "`http://HOST:PORT`, such as `http://127.0.0.1:4317`".into(),
        }
    }
}

/// Puts a range of fractions into words.
fn described((start, end): &(Bound<f32>, Bound<f32>)) -> String {
    let start = match start {
        Bound::Included(least) => format!("from {least}"),
        Bound::Excluded(least) => format!("above {least} and"),
        Bound::Unbounded => String::new(),
    };
    let end = match end {
        Bound::Included(most) if start.ends_with("and") => format!("at most {most}"),
        Bound::Included(most) => format!("to {most}"),
        Bound::Excluded(most) => format!("below {most}"),
        Bound::Unbounded => String::new(),
    };
    format!("{start} {end}")
}

/// Checks a name that travels on a child's command line, where a leading dash would make it a flag.
fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.starts_with('-') && !text.contains(char::is_control)
}

/// Checks for scheme and host. A path would be ignored, because gRPC has its own. Collectors beside the server need no
/// TLS, and forward to others with it.
fn is_collector(text: &str) -> bool {
    text.strip_prefix("http://").is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', ' ']))
}

/// Checks for scheme and host as browsers write them, or every origin.
fn is_origin(text: &str) -> bool {
    let (scheme, host) = text.split_once("://").unwrap_or_default();
    let is_scheme = scheme.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    let is_host = host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*\\,".contains(&byte));
    text == ANY_ORIGIN || (!scheme.is_empty() && !host.is_empty() && is_scheme && is_host)
}

/// Checks for host and port; the router, which knows what it can bind, is stricter.
fn is_endpoint(text: &str) -> bool {
    let address = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    address.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}
