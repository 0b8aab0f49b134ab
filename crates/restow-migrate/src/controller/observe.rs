//! Reads what the trigger decides by, and removes marks that interrupted migrations left behind.

use super::collections::{all_definitions, all_objects, definitions_of};
use super::orders::is_paused;
use super::{Context, MigrationObject, Resources, StateObject, Wake, resources_of};
use crate::agreement::{Observation, ResourceObservation, Scope, hash_of, observe as ask_servers};
use crate::definition::{self, Definition};
use crate::discovery::equivalents;
use crate::exchange::Failure;
use crate::mark::{self, mark_of};
use crate::runner::Order;
use jiff::Timestamp;
use kube::api::DeleteParams;
use restow_api::migration::{GROUP, StorageState, StorageVersionMigration};
use restow_api::{GroupResource, ObjectMeta, StorageVersionHash};
use restow_clock::Moment;
use restow_rules::migrate::marks::{Mark, PATIENCE, is_stale};
use restow_rules::trigger::{Continuity, KnownMigration, Retry, Sightings, Snapshot, TriggerPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Everything that one pass goes by.
pub(super) struct View {
    pub(super) observation: Observation,
    pub(super) migrations: Vec<MigrationObject>,
    pub(super) states: BTreeMap<String, StateObject>,
    /// All definitions, or those of the resources that this pass is about.
    pub(super) definitions: Vec<Definition>,
    /// Since when the servers were asked for it.
    pub(super) asked_at: Moment,
    wake: Wake,
}

/// The annotation on a failed migration that asks for another try now.
pub(super) const RETRY_ANNOTATION: &str = "restow.dev/retry";

pub(super) async fn observe(context: &Context, wake: &Wake) -> Result<View, Failure> {
    let asked_at = Moment::now();
    let group = wake.only_group();
    let scope = group.as_deref().map_or(Scope::All, Scope::Group);
    let observation = ask_servers(&context.cluster, scope).await?;
    let migrations = migrations(context).await?;
    let states = all_objects(&context.states()).await?;
    let states = states.into_iter().filter_map(|state| Some((state.metadata.name.clone()?, state))).collect();
    let definitions = match wake.is_everything() {
        true => all_definitions(context).await?,
        false => {
            // That of the migrations says whether all of them shall pause.
            let mut resources = wake.resources().clone();
            resources.extend(definition_of_migrations());
            definitions_of(context, &resources).await?
        }
    };
    Ok(View { observation, migrations, states, definitions, asked_at, wake: wake.clone() })
}

pub(super) async fn migrations(context: &Context) -> Result<Vec<MigrationObject>, Failure> {
    match all_objects(&context.migrations()).await {
        Ok(found) => Ok(found),
        Err(failure) if failure.code == 404 => Err(Failure {
            message: "migration.k8s.io/v1alpha1 is not served; run `restow install` to install its definitions"
                .to_owned(),
            ..failure
        }),
        Err(failure) => Err(failure),
    }
}

fn definition_of_migrations() -> Option<GroupResource> {
    GroupResource::new(GROUP, StorageVersionMigration::RESOURCE).ok()
}

impl View {
    /// The resources that this pass is about. Of one that is not managed there is nothing to decide.
    pub(super) fn resources(&self, which: Resources) -> Vec<GroupResource> {
        let custom: BTreeSet<GroupResource> = self.definitions.iter().filter_map(definition::resource).collect();
        let same = equivalents();
        let concerns = |resource: &GroupResource| {
            self.wake.concerns(resource)
                && !same.contains(resource)
                && (which == Resources::All || custom.contains(resource))
                && self.observation.is_managed(resource, custom.contains(resource))
        };
        self.observation.resources().into_iter().filter(concerns).collect()
    }

    /// Whether all migrations shall pause: the annotation on the definition of migrations says so.
    pub(super) fn order(&self) -> Order {
        let definition = definition_of_migrations().and_then(|name| self.definition(&name));
        match definition.is_some_and(|definition| is_paused(&definition.metadata)) {
            true => Order::Pause,
            false => Order::Run,
        }
    }

    /// The definition of a resource, if it has one.
    pub(super) fn definition(&self, resource: &GroupResource) -> Option<&Definition> {
        self.definitions.iter().find(|found| definition::resource(found).as_ref() == Some(resource))
    }

    pub(super) fn snapshot(
        &self,
        resource: &GroupResource,
        seen: &ResourceObservation,
        since: SinceLastPass,
        policy: TriggerPolicy,
    ) -> Snapshot {
        let storage_state = self.states.get(&StorageState::name_for(resource));
        let storage_state = storage_state.map(|state| state.status.clone().unwrap_or_default());
        let migrations: Vec<&MigrationObject> = self.migrations_of(resource).collect();
        // A version that a definition has ever stored stands in its status until a migration has taken it away, also one
        // that came and went while nobody looked.
        let recorded = self.definition(resource).map(|found| {
            let stored = definition::view(found).stored_versions;
            let hash = |version: &String| hash_of(&format!("{}/{version}", resource.group()), &seen.resource.kind);
            stored.iter().map(hash).collect::<Vec<StorageVersionHash>>()
        });
        let recorded = recorded.filter(|recorded| !recorded.is_empty());
        let servers = self.observation.servers.processes().filter(|_| seen.revision.is_none());
        let continuity = match &storage_state {
            Some(last) if !since.is_unbroken => {
                Continuity::after_restart(last, seen.revision.as_ref(), servers.as_ref())
            }
            _ => Continuity::Unbroken,
        };
        Snapshot {
            sightings: Sightings {
                agreement: seen.agreement.clone(),
                revision: seen.revision.clone(),
                servers,
                since_last_pass: since.hashes,
                continuity,
                recorded,
                disagreement: seen.disagreement(),
            },
            storage_state,
            looked_at: since.looked_at,
            retry: if migrations.iter().any(|migration| asks_for_retry(migration)) {
                Retry::AtOnce
            } else {
                Retry::WhenDue
            },
            migrations: migrations.into_iter().map(known).collect(),
            policy,
        }
    }

    pub(super) fn migrations_of<'a>(
        &'a self,
        resource: &'a GroupResource,
    ) -> impl Iterator<Item = &'a MigrationObject> + 'a {
        let is_of = move |migration: &&MigrationObject| {
            let named = &migration.spec.resource;
            named.group == resource.group() && named.resource == resource.resource()
        };
        self.migrations.iter().filter(is_of)
    }
}

/// What was seen of a resource by watching since the last pass.
pub(super) struct SinceLastPass {
    pub(super) hashes: Vec<StorageVersionHash>,
    /// The same as the servers name them.
    pub(super) encodings: BTreeSet<String>,
    pub(super) is_unbroken: bool,
    /// When it was last looked at.
    pub(super) looked_at: Option<Timestamp>,
}

fn asks_for_retry(migration: &MigrationObject) -> bool {
    let annotations = migration.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(RETRY_ANNOTATION))
}

/// A migration as the trigger knows it.
pub(super) fn known(migration: &MigrationObject) -> KnownMigration {
    KnownMigration::from(&wire(migration))
}

/// A migration in the words of the API.
pub(super) fn wire(migration: &MigrationObject) -> StorageVersionMigration {
    StorageVersionMigration {
        metadata: ObjectMeta {
            name: migration.metadata.name.clone().unwrap_or_default(),
            uid: migration.metadata.uid.clone().unwrap_or_default(),
            annotations: migration.metadata.annotations.clone().unwrap_or_default(),
            ..ObjectMeta::default()
        },
        spec: migration.spec.clone(),
        status: migration.status.clone().unwrap_or_default(),
        ..StorageVersionMigration::default()
    }
}

/// Takes marks away whose migration has ended in any way, and forgets what is known about resources that are gone. Returns
/// when to look again at marks that somebody else holds.
pub(super) async fn sweep(
    context: &Context,
    view: &View,
    running: &BTreeSet<GroupResource>,
    marks: &mut Marks,
) -> Result<Option<Timestamp>, Failure> {
    let mut migrating = resources_of(&view.migrations);
    migrating.extend(running.iter().cloned());
    migrating.extend(context.in_tree.resources());
    let mut due = None;
    for definition in &view.definitions {
        let Some(resource) = definition::resource(definition) else { continue };
        let Some(holder) = marks.holder(&resource, mark_of(definition)) else { continue };
        if migrating.contains(&resource) {
            continue;
        }
        if !is_stale(&holder.text, holder.seen_at.elapsed()) {
            due = Timestamp::now().checked_add(PATIENCE).ok();
            continue;
        }
        tracing::info!("{resource}: no migration is under way; taking its mark away");
        if let Err(error) = mark::sweep(&context.cluster, definition).await {
            tracing::warn!("{resource}: {error}");
        }
    }
    forget_what_is_gone(context, view).await;
    Ok(due)
}

/// Who holds which mark, and since when it has looked like this to us.
#[derive(Default)]
pub(super) struct Marks {
    holders: BTreeMap<GroupResource, SeenHolder>,
}

#[derive(Clone)]
struct SeenHolder {
    text: String,
    seen_at: Instant,
}

impl Marks {
    /// The holder of a mark, since it was first seen like this; nothing where there is no mark.
    fn holder(&mut self, resource: &GroupResource, found: Mark) -> Option<SeenHolder> {
        let Mark::By(text) = found else {
            self.holders.remove(resource);
            return None;
        };
        let seen = self.holders.entry(resource.clone());
        let seen = seen.or_insert_with(|| SeenHolder { text: text.clone(), seen_at: Instant::now() });
        if seen.text != text {
            *seen = SeenHolder { text, seen_at: Instant::now() };
        }
        Some(seen.clone())
    }
}

/// The resources that are on record and do not exist any more.
///
/// Only if every server has told all that it serves: one that has not may serve it. What has a definition may be stored, though
/// nobody serves it.
fn gone<'a>(
    recorded: impl Iterator<Item = &'a String>,
    observation: &Observation,
    definitions: &[Definition],
) -> Vec<(&'a str, GroupResource)> {
    if !observation.is_complete() {
        return Vec::new();
    }
    let mut existing: BTreeSet<GroupResource> = observation.resources().into_iter().collect();
    existing.extend(definitions.iter().filter_map(definition::resource));
    let parsed = recorded.filter_map(|name| Some((name.as_str(), name.parse::<GroupResource>().ok()?)));
    parsed.filter(|(_, resource)| !existing.contains(resource)).collect()
}

async fn forget_what_is_gone(context: &Context, view: &View) {
    if !view.wake.is_everything() {
        return;
    }
    for (name, resource) in gone(view.states.keys(), &view.observation, &view.definitions) {
        let Some(state) = view.states.get(name) else { continue };
        tracing::info!("{name}: no server serves it any more; forgetting what was stored");
        context.metrics.forget(&resource);
        let uid = state.metadata.uid.clone();
        let precondition = kube::api::Preconditions { uid, resource_version: state.metadata.resource_version.clone() };
        // Whoever has changed it meanwhile has a reason to keep it.
        let _ = context.states().delete(name, &DeleteParams::default().preconditions(precondition)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_forgotten_because_a_document_could_not_be_read() {
        let names: Vec<String> = ["widgets.example.com", "gadgets.example.com"].map(String::from).to_vec();
        let observation = |unread: &[&str]| Observation::of_one_server(&["widgets.v1.example.com"], unread);
        let forgotten = |observation: &Observation, definitions: &[Definition]| -> Vec<String> {
            let gone = gone(names.iter(), observation, definitions);
            gone.into_iter().map(|(name, _)| name.to_owned()).collect()
        };
        assert_eq!(forgotten(&observation(&[]), &[]), ["gadgets.example.com"]);
        assert_eq!(forgotten(&observation(&["example.com/v2"]), &[]), Vec::<String>::new());
        let defined: Definition = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "gadgets.example.com"},
            "spec": {"group": "example.com", "names": {"plural": "gadgets", "kind": "Gadget"}, "versions": []},
        }))
        .unwrap();
        assert_eq!(forgotten(&observation(&[]), &[defined]), Vec::<String>::new(), "not served, and defined");
    }
}
