//! The startup state of a server.

use crate::error::ApiError;
use tokio::sync::watch;

/// The startup state of a server.
#[derive(Debug)]
pub(crate) struct Startup {
    done: watch::Sender<Option<Result<(), ApiError>>>,
}

impl Default for Startup {
    fn default() -> Self {
        Startup { done: watch::Sender::new(None) }
    }
}

impl Startup {
    /// Completes when the server has started, or failed to.
    pub(crate) async fn done(&self) -> Result<(), ApiError> {
        let mut done = self.done.subscribe();
        match done.wait_for(Option::is_some).await.map(|done| done.clone()) {
            Ok(Some(result)) => result,
            _ => Err(ApiError::Internal("the server ended while it was starting".into())),
        }
    }

    /// Whether the server has started.
    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.done.borrow(), Some(Ok(())))
    }

    /// Sets the result of starting.
    pub(crate) fn finish(&self, result: Result<(), ApiError>) {
        self.done.send_replace(Some(result));
    }
}
