//! Errors of storage version registration.

use restow_api::ServerId;
use restow_rules::InvalidReport;
use restow_store::StoreError;
use thiserror::Error;

/// Why this server could not register or report.
#[derive(Debug, Error)]
pub enum AgreementError {
    /// The lease that this server registered under was deleted or replaced.
    #[error("the identity lease {0} is no longer the one that this server registered under")]
    LeaseLost(ServerId),
    /// Another server uses this identity.
    #[error("another API server is running with the identity {0}; give each instance its own with --identity")]
    IdentityTaken(ServerId),
    /// Too many conflicts with other writers.
    #[error("the StorageVersion {name} was changed by others {attempts} times in a row")]
    Contended {
        /// The object's name.
        name: String,
        /// The number of attempts.
        attempts: usize,
    },
    /// A lease, StorageVersion or election cannot be decoded.
    #[error("the object at {key} cannot be decoded ({reason}); correct or delete it")]
    Unreadable {
        /// Its key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The report of this server is invalid.
    #[error("the storage version of {resource} cannot be reported")]
    Report {
        /// The resource.
        resource: String,
        /// What is wrong with it.
        #[source]
        source: InvalidReport,
    },
    /// Reporting to the main API server of this aggregated server failed.
    #[error("the storage versions could not be reported to the main API server: {0}")]
    Upstream(String),
    /// An object of this server cannot be stored.
    #[error("an object cannot be stored: {0}")]
    Unstorable(String),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl AgreementError {
    /// The error and its causes in one line.
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            line.push_str(": ");
            line.push_str(&cause.to_string());
            source = cause.source();
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_with_its_causes() {
        let error = AgreementError::Store(StoreError::Unavailable("no leader".into()));
        assert!(error.chain().starts_with("the store failed: "), "{}", error.chain());
        assert!(error.chain().ends_with("no leader"), "{}", error.chain());
    }
}
