//! The flags to connect to etcd, which every command with `--etcd-endpoints` has.

use crate::pki::read_pem;
use anyhow::Context;
use clap::Args;
use restow_apiserver::error::ApiError;
use restow_store::StoreError;
use restow_store_etcd::{ClientIdentity, ConnectError, Credentials, EtcdConfig, EtcdStore, TlsConfig};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How to connect to etcd, and under which prefix.
#[derive(Debug, Args)]
pub(crate) struct EtcdArgs {
    /// The prefix of all keys in etcd.
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,
    #[command(flatten)]
    access: EtcdAccess,
}

/// TLS and authentication for etcd.
#[derive(Clone, Debug, Args)]
pub(crate) struct EtcdAccess {
    /// The CA of etcd's certificates.
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// The client certificate for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// The etcd user; its password is read from the environment variable RESTOW_ETCD_PASSWORD.
    #[arg(long, value_name = "NAME")]
    etcd_user: Option<String>,
}

/// How long a starting server waits for etcd. etcd may be starting too, or be overloaded.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to etcd for a server that starts. Retries for a while where etcd cannot be reached.
pub(crate) async fn connect_with_retries(config: EtcdConfig) -> anyhow::Result<EtcdStore> {
    let started = Instant::now();
    loop {
        match EtcdStore::connect(config.clone()).await {
            Err(ConnectError::Store(StoreError::Unavailable(reason))) if started.elapsed() < START_TIMEOUT => {
                tracing::warn!(reason, "etcd cannot be reached; retrying");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            connected => return connected.context("cannot use etcd"),
        }
    }
}

/// Starts something that needs etcd. Retries for a while where etcd cannot be reached.
pub(crate) async fn while_etcd_is_away<T>(start: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        match start().await {
            Err(error) if is_about_reaching_etcd(&error) && started.elapsed() < START_TIMEOUT => {
                tracing::warn!(%error, "etcd cannot be reached any more; retrying");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            done => return done,
        }
    }
}

/// Whether an error may go away. A write whose outcome is unknown is one of the marks of the format, and is read again.
fn is_about_reaching_etcd(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ApiError::Unavailable { .. } | ApiError::Timeout(_)))
}

impl EtcdArgs {
    /// The configuration for the members at these URLs.
    pub(crate) fn config(&self, endpoints: &[String]) -> anyhow::Result<EtcdConfig> {
        self.access.config(endpoints, &self.etcd_prefix)
    }
}

impl EtcdAccess {
    /// The configuration for the members at these URLs, under this prefix.
    pub(crate) fn config(&self, endpoints: &[String], prefix: &str) -> anyhow::Result<EtcdConfig> {
        let mut config = EtcdConfig { prefix: prefix.to_owned(), ..EtcdConfig::new(endpoints.to_vec()) };
        if let Some(ca) = &self.etcd_cafile {
            let identity = match (&self.etcd_certfile, &self.etcd_keyfile) {
                (Some(certificate), Some(key)) => Some(ClientIdentity {
                    certificate: read_pem(certificate)?.into_bytes(),
                    key: read_pem(key)?.into_bytes(),
                }),
                _ => None,
            };
            config.tls = Some(TlsConfig { ca: read_pem(ca)?.into_bytes(), identity, domain: None });
        }
        if let Some(user) = &self.etcd_user {
            let password = std::env::var("RESTOW_ETCD_PASSWORD")
                .context("--etcd-user needs a password in the environment variable RESTOW_ETCD_PASSWORD")?;
            config.credentials = Some(Credentials { user: user.clone(), password });
        }
        config.check()?;
        Ok(config)
    }

    /// The same flags for another process, which inherits the password in its environment.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let files = [
            ("--etcd-cafile", &self.etcd_cafile),
            ("--etcd-certfile", &self.etcd_certfile),
            ("--etcd-keyfile", &self.etcd_keyfile),
        ];
        let files = files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_ref()?.clone().into_os_string())));
        let user = self.etcd_user.iter().map(|user| ("--etcd-user", OsString::from(user)));
        files.chain(user).flat_map(|(flag, value)| [OsString::from(flag), value]).collect()
    }
}
