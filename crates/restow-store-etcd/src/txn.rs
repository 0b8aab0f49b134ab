//! Transactions.

use crate::cluster::Kind;
use crate::failure::{CallError, Rejection};
use crate::keyspace::{Keyspace, number};
use crate::lease::Lease;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::{self, request_op, response_op};
use crate::store::EtcdStore;
use prost::Message;
use restow_store::{
    Compare, Entry, Key, Mutation, Put, RangeRequest, Relation, Revision, StoreError, Target, Txn, TxnOutcome,
};

/// Requests up to this size are sent; what beyond its own limit etcd then refuses, it refuses by name.
const LEAST_REQUEST_LIMIT: usize = 2 * 1024 * 1024;
/// What a request may have beside its largest value.
const REQUEST_SLACK: usize = 512 * 1024;
/// A lease can expire between its grant and its use only if everything stands still in between.
const LEASE_ATTEMPTS: usize = 3;
/// How many revisions are looked through for a write that may have been applied.
const MOST_REVISIONS_SEARCHED: u64 = 32;

impl EtcdStore {
    pub(crate) async fn run_txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        txn.check(&self.limits)?;
        let kind = if txn.then.is_empty() { Kind::Read } else { Kind::Write };
        let mut attempt = 1;
        loop {
            let leases = self.claim_leases(&txn).await?;
            let seen = self.history.seen();
            let request = self.encode(&txn, &leases);
            self.check_size(&txn, request.encoded_len())?;
            let sent = self.cluster.call(kind, |link| {
                let request = request.clone();
                async move { link.kv().txn(link.request(request)).await }
            });
            return match sent.await {
                Ok(answer) => {
                    if answer.succeeded {
                        self.prolong_leases(&leases).await;
                    }
                    let revision = self.history.meet(seen, answer.header);
                    self.outcome(&txn, revision, answer)
                }
                Err(CallError::Rejected(Rejection::LeaseNotFound)) if attempt < LEASE_ATTEMPTS => {
                    self.leases.forget(&leases).await;
                    attempt += 1;
                    continue;
                }
                Err(CallError::Rejected(Rejection::LeaseNotFound)) => {
                    Err(StoreError::Unavailable("leases expire before they can be used".into()))
                }
                Err(CallError::Rejected(Rejection::RequestTooLarge(reason))) => Err(self.too_large(&txn, &reason)),
                Err(CallError::Rejected(Rejection::Full(reason))) => {
                    Err(self.full(&txn, seen.revision(), reason).await)
                }
                Err(error) => Err(error.into()),
            };
        }
    }

    /// One lease for each mutation that puts a key for some time.
    async fn claim_leases(&self, txn: &Txn) -> Result<Vec<Option<Lease>>, StoreError> {
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

    /// A write that took long may have used up more than the time that its lease has in reserve.
    async fn prolong_leases(&self, leases: &[Option<Lease>]) {
        let mut prolonged = Vec::new();
        for lease in leases.iter().flatten() {
            if lease.is_short() && !prolonged.contains(&lease.id()) {
                prolonged.push(lease.id());
                self.leases.prolong(&self.cluster, lease).await;
            }
        }
    }

    fn encode(&self, txn: &Txn, leases: &[Option<Lease>]) -> proto::TxnRequest {
        let mutations = txn.then.iter().zip(leases).map(|(mutation, lease)| match mutation {
            Mutation::Put(put) => request_op::Request::RequestPut(proto::PutRequest {
                key: self.keyspace.key(&put.key),
                value: put.value.clone(),
                lease: lease.as_ref().map_or(0, Lease::id),
            }),
            Mutation::Delete(key) => {
                request_op::Request::RequestDeleteRange(proto::DeleteRangeRequest { key: self.keyspace.key(key) })
            }
        });
        let reads = txn.otherwise.iter().map(|key| {
            request_op::Request::RequestRange(proto::RangeRequest { key: self.keyspace.key(key), ..Default::default() })
        });
        // etcd answers a transaction without any operation from what one member happens to know. A read makes it ask the
        // others, so that comparisons alone are as good as those of a write.
        let bare = txn.then.is_empty() && txn.otherwise.is_empty();
        let witness = txn.when.first().filter(|_| bare).map(|compare| {
            let key = self.keyspace.key(&compare.key);
            request_op::Request::RequestRange(proto::RangeRequest { key, count_only: true, ..Default::default() })
        });
        let operation = |request| proto::RequestOp { request: Some(request) };
        proto::TxnRequest {
            compare: txn.when.iter().map(|compare| encode_compare(&self.keyspace, compare)).collect(),
            success: mutations.chain(witness).map(operation).collect(),
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
            let (asked, answered) = (txn.otherwise.len(), found.len());
            return Err(StoreError::Corrupted(format!("etcd answered {answered} of {asked} reads")));
        }
        Ok(TxnOutcome::Refused { revision, found })
    }

    fn found(&self, response: proto::ResponseOp) -> Result<Option<Entry>, StoreError> {
        match response.response {
            Some(response_op::Response::ResponseRange(range)) => {
                range.kvs.into_iter().next().map(|found| self.keyspace.entry(found)).transpose()
            }
            _ => Err(StoreError::Corrupted("etcd answered a read with something else".into())),
        }
    }

    fn check_size(&self, txn: &Txn, size: usize) -> Result<(), StoreError> {
        let limit = LEAST_REQUEST_LIMIT.max(self.limits.value_bytes) + REQUEST_SLACK;
        if size <= limit {
            return Ok(());
        }
        Err(self.too_large(txn, &format!("the transaction has {size} bytes, more than the {limit} that are sent")))
    }

    /// The error for a write that etcd has no room for. It says the same of a write that it refuses and of one that it
    /// applies and that exceeds the quota, so the key tells which it was; `before` is a revision from before the write.
    async fn full(&self, txn: &Txn, before: Revision, reason: String) -> StoreError {
        let put = txn.then.iter().find(|mutation| matches!(mutation, Mutation::Put(_)));
        match put {
            Some(put) if self.was_put_since(put.key(), before).await != Ok(false) => {
                StoreError::OutcomeUnknown(format!("etcd ran full while it was writing: {reason}"))
            }
            _ => StoreError::Full(reason),
        }
    }

    /// Whether a key was written after a revision, or may have been.
    async fn was_put_since(&self, key: &Key, before: Revision) -> Result<bool, StoreError> {
        let now = self.read_range(RangeRequest::key(key)).await?;
        if let Some(entry) = now.entries.first() {
            return Ok(entry.mod_revision > before);
        }
        // It may have been written and deleted again.
        let searched = before.get() + 1..=now.revision.get();
        if now.revision.get().saturating_sub(before.get()) > MOST_REVISIONS_SEARCHED {
            return Ok(true);
        }
        for revision in searched {
            if !self.read_range(RangeRequest::key(key).at(Revision::new(revision))).await?.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Blames the value where there is only one. How much the server would have taken is not known; less than this.
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
        Target::Value(value) => (CompareTarget::Value, TargetUnion::Value(value.clone())),
        Target::Version(version) => (CompareTarget::Version, TargetUnion::Version(number(*version))),
        Target::CreateRevision(revision) => {
            (CompareTarget::Create, TargetUnion::CreateRevision(number(revision.get())))
        }
        Target::ModRevision(revision) => (CompareTarget::Mod, TargetUnion::ModRevision(number(revision.get()))),
    };
    proto::Compare {
        result: result.into(),
        target: target.into(),
        key: keyspace.key(&compare.key),
        target_union: Some(union),
    }
}
