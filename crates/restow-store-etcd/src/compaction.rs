//! Giving up history, and finding out how much was given up.

use crate::cluster::{Cluster, Kind};
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

/// etcd looks after new watches of the past ten times a second.
const CUT_PATIENCE: Duration = Duration::from_secs(2);

impl EtcdStore {
    pub(crate) async fn cut_history(&self, at: Revision) -> Result<(), StoreError> {
        // etcd would accept revision 0 and do nothing.
        if at == Revision::ZERO {
            return Err(self.compacted(Revision::ZERO).await);
        }
        let Ok(number) = i64::try_from(at.get()) else {
            return Err(self.future_revision(at).await);
        };
        let call = self.cluster.call(Kind::Write, |link| async move {
            link.kv().compact(link.request(CompactionRequest { revision: number, physical: false })).await
        });
        match call.await {
            Ok(_) => Ok(()),
            Err(CallError::Rejected(Rejection::Compacted)) => Err(self.compacted(at).await),
            Err(CallError::Rejected(Rejection::FutureRevision)) => Err(self.future_revision(at).await),
            Err(error) => Err(error.into()),
        }
    }

    /// The error for history that was given up. etcd does not say with it where the history now begins, so that is
    /// found out; if there is no answer, it is at least `known`.
    pub(crate) async fn compacted(&self, known: Revision) -> StoreError {
        // The cut only moves forward: if one that was found earlier can still be read at, it is still the cut.
        let earlier = Revision::new(self.last_cut.load(Ordering::Relaxed));
        if earlier != Revision::ZERO && earlier >= known && self.is_readable(earlier).await == Ok(true) {
            return StoreError::Compacted { oldest: earlier };
        }
        match find_cut(&self.cluster, self.keyspace.any_key()).await {
            Some(cut) => {
                self.last_cut.fetch_max(cut.get(), Ordering::Relaxed);
                StoreError::Compacted { oldest: cut.max(known) }
            }
            None => StoreError::Compacted { oldest: known },
        }
    }

    /// Whether the history reaches back to a revision. One in the future does not count as given up.
    pub(crate) async fn is_readable(&self, at: Revision) -> Result<bool, StoreError> {
        let request = RangeRequest {
            key: self.keyspace.any_key(),
            revision: number(at.get()),
            count_only: true,
            ..Default::default()
        };
        let call = self.cluster.call(Kind::Read, |link| {
            let request = request.clone();
            async move { link.kv().range(link.request(request)).await }
        });
        match call.await {
            Ok(_) | Err(CallError::Rejected(Rejection::FutureRevision)) => Ok(true),
            Err(CallError::Rejected(Rejection::Compacted)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Watches from the beginning, which etcd refuses with the revision that the history begins at. `None` when it does not
/// refuse, because nothing worth mentioning was compacted, or does not answer.
async fn find_cut(cluster: &Cluster, key: Bytes) -> Option<Revision> {
    let search = cluster.call(Kind::Read, |link| {
        let create = WatchCreateRequest { key: key.clone(), start_revision: 1, ..Default::default() };
        let create = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
        async move {
            // The stream of requests must not end before the answer has come.
            let requests = futures::stream::iter([create]).chain(futures::stream::pending());
            let mut answers = link.watch().watch(link.request(requests)).await?.into_inner();
            while let Some(answer) = answers.message().await? {
                if answer.canceled {
                    return Ok(tonic::Response::new(answer));
                }
            }
            Err(tonic::Status::unavailable("the watch ended"))
        }
    });
    let answer = timeout(CUT_PATIENCE, search).await.ok()?.ok()?;
    if answer.compact_revision == 0 {
        let reason = Failure::said(tonic::Code::Unknown, &answer.cancel_reason).reason();
        tracing::debug!(reason, "cannot find out where the history begins");
        return None;
    }
    Some(revision(answer.compact_revision))
}
