//! What can go wrong between servers.

use restow_api::ServerId;
use restow_rules::InvalidReport;
use restow_store::StoreError;
use thiserror::Error;

/// Why this server could not report, or could not take part.
#[derive(Debug, Error)]
pub enum AgreementError {
    /// The lease that this server acted under is gone, or is another server's.
    #[error("the identity lease {0} is no longer the one that this server registered under")]
    LeaseLost(ServerId),
    /// Another server acts under this identity.
    #[error("another API server is running with the identity {0}; give each instance its own with --identity")]
    IdentityTaken(ServerId),
    /// Others changed the object again and again.
    #[error("the StorageVersion {name} was changed by others {attempts} times in a row")]
    Contended {
        /// The object's name.
        name: String,
        /// How often it was tried.
        attempts: usize,
    },
    /// An object that the agreement rests on cannot be read.
    #[error("the object at {key} cannot be understood ({reason}); correct or delete it")]
    Unreadable {
        /// Where it lies.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What this server wants to report would be refused.
    #[error("the storage version of {resource} cannot be reported")]
    Report {
        /// The resource.
        resource: String,
        /// What is wrong with it.
        #[source]
        source: InvalidReport,
    },
    /// The main API server of this aggregated one could not be told.
    #[error("the main API server could not be told what is stored: {0}")]
    Elsewhere(String),
    /// An object of this server cannot be stored.
    #[error("an object cannot be stored: {0}")]
    Unstorable(String),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl AgreementError {
    /// The whole story in one line.
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
