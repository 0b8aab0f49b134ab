//! Compaction, and finding out which revision was compacted.

use crate::cluster::{CallKind, EtcdCluster};
use crate::failure::{CallError, Failure, Rejection};
use crate::keyspace::{number, revision};
use crate::proto::{CompactionRequest, RangeRequest, WatchCreateRequest, WatchRequest, watch_request};
use crate::store::EtcdStore;
use bytes::Bytes;
use futures::StreamExt;
use restow_store::{Revision, StoreError};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// etcd serves new watches of past revisions ten times a second, so this is ample.
const COMPACT_REVISION_TIMEOUT: Duration = Duration::from_secs(2);

impl EtcdStore {
    pub(crate) async fn compact_at(&self, at: Revision) -> Result<(), StoreError> {
        // etcd would accept revision 0 and do nothing.
        if at == Revision::ZERO {
            return Err(self.compacted(Revision::ZERO).await);
        }
        let Ok(number) = i64::try_from(at.get()) else {
            return Err(self.future_revision(at).await);
        };
        let call = self.cluster.call(CallKind::Write, |client| async move {
            client.kv().compact(client.request(CompactionRequest { revision: number, physical: false })).await
        });
        match call.await {
            Ok(_) => Ok(()),
            Err(CallError::Rejected(Rejection::Compacted)) => Err(self.compacted(at).await),
            Err(CallError::Rejected(Rejection::FutureRevision)) => Err(self.future_revision(at).await),
            Err(error) => Err(error.into()),
        }
    }

    /// The error for a compacted revision. etcd's own error does not contain the compact revision, so it is looked up; if
    /// that fails, it is at least `known`.
    pub(crate) async fn compacted(&self, known: Revision) -> StoreError {
        // The compact revision only grows: if the last known one can still be read, it is the current one.
        let earlier = Revision::new(self.last_compact_revision.load(Ordering::Relaxed));
        if earlier != Revision::ZERO && earlier >= known && self.is_readable(earlier).await == Ok(true) {
            return StoreError::Compacted { oldest: earlier };
        }
        match find_compact_revision(&self.cluster, self.keyspace.any_key()).await {
            Some(compact_revision) => {
                self.last_compact_revision.fetch_max(compact_revision.get(), Ordering::Relaxed);
                StoreError::Compacted { oldest: compact_revision.max(known) }
            }
            None => StoreError::Compacted { oldest: known },
        }
    }

    /// Whether a revision is not compacted. A future revision is not.
    pub(crate) async fn is_readable(&self, at: Revision) -> Result<bool, StoreError> {
        let request = RangeRequest {
            key: self.keyspace.any_key(),
            revision: number(at.get()),
            count_only: true,
            ..Default::default()
        };
        let call = self.cluster.call(CallKind::Read, |client| {
            let request = request.clone();
            async move { client.kv().range(client.request(request)).await }
        });
        match call.await {
            Ok(_) | Err(CallError::Rejected(Rejection::FutureRevision)) => Ok(true),
            Err(CallError::Rejected(Rejection::Compacted)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Starts a watch at revision 1, which etcd cancels with the compact revision. `None` if it does not cancel it, because
/// nothing was compacted, or does not respond.
async fn find_compact_revision(cluster: &EtcdCluster, key: Bytes) -> Option<Revision> {
    let search = cluster.call(CallKind::Read, |client| {
        let create = WatchCreateRequest { key: key.clone(), start_revision: 1, ..Default::default() };
        let create = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
        async move {
            // The stream of requests must not end before the response has come.
            let requests = futures::stream::iter([create]).chain(futures::stream::pending());
            let mut answers = client.watch().watch(client.request(requests)).await?.into_inner();
            while let Some(answer) = answers.message().await? {
                if answer.canceled {
                    return Ok(tonic::Response::new(answer));
                }
            }
            Err(tonic::Status::unavailable("the watch ended"))
        }
    });
    let answer = timeout(COMPACT_REVISION_TIMEOUT, search).await.ok()?.ok()?;
    if answer.compact_revision == 0 {
        let reason = Failure::from_message(tonic::Code::Unknown, &answer.cancel_reason).reason();
        tracing::debug!(reason, "could not look up the compact revision");
        return None;
    }
    Some(revision(answer.compact_revision))
}
