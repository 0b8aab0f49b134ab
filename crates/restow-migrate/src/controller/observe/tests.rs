//! What a reconcile sees of a cluster, and what it removes that was left over.

use super::*;
use crate::controller::fake_api::FakeApi;
use crate::controller::{migration_api, state_api};
use restow_api::ResourceVersion;
use restow_api::migration::{GroupResourceReference, StorageStateSpec, StorageStateStatus};
use restow_rules::migrate::api_servers::{ApiServers, RequiredServers};
use restow_rules::migrate::marks::{HOLDER_ANNOTATION, Holder, HolderKind};
use restow_rules::migrate::stored_versions::MIGRATING_ANNOTATION;
use restow_rules::trigger::PAUSED_ANNOTATION;
use serde_json::{Value, json};
use std::time::Duration;

impl ClusterView {
    /// What a reconcile of everything sees where one server serves widgets of `example.com`, and nothing else exists.
    pub(in crate::controller) fn of_widgets() -> Self {
        ClusterView {
            observation: Observation::of_one_server(&["widgets.v1.example.com"], &[]),
            migrations: Vec::new(),
            states: BTreeMap::new(),
            crds: Vec::new(),
            asked_at: Moment::now(),
            request: ReconcileRequest::all(),
        }
    }

    /// The same with these migrations.
    pub(in crate::controller) fn with_migrations(self, migrations: Vec<MigrationObject>) -> Self {
        ClusterView { migrations, ..self }
    }

    fn with_crds(self, crds: Vec<Crd>) -> Self {
        ClusterView { crds, ..self }
    }

    fn with_states(self, names: &[&str], status: &StorageStateStatus) -> Self {
        let states = names.iter().map(|name| (name.to_string(), state(name, status.clone())));
        ClusterView { states: states.collect(), ..self }
    }
}

fn resource(name: &str) -> GroupResource {
    name.parse().unwrap()
}

fn crd(name: &str, annotations: Value, stored: &[&str]) -> Crd {
    let (plural, group) = name.split_once('.').unwrap();
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": "c", "resourceVersion": "9", "annotations": annotations},
        "spec": {"group": group, "names": {"plural": plural, "kind": "Widget"}, "versions": []},
        "status": {"storedVersions": stored},
    }))
    .unwrap()
}

fn state(name: &str, status: StorageStateStatus) -> StateObject {
    let spec = StorageStateSpec { resource: GroupResourceReference::from(&resource(name)) };
    let mut state = StateObject::new(name, &state_api(), spec);
    state.metadata.uid = Some("s".to_owned());
    state.metadata.resource_version = Some("8".to_owned());
    state.status = Some(status);
    state
}

fn migration(name: &str, resource: &str, annotations: Value, conditions: Value) -> MigrationObject {
    let (plural, group) = resource.split_once('.').unwrap();
    let spec = serde_json::from_value(json!({"resource": {"group": group, "resource": plural}})).unwrap();
    let mut object = MigrationObject::new(name, &migration_api(), spec);
    object.metadata.uid = Some(name.to_owned());
    object.metadata.annotations = serde_json::from_value(annotations).unwrap();
    object.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
    object
}

fn since(is_unbroken: bool) -> SinceLastPass {
    SinceLastPass { hashes: Vec::new(), encodings: BTreeSet::new(), is_unbroken, looked_at: None }
}

fn snapshot_of(view: &ClusterView, revision: Option<&str>, is_unbroken: bool) -> TriggerSnapshot {
    let widgets = resource("widgets.example.com");
    let seen = view.observation.resource(&widgets, None).unwrap();
    let seen = ResourceObservation { revision: revision.map(ResourceVersion::new), ..seen };
    let policy = TriggerPolicy::for_poll_interval(jiff::SignedDuration::from_mins(10));
    view.snapshot(&widgets, &seen, since(is_unbroken), policy)
}

#[test]
fn nothing_is_forgotten_because_a_document_could_not_be_read() {
    let names: Vec<String> = ["widgets.example.com", "gadgets.example.com"].map(String::from).to_vec();
    let observation = |unread: &[&str]| Observation::of_one_server(&["widgets.v1.example.com"], unread);
    let forgotten = |observation: &Observation, crds: &[Crd]| -> Vec<String> {
        let gone = gone(names.iter(), observation, crds);
        gone.into_iter().map(|(name, _)| name.to_owned()).collect()
    };
    assert_eq!(forgotten(&observation(&[]), &[]), ["gadgets.example.com"]);
    assert_eq!(forgotten(&observation(&["example.com/v2"]), &[]), Vec::<String>::new());
    let defined = crd("gadgets.example.com", json!({}), &[]);
    assert_eq!(forgotten(&observation(&[]), &[defined]), Vec::<String>::new(), "not served, and defined");
}

#[test]
fn the_resources_of_a_reconcile_are_those_that_are_requested_and_managed() {
    let of =
        |view: &ClusterView, which| -> Vec<String> { view.resources(which).iter().map(ToString::to_string).collect() };
    let observation = Observation::of_one_server(&["widgets.v1.example.com", "gadgets.v1.example.com"], &[]);
    let mut view = ClusterView { observation, ..ClusterView::of_widgets() };
    assert_eq!(of(&view, ResourceFilter::All), ["gadgets.example.com", "widgets.example.com"]);
    assert_eq!(of(&view, ResourceFilter::Custom), Vec::<String>::new());
    view.crds = vec![crd("widgets.example.com", json!({}), &[])];
    assert_eq!(of(&view, ResourceFilter::Custom), ["widgets.example.com"]);
    view.request = ReconcileRequest::resource(resource("gadgets.example.com"));
    assert_eq!(of(&view, ResourceFilter::All), ["gadgets.example.com"]);
    assert_eq!(of(&view, ResourceFilter::Custom), Vec::<String>::new());
    let events = Observation::of_one_server(&["events.v1", "events.v1.events.k8s.io"], &[]);
    let twice = ClusterView { observation: events, ..ClusterView::of_widgets() };
    assert_eq!(of(&twice, ResourceFilter::All), ["events"], "two names of the same objects");
}

#[test]
fn the_annotation_on_the_crd_of_migrations_pauses_all_of_them() {
    for (name, annotations, expected) in [
        ("storageversionmigrations.migration.k8s.io", json!({PAUSED_ANNOTATION: "true"}), RunControl::Pause),
        ("storageversionmigrations.migration.k8s.io", json!({}), RunControl::Run),
        ("widgets.example.com", json!({PAUSED_ANNOTATION: "true"}), RunControl::Run),
    ] {
        let view = ClusterView::of_widgets().with_crds(vec![crd(name, annotations, &[])]);
        assert_eq!(view.command(), expected, "{name}");
    }
    assert_eq!(ClusterView::of_widgets().command(), RunControl::Run, "not installed as a CRD");
}

#[test]
fn a_snapshot_has_the_migrations_of_its_resource_and_whether_one_is_to_be_retried() {
    let retry = json!({RETRY_ANNOTATION: "now"});
    for (migrations, names, expected) in [
        (vec![], vec![], Retry::WhenDue),
        (vec![migration("a", "widgets.example.com", json!({}), json!([]))], vec!["a"], Retry::WhenDue),
        (vec![migration("a", "widgets.example.com", retry.clone(), json!([]))], vec!["a"], Retry::AtOnce),
        (vec![migration("b", "gadgets.example.com", retry.clone(), json!([]))], vec![], Retry::WhenDue),
        (vec![migration("c", "widgets.example.org", retry, json!([]))], vec![], Retry::WhenDue),
    ] {
        let snapshot = snapshot_of(&ClusterView::of_widgets().with_migrations(migrations), None, true);
        let found: Vec<&str> = snapshot.migrations.iter().map(|known| known.name.as_str()).collect();
        assert_eq!((found, snapshot.retry), (names, expected));
    }
}

#[test]
fn a_snapshot_has_the_versions_that_the_crd_lists_as_stored() {
    let recorded =
        |crds: Vec<Crd>| snapshot_of(&ClusterView::of_widgets().with_crds(crds), None, true).observed.recorded;
    assert_eq!(recorded(Vec::new()), None);
    assert_eq!(recorded(vec![crd("widgets.example.com", json!({}), &[])]), None, "nothing is known yet");
    let hashes = ["example.com/v1", "example.com/v2"].map(|version| hash_of(version, "Widget")).to_vec();
    assert_eq!(recorded(vec![crd("widgets.example.com", json!({}), &["v1", "v2"])]), Some(hashes));
}

#[test]
fn a_restarted_controller_has_missed_something_if_the_revision_or_the_servers_are_others() {
    let identities = |holder: &str| ApiServers {
        identities: Ok(BTreeMap::from([("server".to_owned(), holder.to_owned())])),
        required: RequiredServers::Any,
        ..ApiServers::default()
    };
    let status = StorageStateStatus {
        observed_revision: Some(ResourceVersion::new("7")),
        observed_servers: Some("holder".to_owned()),
        ..StorageStateStatus::default()
    };
    for (revision, holder, is_unbroken, expected) in [
        (Some("7"), "another", false, Continuity::Unbroken),
        (Some("8"), "holder", false, Continuity::Broken),
        (Some("8"), "holder", true, Continuity::Unbroken),
        (None, "holder", false, Continuity::Unbroken),
        (None, "another", false, Continuity::Broken),
        (None, "another", true, Continuity::Unbroken),
    ] {
        let mut view = ClusterView::of_widgets().with_states(&["widgets.example.com"], &status);
        view.observation.servers = identities(holder);
        let snapshot = snapshot_of(&view, revision, is_unbroken);
        assert_eq!(snapshot.observed.continuity, expected, "{revision:?} {holder} {is_unbroken}");
        assert_eq!(snapshot.observed.servers.is_some(), revision.is_none(), "servers that report need not be known");
        assert_eq!(snapshot.storage_state, Some(status.clone()));
        let mut first = ClusterView::of_widgets();
        first.observation.servers = identities(holder);
        let first = snapshot_of(&first, revision, is_unbroken);
        assert_eq!((first.storage_state, first.observed.continuity), (None, Continuity::Unbroken));
    }
}

#[test]
fn a_server_that_came_and_went_behind_a_service_has_been_missed_though_no_report_changed() {
    let status = StorageStateStatus {
        observed_revision: Some(ResourceVersion::new("7")),
        observed_servers: Some("EndpointSlice n/s 3".to_owned()),
        ..StorageStateStatus::default()
    };
    let view = ClusterView::of_widgets().with_states(&["widgets.example.com"], &status);
    let widgets = resource("widgets.example.com");
    for (revision, generation, is_unbroken, expected) in [
        ("7", "3", true, Continuity::Unbroken),
        ("8", "3", true, Continuity::Unbroken),
        ("7", "5", true, Continuity::Broken),
        ("7", "3", false, Continuity::Unbroken),
        ("8", "3", false, Continuity::Broken),
        ("7", "5", false, Continuity::Broken),
    ] {
        let marks = BTreeMap::from([("EndpointSlice n/s".to_owned(), generation.to_owned())]);
        let seen = view.observation.resource(&widgets, None).unwrap();
        let seen = ResourceObservation { revision: Some(ResourceVersion::new(revision)), marks, ..seen };
        let policy = TriggerPolicy::for_poll_interval(jiff::SignedDuration::from_mins(10));
        let snapshot = view.snapshot(&widgets, &seen, since(is_unbroken), policy);
        assert_eq!(snapshot.observed.continuity, expected, "{revision} {generation} {is_unbroken}");
        assert_eq!(snapshot.observed.servers, Some(format!("EndpointSlice n/s {generation}")));
    }
}

#[test]
fn a_migration_is_known_by_its_name_uid_annotations_and_conditions() {
    let hash = StorageVersionMigration::TARGET_HASH_ANNOTATION;
    let failed = json!([{"type": "Failed", "status": "True"}]);
    let live = known(&migration("a", "widgets.example.com", json!({hash: "h"}), json!([])));
    assert_eq!((live.name.as_str(), live.uid.as_str(), live.is_live()), ("a", "a", true));
    assert_eq!(live.target, Some(StorageVersionHash::new("h")));
    assert!(!known(&migration("a", "widgets.example.com", json!({}), failed)).is_live());
}

fn marked(holder: &str) -> Crd {
    crd("widgets.example.com", json!({MIGRATING_ANNOTATION: "true", HOLDER_ANNOTATION: holder}), &[])
}

/// Removes what is left over; returns the writes, and whether marks have to be checked again.
async fn removed(view: &ClusterView, running: &[&str], marks: &mut SeenMarks) -> (Vec<String>, bool) {
    let api = FakeApi::new(|_| (200, json!({"metadata": {}, "spec": {}})));
    let running = running.iter().map(|name| resource(name)).collect();
    let due = remove_stale_marks(&api.context(), view, &running, marks).await.unwrap();
    (api.calls(), due.is_some())
}

const PATCH_OF_CRD: &str = "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";

#[tokio::test]
async fn the_mark_of_a_controller_is_removed_if_no_migration_is_under_way() {
    let holder = Holder::new(HolderKind::Controller, "another").to_string();
    let view = || ClusterView::of_widgets().with_crds(vec![marked(&holder)]);
    let marks = &mut SeenMarks::default();
    assert_eq!(removed(&view(), &[], marks).await, (vec![PATCH_OF_CRD.to_owned()], false));
    assert_eq!(removed(&view(), &["widgets.example.com"], marks).await, (vec![], false), "a worker runs");
    assert_eq!(removed(&view(), &["gadgets.example.com"], marks).await.0.len(), 1);
    for (conditions, expected) in [(json!([]), 0), (json!([{"type": "Succeeded", "status": "True"}]), 1)] {
        let of_it = migration("a", "widgets.example.com", json!({}), conditions.clone());
        let writes = removed(&view().with_migrations(vec![of_it]), &[], marks).await.0;
        assert_eq!(writes.len(), expected, "{conditions}");
    }
    let unmarked = ClusterView::of_widgets().with_crds(vec![crd("widgets.example.com", json!({}), &[])]);
    assert_eq!(removed(&unmarked, &[], marks).await, (vec![], false));
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_a_command_is_removed_if_it_is_not_renewed() {
    let view = |renewals| {
        let holder = Holder { renewals, ..Holder::new(HolderKind::Command, "host") };
        ClusterView::of_widgets().with_crds(vec![marked(&holder.to_string())])
    };
    let marks = &mut SeenMarks::default();
    assert_eq!(removed(&view(0), &[], marks).await, (vec![], true), "it is checked again");
    tokio::time::advance(MARK_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(removed(&view(0), &[], marks).await, (vec![], true));
    assert_eq!(removed(&view(1), &[], marks).await, (vec![], true), "renewed");
    tokio::time::advance(MARK_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(removed(&view(1), &[], marks).await, (vec![], true));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(removed(&view(1), &[], marks).await, (vec![PATCH_OF_CRD.to_owned()], false));
    let unmarked = ClusterView::of_widgets().with_crds(vec![crd("widgets.example.com", json!({}), &[])]);
    assert_eq!(removed(&unmarked, &[], marks).await, (vec![], false));
    assert_eq!(removed(&view(1), &[], marks).await, (vec![], true), "a mark that was set again is a new one");
}

#[tokio::test]
async fn the_storage_state_of_a_resource_that_is_gone_is_removed_unless_it_was_changed() {
    let states = ["widgets.example.com", "gadgets.example.com"];
    let mut view = ClusterView::of_widgets().with_states(&states, &StorageStateStatus::default());
    let api =
        FakeApi::new(|_| (200, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})));
    remove_stale_states(&api.context(), &view).await;
    let calls = api.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(
        calls[0].starts_with("DELETE /apis/migration.k8s.io/v1alpha1/storagestates/gadgets.example.com"),
        "{calls:?}"
    );
    assert_eq!(api.requests()[0].body["preconditions"], json!({"uid": "s", "resourceVersion": "8"}));
    view.request = ReconcileRequest::resource(resource("gadgets.example.com"));
    remove_stale_states(&api.context(), &view).await;
    assert_eq!(api.calls().len(), 1, "a reconcile of some resources does not see all of them");
}

#[tokio::test]
async fn a_cluster_without_the_crds_of_the_controller_is_told_what_to_install() {
    for (code, expected) in [(404, "run `restow install`"), (403, "forbidden")] {
        let api = FakeApi::new(move |_| (code, json!("forbidden")));
        let failure = migrations(&api.context()).await.unwrap_err();
        assert!(failure.code == code && failure.message.contains(expected), "{failure:?}");
    }
}
