//! Reads a request's body within limits of size and time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::ApiError;
use crate::limits::MAX_DISCARDED_BYTES;

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

/// Reads the complete body.
///
/// A body that is too large is read and discarded, up to [`MAX_DISCARDED_BYTES`]. Otherwise a client that is still
/// writing would see a broken connection instead of the error. `budget` has a permit for each KiB that all arriving
/// bodies together may occupy.
pub async fn read_body(
    body: Body,
    limit: usize,
    timeout: Duration,
    budget: &Semaphore,
) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(timeout, read(body, limit, budget)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::BodyTimeout { limit_s: timeout.as_secs() }),
    }
}

async fn read(body: Body, limit: usize, budget: &Semaphore) -> Result<Bytes, ApiError> {
    let announced = body.size_hint().lower();
    if announced > MAX_DISCARDED_BYTES as u64 {
        return Err(ApiError::BodyTooLarge { limit });
    }
    let mut chunks = body.into_data_stream();
    let mut kept: Vec<u8> = Vec::new();
    let mut share = Share { budget, permit: None };
    let mut discarded = 0usize;
    let mut too_large = announced > limit as u64;
    while let Some(chunk) = chunks.next().await {
        // The client disconnected or sent invalid framing. It would not read a more precise error.
        let chunk = chunk.map_err(|_| ApiError::BodyBroken)?;
        too_large |= kept.len() + chunk.len() > limit;
        if too_large {
            kept = Vec::new();
            share.permit = None;
            discarded += chunk.len();
            if discarded > MAX_DISCARDED_BYTES {
                break;
            }
        } else {
            share.grow(kept.len() + chunk.len())?;
            kept.extend_from_slice(&chunk);
        }
    }
    if too_large { Err(ApiError::BodyTooLarge { limit }) } else { Ok(kept.into()) }
}

/// The part of the budget that one body holds.
struct Share<'a> {
    budget: &'a Semaphore,
    permit: Option<SemaphorePermit<'a>>,
}

impl Share<'_> {
    /// Acquires permits for a body of this size.
    fn grow(&mut self, num_bytes: usize) -> Result<(), ApiError> {
        let wanted = num_bytes.div_ceil(1024);
        let had = self.permit.as_ref().map_or(0, SemaphorePermit::num_permits);
        if wanted <= had {
            return Ok(());
        }
        let more = u32::try_from(wanted - had).unwrap_or(u32::MAX);
        let Ok(more) = self.budget.try_acquire_many(more) else {
            return Err(ApiError::TooManyBodies);
        };
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }
}
