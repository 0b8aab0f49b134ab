//! Transactions: encoding them for etcd, leases for keys with a time to live, and what a failure means.

use crate::cluster::CallKind;
use crate::failure::{CallError, Rejection};
use crate::keyspace::{Keyspace, number};
use crate::lease::EtcdLease;
use crate::proto::compare::{CompareResult, CompareTarget as WireTarget, TargetUnion};
use crate::proto::{self, request_op, response_op};
use crate::store::EtcdStore;
use prost::Message;
use restow_store::{
    Compare, CompareTarget, Entry, Key, Mutation, Put, RangeRequest, Relation, Revision, StoreError, Txn, TxnOutcome,
};

/// Requests up to this size are always sent. If they exceed the server's own limit, etcd refuses them with its own error.
const MIN_REQUEST_LIMIT: usize = 2 * 1024 * 1024;
/// How much larger than the largest value a request may be.
const REQUEST_OVERHEAD: usize = 512 * 1024;
/// A lease can expire between its grant and its use only if the process was suspended in between.
const LEASE_ATTEMPTS: usize = 3;
/// How many revisions are searched for a write that may have been applied.
const MAX_REVISIONS_SEARCHED: u64 = 32;

impl EtcdStore {
    pub(crate) async fn run_txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        txn.check(&self.limits)?;
        let kind = if txn.then.is_empty() { CallKind::Read } else { CallKind::Write };
        let mut attempt = 1;
        loop {
            let leases = self.claim_leases(&txn).await?;
            let seen = self.rollback_detector.seen();
            let request = self.encode(&txn, &leases);
            self.check_size(&txn, request.encoded_len())?;
            let sent = self.cluster.call(kind, |client| {
                let request = request.clone();
                async move { client.kv().txn(client.request(request)).await }
            });
            return match sent.await {
                Ok(answer) => {
                    if answer.succeeded {
                        self.renew_leases(&leases).await;
                    }
                    let revision = self.rollback_detector.observe(seen, answer.header);
                    self.outcome(&txn, revision, answer)
                }
                Err(CallError::Rejected(Rejection::LeaseNotFound)) if attempt < LEASE_ATTEMPTS => {
                    self.leases.forget(&leases).await;
                    attempt += 1;
                    continue;
                }
                Err(CallError::Rejected(Rejection::LeaseNotFound)) => {
                    Err(StoreError::Unavailable("leases expired before they could be used".into()))
                }
                Err(CallError::Rejected(Rejection::RequestTooLarge(reason))) => Err(self.too_large(&txn, &reason)),
                Err(CallError::Rejected(Rejection::Full(reason))) => {
                    Err(self.full(&txn, seen.revision(), reason).await)
                }
                Err(error) => Err(error.into()),
            };
        }
    }

    /// One lease for each put with a time to live.
    async fn claim_leases(&self, txn: &Txn) -> Result<Vec<Option<EtcdLease>>, StoreError> {
        let mut leases = Vec::with_capacity(txn.then.len());
        for mutation in &txn.then {
            leases.push(match mutation {
                Mutation::Put(Put { time_to_live: Some(time_to_live), .. }) => {
                    Some(self.leases.claim(&self.cluster, *time_to_live).await?)
                }
                _ => None,
            });
        }
        Ok(leases)
    }

    /// Renews leases of which less than the time to live is left, because the write was slow.
    async fn renew_leases(&self, leases: &[Option<EtcdLease>]) {
        let mut renewed = Vec::new();
        for lease in leases.iter().flatten() {
            if lease.is_too_short() && !renewed.contains(&lease.id()) {
                renewed.push(lease.id());
                self.leases.renew(&self.cluster, lease).await;
            }
        }
    }

    fn encode(&self, txn: &Txn, leases: &[Option<EtcdLease>]) -> proto::TxnRequest {
        let mutations = txn.then.iter().zip(leases).map(|(mutation, lease)| match mutation {
            Mutation::Put(put) => request_op::Request::RequestPut(proto::PutRequest {
                key: self.keyspace.key(&put.key),
                value: put.value.clone(),
                lease: lease.as_ref().map_or(0, EtcdLease::id),
            }),
            Mutation::Delete(key) => {
                request_op::Request::RequestDeleteRange(proto::DeleteRangeRequest { key: self.keyspace.key(key) })
            }
        });
        let reads = txn.otherwise.iter().map(|key| {
            request_op::Request::RequestRange(proto::RangeRequest { key: self.keyspace.key(key), ..Default::default() })
        });
        // etcd executes a transaction without operations on one member, which may be behind. A read in it makes it
        // linearizable, so that its comparisons are as reliable as those of a write.
        let bare = txn.then.is_empty() && txn.otherwise.is_empty();
        let linearizing_read = txn.when.first().filter(|_| bare).map(|compare| {
            let key = self.keyspace.key(&compare.key);
            request_op::Request::RequestRange(proto::RangeRequest { key, count_only: true, ..Default::default() })
        });
        let operation = |request| proto::RequestOp { request: Some(request) };
        proto::TxnRequest {
            compare: txn.when.iter().map(|compare| encode_compare(&self.keyspace, compare)).collect(),
            success: mutations.chain(linearizing_read).map(operation).collect(),
            failure: reads.map(operation).collect(),
        }
    }

    fn outcome(&self, txn: &Txn, revision: Revision, answer: proto::TxnResponse) -> Result<TxnOutcome, StoreError> {
        if answer.succeeded {
            return Ok(TxnOutcome::Committed { revision });
        }
        let found: Vec<Option<Entry>> =
            answer.responses.into_iter().map(|response| self.found(response)).collect::<Result<_, _>>()?;
        if found.len() != txn.otherwise.len() {
            let (requested, returned) = (txn.otherwise.len(), found.len());
            return Err(StoreError::Corrupted(format!("etcd returned the results of {returned} of {requested} reads")));
        }
        Ok(TxnOutcome::Refused { revision, found })
    }

    fn found(&self, response: proto::ResponseOp) -> Result<Option<Entry>, StoreError> {
        match response.response {
            Some(response_op::Response::ResponseRange(range)) => {
                range.kvs.into_iter().next().map(|found| self.keyspace.entry(found)).transpose()
            }
            _ => Err(StoreError::Corrupted("etcd returned another result for a read".into())),
        }
    }

    fn check_size(&self, txn: &Txn, size: usize) -> Result<(), StoreError> {
        let limit = MIN_REQUEST_LIMIT.max(self.limits.value_bytes) + REQUEST_OVERHEAD;
        if size <= limit {
            return Ok(());
        }
        Err(self.too_large(txn, &format!("the transaction has {size} bytes, and the limit is {limit}")))
    }

    /// The error for a write that failed with NOSPACE. etcd returns it for a write that it refuses, and also for the write
    /// that it applies and that exceeds the quota, so the key is read to tell which it was. `before` is a revision from
    /// before the write.
    async fn full(&self, txn: &Txn, before: Revision, reason: String) -> StoreError {
        let put = txn.then.iter().find(|mutation| matches!(mutation, Mutation::Put(_)));
        match put {
            Some(put) if self.was_put_since(put.key(), before).await != Ok(false) => {
                StoreError::OutcomeUnknown(format!("etcd ran out of space during the write: {reason}"))
            }
            _ => StoreError::Full(reason),
        }
    }

    /// Whether a key was, or may have been, written after a revision.
    async fn was_put_since(&self, key: &Key, before: Revision) -> Result<bool, StoreError> {
        let now = self.read_range(RangeRequest::key(key)).await?;
        if let Some(entry) = now.entries.first() {
            return Ok(entry.mod_revision > before);
        }
        // It may have been written and deleted again.
        let searched = before.get() + 1..=now.revision.get();
        if now.revision.get().saturating_sub(before.get()) > MAX_REVISIONS_SEARCHED {
            return Ok(true);
        }
        for revision in searched {
            if !self.read_range(RangeRequest::key(key).at(Revision::new(revision))).await?.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error for a request that is too large. It names the key if there is only one put. The limit of the server is not
    /// known, only that it is less than the size of the value.
    fn too_large(&self, txn: &Txn, reason: &str) -> StoreError {
        let mut puts = txn.then.iter().filter_map(|mutation| match mutation {
            Mutation::Put(put) => Some(put),
            Mutation::Delete(_) => None,
        });
        match (puts.next(), puts.next()) {
            (Some(put), None) => {
                let size = put.value.len();
                let limit = self.limits.value_bytes.min(size.saturating_sub(1));
                StoreError::TooLarge { key: put.key.clone(), size, limit }
            }
            _ => CallError::Rejected(Rejection::RequestTooLarge(reason.into())).into(),
        }
    }
}

fn encode_compare(keyspace: &Keyspace, compare: &Compare) -> proto::Compare {
    let result = match compare.relation {
        Relation::Equal => CompareResult::Equal,
        Relation::NotEqual => CompareResult::NotEqual,
        Relation::Greater => CompareResult::Greater,
        Relation::Less => CompareResult::Less,
    };
    let (target, union) = match &compare.target {
        CompareTarget::Value(value) => (WireTarget::Value, TargetUnion::Value(value.clone())),
        CompareTarget::Version(version) => (WireTarget::Version, TargetUnion::Version(number(*version))),
        CompareTarget::CreateRevision(revision) => {
            (WireTarget::Create, TargetUnion::CreateRevision(number(revision.get())))
        }
        CompareTarget::ModRevision(revision) => (WireTarget::Mod, TargetUnion::ModRevision(number(revision.get()))),
    };
    proto::Compare {
        result: result.into(),
        target: target.into(),
        key: keyspace.key(&compare.key),
        target_union: Some(union),
    }
}
