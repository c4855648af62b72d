//! Counters of the object tier.

/// The object tier's counters since the router started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Uploaded blocks, except those that the store already had.
    pub uploaded_blocks: u64,
    pub uploaded_bytes: u64,
    /// Blocks that were not uploaded because the store already had them.
    pub known_blocks: u64,
    /// Downloaded blocks that were written to the store on disk.
    pub downloaded_blocks: u64,
    pub downloaded_bytes: u64,
    /// Failed downloads and uploads, including objects that are unusable.
    pub failures: u64,
    /// Downloads that ended at a missing block.
    pub misses: u64,
    /// Requests that downloaded nothing because computing was predicted to be quicker.
    pub declined: u64,
    /// Requests that continued before their downloads were complete.
    pub timeouts: u64,
}
