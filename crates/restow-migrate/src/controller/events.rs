//! Publishes Kubernetes Events at the migration, the StorageState and the CRD.

use super::MigrationObject;
use crate::crd::Crd;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use restow_api::GroupResource;
use restow_api::migration::{API_VERSION, StorageState, StorageVersionMigration};

/// Publishes Events.
#[derive(Clone)]
pub(crate) struct Events {
    recorder: Recorder,
}

/// The reason of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventReason {
    Started,
    Succeeded,
    Failed,
    Trimmed,
    Disagreement,
}

/// The maximum length of an Event's note.
const LONGEST_NOTE: usize = 1_000;

impl EventReason {
    fn reason(self) -> &'static str {
        match self {
            EventReason::Started => "MigrationStarted",
            EventReason::Succeeded => "MigrationSucceeded",
            EventReason::Failed => "MigrationFailed",
            EventReason::Trimmed => "StoredVersionsTrimmed",
            EventReason::Disagreement => "NoAgreement",
        }
    }

    fn is_warning(self) -> bool {
        matches!(self, EventReason::Failed | EventReason::Disagreement)
    }
}

impl Events {
    pub(crate) fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter { controller: "restow".to_owned(), instance: Some(identity.to_owned()) };
        Events { recorder: Recorder::new(client, reporter) }
    }

    /// Publishes an Event at these objects. A failure is only logged: nothing depends on Events.
    ///
    /// Events that differ only in their note are aggregated into one, with the first note. Each Event therefore names its
    /// migration as secondary object, so that the Events of two migrations are not aggregated.
    pub(crate) async fn publish(
        &self,
        happened: EventReason,
        words: &str,
        about: Vec<ObjectReference>,
        came_of: Option<ObjectReference>,
    ) {
        let event = Event {
            type_: if happened.is_warning() { EventType::Warning } else { EventType::Normal },
            reason: happened.reason().to_owned(),
            note: Some(words.chars().take(LONGEST_NOTE).collect()),
            action: "Migrate".to_owned(),
            secondary: came_of,
        };
        for object in about {
            if let Err(error) = self.recorder.publish(&event, &object).await {
                tracing::debug!("cannot tell of {happened:?}: {error}");
            }
        }
    }
}

/// The reference to the CRD of a resource.
pub(crate) fn crd_reference(crd: &Crd) -> ObjectReference {
    ObjectReference {
        api_version: Some("apiextensions.k8s.io/v1".to_owned()),
        kind: Some("CustomResourceDefinition".to_owned()),
        name: crd.metadata.name.clone(),
        uid: crd.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The reference to a migration.
pub(crate) fn migration_reference(migration: &MigrationObject) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(StorageVersionMigration::KIND.to_owned()),
        name: migration.metadata.name.clone(),
        uid: migration.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The reference to the StorageState of a resource.
pub(crate) fn state_reference(resource: &GroupResource, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(StorageState::KIND.to_owned()),
        name: Some(StorageState::name_for(resource)),
        uid,
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fake_api::FakeApi;
    use crate::controller::migration_api;
    use serde_json::json;

    #[tokio::test]
    async fn events_name_the_object_the_reason_and_the_migration() {
        let api = FakeApi::new(|request| (201, request.body.clone()));
        let events = api.context().events;
        let mut migration = MigrationObject::new("m", &migration_api(), Default::default());
        migration.metadata.uid = Some("u".to_owned());
        let crd: Crd = serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com", "uid": "c"},
            "spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"}, "versions": []},
        }))
        .unwrap();
        let resource = "widgets.example.com".parse().unwrap();
        let about = vec![crd_reference(&crd), state_reference(&resource, Some("s".to_owned()))];
        let long = "x".repeat(LONGEST_NOTE + 1);
        events.publish(EventReason::Failed, &long, about, Some(migration_reference(&migration))).await;
        let requests = api.requests();
        assert_eq!(requests.len(), 2);
        let event = &requests[0].body;
        assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("MigrationFailed")));
        assert_eq!(event["note"].as_str().unwrap().len(), LONGEST_NOTE);
        let regarding = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "name": "widgets.example.com", "uid": "c"});
        assert_eq!(event["regarding"], regarding);
        let related = json!({"apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageVersionMigration",
            "name": "m", "uid": "u"});
        assert_eq!(event["related"], related);
        let state = json!({"apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageState",
            "name": "widgets.example.com", "uid": "s"});
        assert_eq!(requests[1].body["regarding"], state);
    }

    #[test]
    fn failures_and_disagreements_are_warnings() {
        let said = |reason: EventReason| (reason.reason(), reason.is_warning());
        assert_eq!(said(EventReason::Started), ("MigrationStarted", false));
        assert_eq!(said(EventReason::Succeeded), ("MigrationSucceeded", false));
        assert_eq!(said(EventReason::Failed), ("MigrationFailed", true));
        assert_eq!(said(EventReason::Trimmed), ("StoredVersionsTrimmed", false));
        assert_eq!(said(EventReason::Disagreement), ("NoAgreement", true));
    }
}
