//! What the tier did.

/// Counters since the router started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Blocks put, those that were there already not counted.
    pub uploaded_blocks: u64,
    /// Bytes of them.
    pub uploaded_bytes: u64,
    /// Blocks that were there already.
    pub known_blocks: u64,
    /// Blocks got that are in the store on disk now.
    pub downloaded_blocks: u64,
    /// Bytes of them.
    pub downloaded_bytes: u64,
    /// Gets and puts that failed, and objects that cannot be used.
    pub failures: u64,
    /// Downloads that ended at a block which is not there.
    pub misses: u64,
    /// Requests that did not ask, as computing was predicted to be quicker.
    pub declined: u64,
    /// Requests that went on before all was there.
    pub timeouts: u64,
}
