//! What happens in the demo, chapter by chapter. Each claim is checked; a claim that is not true ends the demo with an error.

use super::cluster::DemoCluster;
use super::objects::{WIDGETS, crd, resource, slice, versions, widget};
use super::printer::Printer;
use super::tables::{counts, matrix, slices, stored};
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

/// How long anything may take before the demo fails.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The servers by position.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Runs all chapters.
pub(super) async fn run(printer: &Printer, cluster: &mut DemoCluster, objects: u32) -> anyhow::Result<()> {
    let (old, new): (Release, Release) = ("1.30".parse()?, "1.31".parse()?);
    opening(printer, cluster, objects, old).await?;
    let names = (0..objects.min(10)).map(|number| format!("demo-{number}")).collect();
    let writer = Writer::start(cluster.clients(), names);
    let (stop, stopped) = watch::channel(false);
    let config = ControllerConfig { election: Election::Alone, ..Default::default() };
    let first = cluster.members[A].cluster.clone();
    install_at_own_server(first.client()).await?;
    let controlling = tokio::spawn(controller::run(first, config, Metrics::default(), stopped));

    upgrade(printer, cluster, new).await?;
    suspended_server(printer, cluster, new).await?;
    custom_resource(printer, cluster, objects).await?;
    roll_back(printer, cluster, old).await?;

    let ledger = writer.stop().await;
    stop.send_replace(true);
    let _ = controlling.await;
    proof(printer, cluster, &ledger).await
}

async fn opening(printer: &Printer, cluster: &mut DemoCluster, objects: u32, old: Release) -> anyhow::Result<()> {
    printer.chapter(1, "Three API servers, one store");
    for name in ["a", "b", "c"] {
        cluster.join(name, old).await?;
    }
    printer
        .say(format!(
            "Three API servers that behave as Kubernetes {old} are running, {}. Before its first write, each has \
         reported in which version it writes each resource.",
            cluster.description()
        ))
        .await;
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.members[A].cluster.client().clone(), "default");
    let made = (0..objects).map(|number| slice(&format!("demo-{number}"))).collect::<anyhow::Result<Vec<_>>>()?;
    create_all(&slices, made).await?;
    let stored = stored(cluster, "EndpointSlice").await?;
    printer
        .fact(format!(
            "{objects} EndpointSlices were created as v1, the only version that {old} serves. They are stored \
         as v1beta1, which it writes ({}).",
            counts(&stored)
        ))
        .await;
    ensure!(!stored.contains_key("v1"), "release {old} should store EndpointSlices as v1beta1");
    printer.say("From now on a client writes through all three servers without pause, until the end.").await;
    matrix(printer, cluster).await
}

async fn upgrade(printer: &Printer, cluster: &mut DemoCluster, new: Release) -> anyhow::Result<()> {
    printer.chapter(2, "A rolling upgrade, and why nothing may be migrated yet");
    cluster.replace(A, new).await?;
    printer.say(format!("Server a now runs release {new}, which writes v1. The others still write v1beta1.")).await;
    matrix(printer, cluster).await?;
    let slices = slices(cluster).await?;
    ensure!(slices.storage_version.is_none(), "the servers should not agree now");
    printer
        .fact(
            "There is no common encoding version now, so the migrator waits. Whatever it rewrote, b or c \
         could write in the old version again.",
        )
        .await;
    cluster.replace(B, new).await?;
    printer
        .say(
            "Server b is upgraded too. Only c still runs the old release, and then c is suspended in the \
         middle of a write.",
        )
        .await;
    Ok(())
}

async fn suspended_server(printer: &Printer, cluster: &mut DemoCluster, new: Release) -> anyhow::Result<()> {
    printer.chapter(3, "A suspended server that resumes too late");
    let c = &mut cluster.members[C];
    let slices_of_c: Api<EndpointSlice> = Api::namespaced(c.cluster.client().clone(), "default");
    c.server.hold_writes().await?;
    // A new object: only the fence can refuse it.
    let late = slice("demo-late")?;
    let mut late = tokio::spawn(async move { slices_of_c.create(&PostParams::default(), &late).await });
    tokio::select! {
        suspended = c.server.suspend_with("/demo-late") => suspended?,
        answer = &mut late => bail!("the late write was not held, but answered: {:?}", answer?.map(|_| "created")),
        () = tokio::time::sleep(TIMEOUT) => bail!("the late write was not seen"),
    }
    let asleep = Instant::now();
    wait(printer, "c is suspended; the others wait for its lease to expire", || async {
        let slices = slices(cluster).await?;
        Ok(slices.servers.len() == 2 && slices.storage_version.as_deref() == Some("v1"))
    })
    .await?;
    printer
        .fact(format!(
            "After {:.1} s without a lease renewal c was removed: first its lease, then its reports. \
         a and b agree on v1.",
            asleep.elapsed().as_secs_f64()
        ))
        .await;
    matrix(printer, cluster).await?;
    migrated(printer, cluster, "v1").await?;
    printer.say("Every object is rewritten. Now c resumes, with a write in the old version still under way.").await;
    let before = cluster.members[C].server.fence_failures();
    cluster.members[C].server.resume().await?;
    let answer = late.await?;
    wait(printer, "c sees that its lease is gone", || async {
        Ok(cluster.members[C].server.fence_failures() > before)
    })
    .await?;
    let answer = match answer {
        Ok(_) => "it had to register and report again before it could write for its client".to_string(),
        Err(kube::Error::Api(status)) => format!("its client got {}: try again", status.code),
        Err(error) => format!("its client saw: {error}"),
    };
    printer
        .fact(format!(
            "The store refused the write: c does not hold the lease that it registered under any more \
         ({answer}). This is the fence."
        ))
        .await;
    cluster.replace(C, new).await?;
    wait(printer, "the servers agree", || async {
        Ok(slices(cluster).await?.storage_version.as_deref() == Some("v1"))
    })
    .await?;
    printer.fact("c was upgraded too. All three agree on v1.").await;
    matrix(printer, cluster).await?;
    migrated(printer, cluster, "v1").await
}

async fn custom_resource(printer: &Printer, cluster: &DemoCluster, objects: u32) -> anyhow::Result<()> {
    printer.chapter(4, "A custom resource changes its storage version");
    let client = cluster.members[B].cluster.client().clone();
    let crds: Api<DynamicObject> =
        Api::all_with(client.clone(), &resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    crds.create(&PostParams::default(), &crd("v1")?).await.context("cannot create the CRD of widgets")?;
    let widgets: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), "default", &resource("demo.restow.dev", "v1", "Widget"));
    wait(printer, "widgets are served", || async { Ok(widgets.list(&Default::default()).await.is_ok()) }).await?;
    create_all(&widgets, (0..objects).map(widget).collect::<anyhow::Result<Vec<_>>>()?).await?;
    matrix(printer, cluster).await?;
    printer
        .say(format!(
            "{objects} widgets were created, and are stored as v1 ({}). Now v2 becomes the storage version; nobody does anything else.",
            counts(&stored(cluster, "Widget").await?)
        ))
        .await;
    // While the controller still checks what is stored, the guard refuses this.
    let versions = json!({"spec": {"versions": versions("v2")}});
    wait(printer, "the storage version is changed", || async {
        Ok(crds.patch(WIDGETS, &PatchParams::default(), &Patch::Merge(&versions)).await.is_ok())
    })
    .await?;
    let flipped = Instant::now();
    wait(printer, "widgets are rewritten and status.storedVersions is trimmed", || async {
        let crd = crds.get(WIDGETS).await?;
        Ok(crd.data["status"]["storedVersions"] == json!(["v2"]))
    })
    .await?;
    let stored = stored(cluster, "Widget").await?;
    ensure!(
        stored.len() == 1 && stored.contains_key("v2"),
        "widgets should be stored as v2 only, not {}",
        counts(&stored)
    );
    printer
        .fact(format!(
            "{:.1} s later all are stored as v2 ({}), and status.storedVersions is [v2]: v1 can be removed.",
            flipped.elapsed().as_secs_f64(),
            counts(&stored)
        ))
        .await;
    Ok(())
}

async fn roll_back(printer: &Printer, cluster: &mut DemoCluster, old: Release) -> anyhow::Result<()> {
    printer.chapter(5, "A roll-back");
    printer
        .say(format!(
            "The operator goes back to release {old}, which writes v1beta1. The stored objects must go back with \
         it."
        ))
        .await;
    for index in [A, B, C] {
        cluster.replace(index, old).await?;
    }
    let ready = Instant::now();
    wait(printer, "the servers agree", || async {
        Ok(slices(cluster).await?.storage_version.as_deref() == Some("v1beta1"))
    })
    .await?;
    printer
        .fact(format!(
            "{:.0} ms after the last server was ready all agree on v1beta1 again.",
            ready.elapsed().as_secs_f64() * 1000.0
        ))
        .await;
    matrix(printer, cluster).await?;
    migrated(printer, cluster, "v1beta1").await
}

async fn proof(printer: &Printer, cluster: &DemoCluster, ledger: &Ledger) -> anyhow::Result<()> {
    printer.chapter(6, "Proof");
    let found = stored(cluster, "EndpointSlice").await?;
    ensure!(found.keys().all(|version| version == "v1beta1"), "EndpointSlices are stored as {}", counts(&found));
    printer
        .fact(format!(
            "Read from the store itself: EndpointSlices {}, Widgets {}.",
            counts(&found),
            counts(&stored(cluster, "Widget").await?)
        ))
        .await;
    ensure!(ledger.failed.is_empty(), "writes failed: {}", ledger.failed.join("; "));
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.members[A].cluster.client().clone(), "default");
    for (name, number) in &ledger.values {
        let slice = slices.get(name).await?;
        let value = slice.metadata.annotations.unwrap_or_default().remove("demo.restow.dev/number");
        ensure!(value == Some(number.to_string()), "{name} holds {value:?}, but {number} was acknowledged");
    }
    printer
        .fact(format!(
            "The client made {} writes during all of this. {} of them were retried and succeeded, \
         none failed, none was lost.",
            ledger.acknowledged, ledger.retried
        ))
        .await;
    printer
        .say(
            "That was all. `restow up` starts a server for you, `restow explain` explains the terms, and `restow \
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

/// Waits until all EndpointSlices are stored in this version, with a progress bar on a terminal.
async fn migrated(printer: &Printer, cluster: &DemoCluster, version: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let bar = printer.bar("migrating ");
    let rewritten = until("all EndpointSlices are rewritten", || async {
        let stored = stored(cluster, "EndpointSlice").await?;
        bar.set_length(stored.values().sum());
        bar.set_position(stored.get(version).copied().unwrap_or(0));
        // From here on the migrator verifies: it goes through all of them again, and nothing may change.
        bar.set_message(if stored.keys().all(|stored| stored == version) { "verifying " } else { "migrating " });
        let slices = slices(cluster).await?;
        let is_proven = slices.migration.is_some_and(|migration| migration.state == "Succeeded")
            && slices.stored_versions == Some(vec![version.to_string()]);
        Ok(is_proven && stored.keys().all(|stored| stored == version))
    })
    .await;
    bar.finish_and_clear();
    rewritten?;
    let stored = counts(&stored(cluster, "EndpointSlice").await?);
    printer
        .fact(format!(
            "The migrator has rewritten and verified them by itself within {:.1} s: {stored}.",
            began.elapsed().as_secs_f64()
        ))
        .await;
    Ok(())
}

/// Waits until a condition holds, and shows on a terminal that it waits.
async fn wait<F, R>(printer: &Printer, what: &str, holds: F) -> anyhow::Result<()>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<bool>>,
{
    let spinner = printer.spinner(what);
    let done = until(what, holds).await;
    spinner.finish_and_clear();
    done
}

/// Waits until a condition holds. An error counts as "not yet": servers are stopped and started in this demo.
async fn until<F, R>(what: &str, mut holds: F) -> anyhow::Result<()>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<bool>>,
{
    let began = Instant::now();
    loop {
        match holds().await {
            Ok(true) => return Ok(()),
            Err(error) if began.elapsed() > TIMEOUT => {
                return Err(error.context(format!("timed out waiting until {what}")));
            }
            Ok(false) if began.elapsed() > TIMEOUT => bail!("timed out waiting until {what}"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
