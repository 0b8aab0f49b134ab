//! What happens in the demo, chapter by chapter. Each claim is checked; one that is not true ends the demo with an error.

use super::narrator::Narrator;
use super::props::{WIDGETS, definition, resource, slice, versions, widget};
use super::stage::Stage;
use super::view::{counts, matrix, slices, stored};
use super::writer::{Ledger, Writer};
use anyhow::{Context, bail, ensure};
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use restow_apiserver::release::Release;
use restow_migrate::controller::{self, ControllerConfig, Election, Metrics};
use restow_migrate::install::install_at_own_server;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long anything may take before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// The servers by position.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Plays everything.
pub(super) async fn play(narrator: &Narrator, stage: &mut Stage, objects: u32) -> anyhow::Result<()> {
    let (old, new): (Release, Release) = ("1.30".parse()?, "1.31".parse()?);
    opening(narrator, stage, objects, old).await?;
    let names = (0..objects.min(10)).map(|number| format!("demo-{number}")).collect();
    let writer = Writer::start(stage.clients(), names);
    let (stop, stopped) = watch::channel(false);
    let config = ControllerConfig { election: Election::Alone, ..Default::default() };
    let cluster = stage.members[A].cluster.clone();
    install_at_own_server(cluster.client()).await?;
    let controlling = tokio::spawn(controller::run(cluster, config, Metrics::default(), stopped));

    upgrade(narrator, stage, new).await?;
    late_riser(narrator, stage, new).await?;
    custom_resource(narrator, stage, objects).await?;
    roll_back(narrator, stage, old).await?;

    let ledger = writer.stop().await;
    stop.send_replace(true);
    let _ = controlling.await;
    proof(narrator, stage, &ledger).await
}

async fn opening(narrator: &Narrator, stage: &mut Stage, objects: u32, old: Release) -> anyhow::Result<()> {
    narrator.chapter(1, "Three API servers, one store");
    for name in ["a", "b", "c"] {
        stage.join(name, old).await?;
    }
    narrator
        .say(format!(
            "Three API servers that behave as Kubernetes {old} are running, {}. Each has reported which version it \
         writes each resource in, before it wrote anything.",
            stage.words()
        ))
        .await;
    let slices: Api<EndpointSlice> = Api::namespaced(stage.members[A].cluster.client().clone(), "default");
    let made = (0..objects).map(|number| slice(&format!("demo-{number}"))).collect::<anyhow::Result<Vec<_>>>()?;
    create_all(&slices, made).await?;
    let stored = stored(stage, "EndpointSlice").await?;
    narrator
        .fact(format!(
            "{objects} EndpointSlices were created as v1, the only version that {old} serves. In the store \
         they lie as v1beta1, which it writes ({}).",
            counts(&stored)
        ))
        .await;
    ensure!(!stored.contains_key("v1"), "release {old} should store EndpointSlices as v1beta1");
    narrator.say("From now on a client writes through all three servers, without a break, until the end.").await;
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
    let c = &mut stage.members[C];
    let slices_of_c: Api<EndpointSlice> = Api::namespaced(c.cluster.client().clone(), "default");
    c.machine.hold_writes().await?;
    // A new object: nothing but the fence can refuse it.
    let late = slice("demo-late")?;
    let mut late = tokio::spawn(async move { slices_of_c.create(&PostParams::default(), &late).await });
    tokio::select! {
        suspended = c.machine.suspend_with("/demo-late") => suspended?,
        answer = &mut late => bail!("the late write was not held up, but answered: {:?}", answer?.map(|_| "created")),
        () = tokio::time::sleep(PATIENCE) => bail!("the late write was not seen"),
    }
    let asleep = Instant::now();
    wait(narrator, "c is suspended; the others wait for a sign of life", || async {
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
    let before = stage.members[C].machine.fence_failures();
    stage.members[C].machine.wake().await?;
    let answer = late.await?;
    wait(narrator, "c finds out", || async { Ok(stage.members[C].machine.fence_failures() > before) }).await?;
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
    wait(narrator, "the servers agree", || async { Ok(slices(stage).await?.storage_version.as_deref() == Some("v1")) })
        .await?;
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
    wait(narrator, "widgets are served", || async { Ok(widgets.list(&Default::default()).await.is_ok()) }).await?;
    create_all(&widgets, (0..objects).map(widget).collect::<anyhow::Result<Vec<_>>>()?).await?;
    matrix(narrator, stage).await?;
    narrator
        .say(format!(
            "{objects} widgets were created, and lie in the store as v1 ({}). Now v2 becomes the storage version; nobody does anything else.",
            counts(&stored(stage, "Widget").await?)
        ))
        .await;
    // While the controller still looks through what it has never seen before, the guard refuses this.
    let versions = json!({"spec": {"versions": versions("v2")}});
    wait(narrator, "the storage version is changed", || async {
        Ok(definitions.patch(WIDGETS, &PatchParams::default(), &Patch::Merge(&versions)).await.is_ok())
    })
    .await?;
    let flipped = Instant::now();
    wait(narrator, "widgets are rewritten, and the list of their stored versions is trimmed", || async {
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
    wait(narrator, "the servers agree", || async {
        Ok(slices(stage).await?.storage_version.as_deref() == Some("v1beta1"))
    })
    .await?;
    narrator
        .fact(format!(
            "{:.0} ms after the last server was ready all agree on v1beta1 again.",
            ready.elapsed().as_secs_f64() * 1000.0
        ))
        .await;
    matrix(narrator, stage).await?;
    migrated(narrator, stage, "v1beta1").await
}

async fn proof(narrator: &Narrator, stage: &Stage, ledger: &Ledger) -> anyhow::Result<()> {
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

/// Creates objects, many at a time.
async fn create_all<K>(collection: &Api<K>, objects: Vec<K>) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams::default();
    let created = futures::stream::iter(&objects).map(|object| collection.create(&parameters, object));
    let created: Vec<kube::Result<K>> = created.buffer_unordered(32).collect().await;
    created.into_iter().collect::<kube::Result<Vec<K>>>().context("cannot create objects")?;
    Ok(())
}

/// Waits until all EndpointSlices lie in this version, with a bar for those who can see it.
async fn migrated(narrator: &Narrator, stage: &Stage, version: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let bar = narrator.bar("migrating ");
    let rewritten = until("all EndpointSlices are rewritten", || async {
        let stored = stored(stage, "EndpointSlice").await?;
        bar.set_length(stored.values().sum());
        bar.set_position(stored.get(version).copied().unwrap_or(0));
        // From here on the migrator makes sure: it goes through all of them again, and nothing may change.
        bar.set_message(if stored.keys().all(|stored| stored == version) { "proving it" } else { "migrating " });
        let slices = slices(stage).await?;
        let is_proven = slices.migration.is_some_and(|migration| migration.state == "Succeeded")
            && slices.stored_versions == Some(vec![version.to_string()]);
        Ok(is_proven && stored.keys().all(|stored| stored == version))
    })
    .await;
    bar.finish_and_clear();
    rewritten?;
    let stored = counts(&stored(stage, "EndpointSlice").await?);
    narrator
        .fact(format!(
            "The migrator has rewritten them by itself within {:.1} s: {stored}.",
            began.elapsed().as_secs_f64()
        ))
        .await;
    Ok(())
}

/// Waits until something is so, and shows on a terminal that it waits.
async fn wait<F, R>(narrator: &Narrator, what: &str, is_so: F) -> anyhow::Result<()>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<bool>>,
{
    let spinner = narrator.spinner(what);
    let done = until(what, is_so).await;
    spinner.finish_and_clear();
    done
}

/// Waits until something is so. Errors on the way are taken for "not yet": servers come and go in this story.
async fn until<F, R>(what: &str, mut is_so: F) -> anyhow::Result<()>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<bool>>,
{
    let began = Instant::now();
    loop {
        match is_so().await {
            Ok(true) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE => return Err(error.context(format!("waited in vain: {what}"))),
            Ok(false) if began.elapsed() > PATIENCE => bail!("waited in vain: {what}"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
