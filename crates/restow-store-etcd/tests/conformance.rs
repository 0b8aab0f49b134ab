//! The suite that every store must pass, on private etcd servers: one for each check, because a check counts revisions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_store::Limits;
use restow_store::conformance::{Fixture, Opened};
use restow_store_etcd::{EtcdConfig, EtcdStore, LocalEtcd, LocalEtcdOptions};
use std::sync::Arc;

struct Etcd;

impl Etcd {
    async fn open_with(quota_bytes: Option<u64>) -> Opened {
        let options = LocalEtcdOptions {
            quota_bytes,
            // etcd counts the whole request against its limit, and its own is that of our values alone.
            max_request_bytes: Some(2 * 1024 * 1024),
            ..Default::default()
        };
        let etcd = LocalEtcd::start_with(options).await.unwrap();
        // The prefix must make no difference.
        let config = EtcdConfig { prefix: "/registry".into(), ..EtcdConfig::new([etcd.endpoint()]) };
        let limits = Limits { store_bytes: quota_bytes, ..config.limits };
        Opened::new(Arc::new(EtcdStore::connect(config).await.unwrap()), limits).keep(etcd)
    }
}

#[async_trait::async_trait]
impl Fixture for Etcd {
    async fn open(&self) -> Opened {
        Self::open_with(None).await
    }

    async fn open_small(&self) -> Option<Opened> {
        Some(Self::open_with(Some(4 * 1024 * 1024)).await)
    }
}

restow_store::conformance_tests!(Etcd);
