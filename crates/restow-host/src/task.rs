//! Tasks: tokio's, which belong to the simulated process that spawns them, if one does.

use crate::simulated::Process;
use std::future::{Future, poll_fn};
use std::pin::pin;
use tokio::task::JoinHandle;

/// Spawns a task that belongs to this process.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Process::current() {
        Some(process) => process.spawn(future),
        None => tokio::spawn(future),
    }
}

/// The future as part of this process, whoever polls it.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let process = Process::current();
    async move {
        let Some(process) = process else { return future.await };
        let mut future = pin!(future);
        poll_fn(|context| process.poll(context, |context| future.as_mut().poll(context))).await
    }
}

/// Runs something that takes long on a thread that no task waits for. A simulated process has only one thread.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    match Process::current() {
        Some(_) => Ok(work()),
        None => tokio::task::spawn_blocking(work).await,
    }
}
