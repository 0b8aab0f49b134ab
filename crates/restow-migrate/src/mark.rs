//! The mark on a CRD while its objects are migrated: its holder sets, renews and removes it.
//!
//! `restow_rules::migrate::marks` decides who may write or remove a mark.

use crate::cluster::Cluster;
use crate::crd::{self, Crd};
use crate::request::RequestError;
use restow_api::GroupResource;
use restow_rules::migrate::marks::{
    HOLDER_ANNOTATION, Holder, HolderKind, MarkAction, MigrationMark, REFUSALS_ANNOTATION, RENEW_INTERVAL,
};
use restow_rules::migrate::stored_versions::MIGRATING_ANNOTATION;
use serde_json::{Value, json};
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// How often a write to a CRD is retried after a conflict.
pub(crate) const MOST_CONFLICTS: u32 = 20;

/// Sets, renews and removes the mark on the CRD of a resource.
pub(crate) struct MarkManager<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) resource: &'a GroupResource,
    pub(crate) holder: Holder,
    /// The mark of another holder, and since when it is unchanged.
    seen: Option<(MigrationMark, Instant)>,
}

/// The holder for a command of this process.
pub fn command_holder() -> Holder {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "restow-migrate".to_owned());
    // It only has to be unique among processes; it is not used as a time.
    let now = restow_host::now().as_nanosecond();
    Holder::new(HolderKind::Command, &format!("{host}-{}-{now:x}", std::process::id()))
}

/// The mark that a CRD carries.
pub fn mark_of(crd: &Crd) -> MigrationMark {
    let annotations = crd.metadata.annotations.as_ref();
    let value = |key: &str| annotations.and_then(|annotations| annotations.get(key));
    match value(MIGRATING_ANNOTATION).is_some_and(|value| value == "true") {
        true => MigrationMark::By(value(HOLDER_ANNOTATION).cloned().unwrap_or_default()),
        false => MigrationMark::None,
    }
}

/// What the last manual migration could not rewrite.
pub fn refusals_of(crd: &Crd) -> Option<&str> {
    crd.metadata.annotations.as_ref()?.get(REFUSALS_ANNOTATION).map(String::as_str)
}

impl<'a> MarkManager<'a> {
    /// A manager that has not set a mark yet.
    pub(crate) fn new(cluster: &'a Cluster, resource: &'a GroupResource, holder: Holder) -> Self {
        MarkManager { cluster, resource, holder, seen: None }
    }

    /// For how long a mark is unchanged.
    fn unchanged_for(&mut self, found: &MigrationMark) -> Duration {
        let since = match &self.seen {
            Some((seen, since)) if seen == found => *since,
            _ => Instant::now(),
        };
        self.seen = Some((found.clone(), since));
        since.elapsed()
    }

    /// What to do about a mark, considering what was seen of it before.
    fn action(&mut self, found: &MigrationMark) -> MarkAction {
        let unchanged_for = self.unchanged_for(found);
        self.holder.action_after(found, unchanged_for)
    }

    /// Waits until a mark that another holder left behind may be removed. If it is renewed meanwhile, its holder removes
    /// it.
    pub(crate) async fn outwait(&mut self) -> Result<(), RequestError> {
        while let Some(found) = crd::read(self.cluster.client(), self.resource).await? {
            let found = mark_of(&found);
            let is_renewed = self.seen.as_ref().is_none_or(|(seen, _)| *seen != found);
            if self.action(&found) == MarkAction::Write || is_renewed {
                break;
            }
            tokio::time::sleep(RENEW_INTERVAL / 2).await;
        }
        Ok(())
    }

    /// Marks the CRD, unless another holder has. Returns the CRD after that, or as it was if it is deleted.
    pub(crate) async fn set(&mut self, start: &Crd) -> Result<Crd, RequestError> {
        let mut current = start.clone();
        for _ in 0..MOST_CONFLICTS {
            if self.action(&mark_of(&current)) == MarkAction::Leave {
                return Ok(current);
            }
            let marked = json!({MIGRATING_ANNOTATION: "true", HOLDER_ANNOTATION: self.holder.to_string()});
            match crd::annotate(self.cluster.client(), &current, marked).await {
                Ok(marked) => return Ok(marked),
                Err(failure) if failure.code == 409 => {}
                Err(failure) => return Err(failure),
            }
            match crd::read(self.cluster.client(), self.resource).await? {
                Some(read) => current = read,
                None => break,
            }
        }
        Ok(current)
    }

    /// Renews the mark while `work` runs. A mark that was removed is set again.
    pub(crate) async fn renewed_while<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            let renewal = async {
                tokio::time::sleep(RENEW_INTERVAL).await;
                self.holder.renewals += 1;
                let renewed = match crd::read(self.cluster.client(), self.resource).await {
                    Ok(Some(found)) => self.set(&found).await.map(drop),
                    Ok(None) => Ok(()),
                    Err(failure) => Err(failure),
                };
                if let Err(failure) = renewed {
                    tracing::debug!("{}: cannot renew the mark: {failure}", self.resource);
                }
            };
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = renewal => {}
            }
        }
    }

    /// Removes the mark if this holder may, and records which objects a manual migration could not rewrite.
    pub(crate) async fn remove(&mut self, refusals: Refusals) -> Result<(), RequestError> {
        let noted = match refusals {
            Refusals::Unknown => None,
            Refusals::None => Some(Value::Null),
            Refusals::Some(words) => Some(Value::String(words)),
        };
        for _ in 0..MOST_CONFLICTS {
            let Some(found) = crd::read(self.cluster.client(), self.resource).await? else { return Ok(()) };
            let mark = mark_of(&found);
            let unchanged_for = self.unchanged_for(&mark);
            let is_mine = self.holder.may_remove(&mark, unchanged_for);
            let mut annotations = match is_mine {
                true => json!({MIGRATING_ANNOTATION: null, HOLDER_ANNOTATION: null}),
                false => json!({}),
            };
            let is_news = |noted: &&Value| noted.as_str() != refusals_of(&found);
            if let Some(noted) = noted.as_ref().filter(is_news) {
                annotations[REFUSALS_ANNOTATION] = noted.clone();
            }
            if annotations.as_object().is_none_or(serde_json::Map::is_empty) {
                return Ok(());
            }
            match crd::annotate(self.cluster.client(), &found, annotations).await {
                Ok(_) => return Ok(()),
                Err(failure) if matches!(failure.code, 404 | 409) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}

/// What is known about objects that could not be rewritten.
pub(crate) enum Refusals {
    /// Nothing new.
    Unknown,
    /// There are none.
    None,
    /// As a sentence.
    Some(String),
}

/// Removes a mark that its holder left behind, if it is unchanged.
pub(crate) async fn remove_stale(cluster: &Cluster, crd: &Crd) -> Result<(), RequestError> {
    let annotations = json!({MIGRATING_ANNOTATION: null, HOLDER_ANNOTATION: null});
    match crd::annotate(cluster.client(), crd, annotations).await {
        // The CRD has changed; the next reconcile decides again.
        Err(failure) if !matches!(failure.code, 404 | 409) => Err(failure),
        _ => Ok(()),
    }
}
