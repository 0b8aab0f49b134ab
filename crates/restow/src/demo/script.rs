//! What happens in the demo, chapter by chapter. Each claim is checked; one that is not true ends the demo with an error.

use super::narrator::Narrator;
use super::stage::Stage;
use super::writer::Writer;
use anyhow::{Context, bail, ensure};
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use restow_agreement::census::Encoding;
use restow_apiserver::release::Release;
use restow_apiserver::stored::take_census;
use restow_migrate::controller::{self, ControllerConfig, Election, Metrics};
use restow_migrate::install::install_definitions;
use restow_migrate::overview::{ResourceOverview, look};
use serde_json::json;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const SLICES: &str = "endpointslices.discovery.k8s.io";
const WIDGETS: &str = "widgets.demo.restow.dev";

/// How long anything may take before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// The servers by position.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Plays everything.
pub(super) async fn play(narrator: &Narrator, objects: u32) -> anyhow::Result<()> {
    let (old, new): (Release, Release) = ("1.30".parse()?, "1.31".parse()?);
    let mut stage = Stage::open().await?;
    opening(narrator, &mut stage, objects, old).await?;
    let names = (0..10).map(|number| format!("demo-{number}")).collect();
    let writer = Writer::start(stage.clients(), names);
    let (stop, stopped) = watch::channel(false);
    let config =
        ControllerConfig { poll_interval: Duration::from_secs(2), election: Election::Alone, ..Default::default() };
    let cluster = stage.members[A].cluster.clone();
    install_definitions(cluster.client()).await?;
    let controlling = tokio::spawn(controller::run(cluster, config, Metrics::default(), stopped));

    upgrade(narrator, &mut stage, new).await?;
    late_riser(narrator, &mut stage, new).await?;
    custom_resource(narrator, &stage, objects).await?;
    roll_back(narrator, &mut stage, old).await?;

    let ledger = writer.stop().await;
    stop.send_replace(true);
    let _ = controlling.await;
    proof(narrator, &stage, &ledger).await?;
    stage.close().await
}

async fn opening(narrator: &Narrator, stage: &mut Stage, objects: u32, old: Release) -> anyhow::Result<()> {
    narrator.chapter(1, "Three API servers, one store");
    for name in ["a", "b", "c"] {
        stage.join(name, old).await?;
    }
    narrator
        .say(format!(
            "Three API servers of Kubernetes release {old} are running. Each of them has reported \
         which version it writes each resource in, before it wrote anything."
        ))
        .await;
    let slices: Api<EndpointSlice> = Api::namespaced(stage.members[A].cluster.client().clone(), "default");
    let made = futures::stream::iter(0..objects).map(|number| {
        let slices = slices.clone();
        async move {
            slices.create(&PostParams::default(), &slice(&format!("demo-{number}"))?).await?;
            anyhow::Ok(())
        }
    });
    let made: Vec<anyhow::Result<()>> = made.buffer_unordered(32).collect().await;
    made.into_iter().collect::<anyhow::Result<()>>().context("cannot create objects")?;
    let stored = stored(stage, "EndpointSlice").await?;
    narrator
        .fact(format!(
            "{objects} EndpointSlices were created as v1. In the store they lie as {}: that is what \
         release {old} writes.",
            counts(&stored)
        ))
        .await;
    ensure!(!stored.contains_key("v1"), "release {old} should store EndpointSlices as v1beta1");
    narrator.say("From now on a client writes to all three servers, without a break, until the end.").await;
    matrix(narrator, stage).await
}

async fn upgrade(narrator: &Narrator, stage: &mut Stage, new: Release) -> anyhow::Result<()> {
    narrator.chapter(2, "A rolling upgrade, and why nothing may be migrated yet");
    stage.replace(A, new).await?;
    narrator.say(format!("Server a now runs release {new}, which writes v1. The others still write v1beta1.")).await;
    matrix(narrator, stage).await?;
    let slices = slices(stage).await?;
    ensure!(slices.storage_version.is_none(), "the servers should not agree now");
    narrator
        .fact(
            "There is no common encoding version now, so the migrator waits. Whatever it rewrote, b or c \
         could write in the old version again.",
        )
        .await;
    stage.replace(B, new).await?;
    narrator
        .say(
            "Server b follows. Only c is left of the old release ... and then the machine of c is suspended, \
         in the middle of a write.",
        )
        .await;
    Ok(())
}

async fn late_riser(narrator: &Narrator, stage: &mut Stage, new: Release) -> anyhow::Result<()> {
    narrator.chapter(3, "The server that woke up too late");
    let c = &stage.members[C];
    let slices_of_c: Api<EndpointSlice> = Api::namespaced(c.cluster.client().clone(), "default");
    c.stall_writes();
    // A new object: nothing but the fence can refuse it.
    let late = slice("demo-late")?;
    let late = tokio::spawn(async move { slices_of_c.create(&PostParams::default(), &late).await });
    tokio::time::timeout(PATIENCE, c.stall_with("/demo-late")).await.context("the late write was not seen")?;
    let asleep = Instant::now();
    wait("c to be missed", || async {
        let slices = slices(stage).await?;
        Ok(slices.servers.len() == 2 && slices.storage_version.as_deref() == Some("v1"))
    })
    .await?;
    narrator
        .fact(format!(
            "After {:.1} s without a sign of life c was collected: first its lease, then its reports. \
         a and b agree on v1.",
            asleep.elapsed().as_secs_f64()
        ))
        .await;
    matrix(narrator, stage).await?;
    migrated(narrator, stage, "v1").await?;
    narrator
        .say("Every object is rewritten. And now c wakes up, with its write of the old version still in its hands.")
        .await;
    let before = stage.members[C].fence_failures();
    stage.members[C].wake();
    let answer = late.await?;
    wait("c to find out", || async { Ok(stage.members[C].fence_failures() > before) }).await?;
    let answer = match answer {
        Ok(_) => "it had to register and report anew before its client's write was done".to_string(),
        Err(kube::Error::Api(status)) => format!("its client was told {}: try again", status.code),
        Err(error) => format!("its client saw: {error}"),
    };
    narrator
        .fact(format!(
            "The store refused the write: c no longer holds the lease that it registered under \
         ({answer}). This is the fence."
        ))
        .await;
    stage.replace(C, new).await?;
    wait("agreement", || async { Ok(slices(stage).await?.storage_version.as_deref() == Some("v1")) }).await?;
    narrator.fact("c was upgraded too. All three agree on v1.").await;
    matrix(narrator, stage).await?;
    migrated(narrator, stage, "v1").await
}

async fn custom_resource(narrator: &Narrator, stage: &Stage, objects: u32) -> anyhow::Result<()> {
    narrator.chapter(4, "A custom resource changes its storage version");
    let client = stage.members[B].cluster.client().clone();
    let definitions: Api<DynamicObject> =
        Api::all_with(client.clone(), &resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    definitions.create(&PostParams::default(), &definition("v1")?).await.context("cannot define widgets")?;
    let widgets: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), "default", &resource("demo.restow.dev", "v1", "Widget"));
    wait("widgets to be served", || async { Ok(widgets.list(&Default::default()).await.is_ok()) }).await?;
    let made = futures::stream::iter(0..objects).map(|number| {
        let widgets = widgets.clone();
        async move {
            let widget = json!({
                "apiVersion": "demo.restow.dev/v1", "kind": "Widget",
                "metadata": {"name": format!("widget-{number}")}, "spec": {"size": number},
            });
            widgets.create(&PostParams::default(), &serde_json::from_value(widget)?).await?;
            anyhow::Ok(())
        }
    });
    let made: Vec<anyhow::Result<()>> = made.buffer_unordered(32).collect().await;
    made.into_iter().collect::<anyhow::Result<()>>().context("cannot create widgets")?;
    narrator
        .say(format!(
            "{objects} widgets are stored as {}. Now v2 becomes the storage version; nobody does anything else.",
            counts(&stored(stage, "Widget").await?)
        ))
        .await;
    let flipped = Instant::now();
    let versions = json!({"spec": {"versions": versions("v2")}});
    definitions.patch(WIDGETS, &PatchParams::default(), &Patch::Merge(&versions)).await?;
    wait("the stored versions to be trimmed", || async {
        let definition = definitions.get(WIDGETS).await?;
        Ok(definition.data["status"]["storedVersions"] == json!(["v2"]))
    })
    .await?;
    let stored = stored(stage, "Widget").await?;
    ensure!(
        stored.len() == 1 && stored.contains_key("v2"),
        "widgets should be stored as v2 only, not {}",
        counts(&stored)
    );
    narrator
        .fact(format!(
            "{:.1} s later all lie in the store as {}, and status.storedVersions is [v2]: v1 can be removed.",
            flipped.elapsed().as_secs_f64(),
            counts(&stored)
        ))
        .await;
    Ok(())
}

async fn roll_back(narrator: &Narrator, stage: &mut Stage, old: Release) -> anyhow::Result<()> {
    narrator.chapter(5, "A roll-back");
    narrator
        .say(format!(
            "Somebody wants release {old} back. It cannot know what comes later, so what is stored has \
         to go back with it."
        ))
        .await;
    for index in [A, B, C] {
        stage.replace(index, old).await?;
    }
    let ready = Instant::now();
    wait("agreement", || async { Ok(slices(stage).await?.storage_version.as_deref() == Some("v1beta1")) }).await?;
    narrator
        .fact(format!(
            "{:.0} ms after the last server was ready all agree on v1beta1 again.",
            ready.elapsed().as_secs_f64() * 1000.0
        ))
        .await;
    matrix(narrator, stage).await?;
    migrated(narrator, stage, "v1beta1").await
}

async fn proof(narrator: &Narrator, stage: &Stage, ledger: &super::writer::Ledger) -> anyhow::Result<()> {
    narrator.chapter(6, "Proof");
    let found = stored(stage, "EndpointSlice").await?;
    ensure!(found.keys().all(|version| version == "v1beta1"), "EndpointSlices are stored as {}", counts(&found));
    narrator
        .fact(format!(
            "Read from the store itself: EndpointSlices {}, Widgets {}.",
            counts(&found),
            counts(&stored(stage, "Widget").await?)
        ))
        .await;
    ensure!(ledger.failed.is_empty(), "writes failed: {}", ledger.failed.join("; "));
    let slices: Api<EndpointSlice> = Api::namespaced(stage.members[A].cluster.client().clone(), "default");
    for (name, number) in &ledger.values {
        let slice = slices.get(name).await?;
        let value = slice.metadata.annotations.unwrap_or_default().remove("demo.restow.dev/number");
        ensure!(value == Some(number.to_string()), "{name} holds {value:?}, but {number} was acknowledged");
    }
    narrator
        .fact(format!(
            "The client made {} writes through all of this. {} of them were told to try again and \
         then succeeded, none failed, none was lost.",
            ledger.acknowledged, ledger.retried
        ))
        .await;
    narrator
        .say(
            "That was all. `restow up` starts a server of your own, `restow explain` tells more, and `restow \
         status`, `restow verify` and `restow migrate` do this on your cluster.",
        )
        .await;
    Ok(())
}

/// Waits until all EndpointSlices lie in this version, with a bar for those who can see it.
async fn migrated(narrator: &Narrator, stage: &Stage, version: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template("   migrating {bar:40.green} {pos}/{len}")?);
    wait("the migration", || async {
        let stored = stored(stage, "EndpointSlice").await?;
        bar.set_length(stored.values().sum());
        bar.set_position(stored.get(version).copied().unwrap_or(0));
        let slices = slices(stage).await?;
        let is_proven = slices.migration.is_some_and(|migration| migration.state == "Succeeded")
            && slices.stored_versions == Some(vec![version.to_string()]);
        Ok(is_proven && stored.keys().all(|stored| stored == version))
    })
    .await?;
    bar.finish_and_clear();
    let stored = counts(&stored(stage, "EndpointSlice").await?);
    narrator
        .fact(format!(
            "The migrator has rewritten them by itself within {:.1} s: {stored}.",
            began.elapsed().as_secs_f64()
        ))
        .await;
    Ok(())
}

async fn matrix(narrator: &Narrator, stage: &Stage) -> anyhow::Result<()> {
    let slices = slices(stage).await?;
    let mut heading = vec!["SERVER".to_string(), "RELEASE".into()];
    heading.push(format!("WRITES {SLICES} IN"));
    let mut lines = vec![heading];
    for member in &stage.members {
        let writes = slices.servers.get(&format!("apiserver-{}", member.name));
        let writes = writes.cloned().unwrap_or_else(|| "(not taking part)".into());
        lines.push(vec![member.name.to_string(), member.release.to_string(), writes]);
    }
    let agreed = slices.storage_version.unwrap_or_else(|| "-".into());
    lines.push(vec!["all".into(), String::new(), agreed]);
    narrator.table(&lines, "v1beta1", "v1").await;
    Ok(())
}

/// What server a says about EndpointSlices.
async fn slices(stage: &Stage) -> anyhow::Result<ResourceOverview> {
    let overview = look(&stage.members[A].cluster).await?;
    let found = overview.resources.into_iter().find(|resource| resource.resource == SLICES);
    found.context("EndpointSlices are not served")
}

/// How many objects of a kind lie in the store in each version.
async fn stored(stage: &Stage, kind: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let census = take_census(stage.store.as_ref(), |_| {}).await?;
    let mut counts = BTreeMap::new();
    for row in census.rows.into_iter().filter(|row| row.kind == kind) {
        if let Encoding::Json { version } | Encoding::Protobuf { version } = row.encoding {
            *counts.entry(version).or_insert(0) += row.count;
        }
    }
    Ok(counts)
}

fn counts(stored: &BTreeMap<String, u64>) -> String {
    stored.iter().map(|(version, count)| format!("{count} in {version}")).collect::<Vec<_>>().join(", ")
}

/// Waits until something is so. Errors on the way are taken for "not yet": servers come and go in this story.
async fn wait<F, R>(what: &str, mut is_so: F) -> anyhow::Result<()>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<bool>>,
{
    let began = Instant::now();
    loop {
        let last = is_so().await;
        match last {
            Ok(true) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE => return Err(error.context(format!("waited in vain for {what}"))),
            Ok(false) if began.elapsed() > PATIENCE => bail!("waited in vain for {what}"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn slice(name: &str) -> anyhow::Result<EndpointSlice> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default"},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}],
    }))?)
}

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn versions(storage: &str) -> serde_json::Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!(["v1", "v2"].map(|name| json!({"name": name, "served": true, "storage": name == storage, "schema": schema})))
}

fn definition(storage: &str) -> anyhow::Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS},
        "spec": {
            "group": "demo.restow.dev", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": versions(storage),
        },
    }))?)
}
