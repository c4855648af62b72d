//! The interface of weights that are not all in memory.

/// Fills the memory of weights while a program runs.
pub(crate) trait WeightGate: std::fmt::Debug + Send + Sync {
    /// Begins a pass over the program. If the last one failed, the pieces that could not be read are tried again.
    fn begin_pass(&self);

    /// Waits until the weights of an instruction are in memory. Returns false, to all threads alike, if they cannot be
    /// read. All threads have finished the earlier instructions; one of them is the leader.
    fn enter(&self, instruction: usize, is_leader: bool) -> bool;

    /// Ends a pass. Returns why it failed, if it did.
    fn end_pass(&self) -> Result<(), String>;

    fn sizes(&self) -> StreamSizes;
}

/// The sizes of a stream of weights, and its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSizes {
    /// Bytes of weights that stay in memory.
    pub resident_bytes: usize,
    /// Bytes that are read in every pass.
    pub streamed_bytes: usize,
    /// The most bytes of streamed weights in memory.
    pub ahead_bytes: usize,
    /// The disk's speed in bytes per second, measured when the stream was opened.
    pub bytes_per_second: u64,
}
