//! Reads a request's body, up to a limit of bytes and time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::ApiError;
use crate::limits::MAX_DISCARDED_BYTES;

/// Bodies are read as they come: a compressed one is no JSON.
pub fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            let encoding = String::from_utf8_lossy(encoding.as_bytes());
            let name: String = encoding.chars().take(64).collect();
            let detail = format!("its encoding is `{name}`; hint: send it without `content-encoding`");
            Err(ApiError::InvalidBody { detail })
        }
        _ => Ok(()),
    }
}

/// The whole body. One that is too large is read away (without keeping it, up to a limit), because a client that is
/// still writing would otherwise see a broken connection in place of the answer.
///
/// `budget` has a permit for each KiB that all bodies may hold together while they arrive.
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
        // The client broke off or sent invalid framing; either way there is nobody to read a better answer.
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

/// What one body has of the budget.
struct Share<'a> {
    budget: &'a Semaphore,
    permit: Option<SemaphorePermit<'a>>,
}

impl Share<'_> {
    /// The body has so many bytes now.
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
