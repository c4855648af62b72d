//! The thread of the step loop: driver and link alone on a runtime of their own.
//!
//! A step's result meets no request on its way to the next plan: neither a body being parsed nor a thousand streams
//! being written delay the shard. And when clients are more work than the other threads can do, tokens gather in the
//! requests' buffers meanwhile and leave several to a write.

use std::io;

use tokio::sync::oneshot;

/// A running step loop; dropping it ends the loop.
pub struct StepThread {
    /// Dropped with this, which is the word to stop.
    _stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl StepThread {
    /// Runs both until the first of them ends, panics, or this is dropped.
    pub fn start(
        driver: impl Future<Output = ()> + Send + 'static,
        link: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (ending, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("steps".into()).spawn(move || {
            // Dropped however this thread ends.
            let _ending = ending;
            runtime.block_on(async {
                tokio::select! {
                    () = driver => {}
                    () = link => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { _stop: stop, ended })
    }

    /// Ready when the loop has ended, which it does of itself only by a defect.
    pub async fn ended(&mut self) {
        // The sender never speaks; it goes with its thread.
        let _ = (&mut self.ended).await;
    }
}
