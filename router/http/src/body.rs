//! Reads a request's body within limits of size and time.

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::{Instant, timeout_at};

use super::json::ParsedSize;
use super::pace::Pace;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_DISCARDED_BYTES, ServerLimits, UNCOUNTED_REQUEST_BYTES};
use trunkline_base::tenants::HeldMemory;

/// Refuses compressed bodies, which the server does not decode.
pub fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            let encoding = String::from_utf8_lossy(encoding.as_bytes());
            let name: String = encoding.chars().take(64).collect();
            let detail = format!("has the encoding `{name}`; hint: send it without `content-encoding`");
            Err(ApiError::InvalidBody { detail })
        }
        _ => Ok(()),
    }
}

/// Reads the complete body. While it arrives, it takes memory from `account`, for itself and for its JSON values once
/// they are parsed, without the first part.
///
/// A body that is too large is read and discarded, up to [`MAX_DISCARDED_BYTES`]. Otherwise a client that is still
/// writing would see a broken connection instead of the error.
pub async fn read_body(
    body: Body,
    limits: &ServerLimits,
    mut account: HeldMemory,
) -> Result<(Bytes, HeldMemory), ApiError> {
    let limit = limits.max_body_bytes;
    let announced = body.size_hint().lower();
    if announced > MAX_DISCARDED_BYTES as u64 {
        return Err(ApiError::BodyTooLarge { limit });
    }
    let mut pace = Pace::new(limits.timeouts, Instant::now());
    let mut chunks = body.into_data_stream();
    // The announced length costs its sender nothing, so that memory is taken only for what has arrived.
    let mut kept: Vec<u8> = Vec::new();
    let mut parsed = ParsedSize::default();
    let mut discarded = 0usize;
    let mut too_large = announced > limit as u64;
    while let Some(chunk) = timeout_at(pace.due(), chunks.next()).await.map_err(|_| pace.late())? {
        // The client disconnected or sent invalid framing. It would not read a more precise error.
        let chunk = chunk.map_err(|_| ApiError::BodyBroken)?;
        pace.arrived(chunk.len(), Instant::now());
        too_large |= kept.len() + chunk.len() > limit;
        if too_large {
            kept = Vec::new();
            account.shrink_to(0);
            discarded += chunk.len();
            if discarded > MAX_DISCARDED_BYTES {
                break;
            }
        } else {
            parsed.add(&chunk);
            let num_bytes = kept.len() + chunk.len() + parsed.num_bytes;
            account
                .grow_to(num_bytes.saturating_sub(UNCOUNTED_REQUEST_BYTES))
                .map_err(|_| ApiError::TooManyBodies)?;
            kept.extend_from_slice(&chunk);
        }
    }
    if too_large { Err(ApiError::BodyTooLarge { limit }) } else { Ok((kept.into(), account)) }
}
