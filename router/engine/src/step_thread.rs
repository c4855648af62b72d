//! The thread of the step loop, on which driver and link run on a runtime of their own.
//!
//! The loop shares its thread with no request, so neither parsing a body nor writing a thousand streams delays the
//! shard. If the other threads cannot keep up with their clients, tokens gather in the requests' buffers, and several
//! of them leave in one write.

use std::io;

use tokio::sync::oneshot;

/// A running step loop; dropping it ends the loop.
pub struct StepThread {
    /// Stops the loop when it is dropped.
    _stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl StepThread {
    /// Runs both futures until one of them ends or panics, or until this is dropped.
    pub fn start(
        driver: impl Future<Output = ()> + Send + 'static,
        link: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (ending, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("steps".into()).spawn(move || {
            // It is dropped even if this thread panics.
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

    /// Waits until the loop has ended. Unless this is dropped, it ends only because of a defect.
    pub async fn ended(&mut self) {
        // Nothing is ever sent. The sender is dropped when its thread ends.
        let _ = (&mut self.ended).await;
    }
}
