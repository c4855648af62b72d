//! Reads a request's body, up to a limit of bytes and time.

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures::StreamExt;

use crate::error::ApiError;
use crate::limits::{BODY_TIMEOUT, MAX_DISCARDED_BYTES};

/// The whole body. One that is too large is read away (without keeping it, up to a limit), because a client that is
/// still writing would otherwise see a broken connection in place of the answer.
pub async fn read_body(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIMEOUT, read(body, limit)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::BodyTimeout { limit_s: BODY_TIMEOUT.as_secs() }),
    }
}

async fn read(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let announced = body.size_hint().lower();
    if announced > MAX_DISCARDED_BYTES as u64 {
        return Err(ApiError::BodyTooLarge { limit });
    }
    let mut chunks = body.into_data_stream();
    let mut kept: Vec<u8> = Vec::new();
    let mut discarded = 0usize;
    let mut too_large = announced > limit as u64;
    while let Some(chunk) = chunks.next().await {
        // The client broke off or sent invalid framing; either way there is nobody to read a better answer.
        let chunk = chunk.map_err(|_| ApiError::BodyBroken)?;
        too_large |= kept.len() + chunk.len() > limit;
        if too_large {
            kept = Vec::new();
            discarded += chunk.len();
            if discarded > MAX_DISCARDED_BYTES {
                break;
            }
        } else {
            kept.extend_from_slice(&chunk);
        }
    }
    if too_large { Err(ApiError::BodyTooLarge { limit }) } else { Ok(kept.into()) }
}
