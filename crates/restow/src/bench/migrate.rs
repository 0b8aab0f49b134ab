//! `restow bench migrate`: how fast stored objects are rewritten on an existing cluster.
//!
//! It creates its own CRD and objects, changes the storage version back and forth, migrates each time, and removes everything
//! again.

use crate::cluster_args::ClusterArgs;
use anyhow::{Context, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use restow_api::GroupResource;
use restow_migrate::api_servers::{Scope, observe};
use restow_migrate::cluster::Cluster;
use restow_migrate::migration::{MigrationChannels, MigrationOptions, MigrationOutcome, migrate};
use restow_migrate::runner::{Progress, RewriteMethod, RunControl, RunOptions};
use restow_rules::migrate::pacer::{OtherClients, PacerLimits};
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Measure how fast stored objects are rewritten on a cluster. The benchmark creates a CRD there and removes it at the end.
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The number of objects.
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    objects: usize,
    /// The size of each object.
    #[arg(long, value_name = "BYTES", default_value_t = 2_000)]
    bytes: usize,
    /// Measure only the adaptive pacer, without fixed numbers of requests in flight for comparison.
    #[arg(long)]
    no_sweep: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// The measurement of one way to migrate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measurement {
    way: String,
    /// From the start to the proof that no object is stored in an old version.
    seconds: f64,
    objects_per_second: f64,
    passes: usize,
    /// The maximum in flight, where it is fixed.
    fixed: Option<usize>,
    /// The median latency of another client's get meanwhile.
    others_wait_ms: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measurements {
    objects: usize,
    bytes: usize,
    idle_wait_ms: f64,
    measurements: Vec<Measurement>,
    peak_memory_bytes: f64,
}

const GROUP: &str = "bench.restow.dev";
const PLURAL: &str = "benchobjects";
const KIND: &str = "BenchObject";

pub(crate) async fn run(args: MigrateArgs) -> anyhow::Result<()> {
    ensure!(args.objects > 0, "--objects must be at least 1");
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{elapsed} {msg}")?);
    let bench = Bench { cluster: args.cluster.connect().await?, bar };
    bench.remove().await?;
    bench.bar.set_message("creating objects");
    bench.seed(&args).await?;
    let measured = bench.measure(&args).await;
    bench.bar.set_message("removing the objects");
    bench.remove().await?;
    bench.bar.finish_and_clear();
    let measured = measured?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&measured)?);
    } else {
        measured.print();
    }
    Ok(())
}

struct Bench {
    cluster: Cluster,
    bar: ProgressBar,
}

impl Bench {
    fn crds(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let api = ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions");
        Api::all_with(self.cluster.client().clone(), &api)
    }

    fn objects(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, "v1", KIND);
        let api = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Api::namespaced_with(self.cluster.client().clone(), "default", &api)
    }

    async fn seed(&self, args: &MigrateArgs) -> anyhow::Result<()> {
        let crd: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{PLURAL}.{GROUP}")},
            "spec": {
                "group": GROUP, "scope": "Namespaced", "versions": versions("v1"),
                "names": {"plural": PLURAL, "singular": "benchobject", "kind": KIND},
            },
        }))?;
        self.crds().create(&PostParams::default(), &crd).await.context("cannot create a CRD")?;
        eventually("the resource is served", async || self.objects().list(&ListParams::default()).await.is_ok())
            .await?;
        let payload = "x".repeat(args.bytes.saturating_sub(400));
        let create = |number: usize| {
            let object = json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": KIND,
                "metadata": {"name": format!("object-{number:08}")}, "spec": {"payload": payload},
            });
            let api = self.objects();
            async move {
                let object: DynamicObject = serde_json::from_value(object)?;
                api.create(&PostParams::default(), &object).await.context("cannot create an object")?;
                anyhow::Ok(())
            }
        };
        stream::iter(0..args.objects).map(create).buffer_unordered(32).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    async fn measure(&self, args: &MigrateArgs) -> anyhow::Result<Measurements> {
        let idle = self.probe(tokio::time::sleep(Duration::from_secs(2))).await.1;
        let adaptive = PacerLimits::default();
        let mut ways = vec![
            ("patch, adaptive".to_owned(), RewriteMethod::Patch, adaptive),
            ("patch, in a hurry".to_owned(), RewriteMethod::Patch, PacerLimits::in_a_hurry()),
            ("put, adaptive".to_owned(), RewriteMethod::Put, adaptive),
        ];
        let sweep: &[usize] = if args.no_sweep { &[] } else { &[1, 2, 4, 8, 16, 32, 64] };
        for &fixed in sweep {
            let limits = PacerLimits { first: fixed, ceiling: fixed, others: OtherClients::Ignored };
            ways.push((format!("patch, at most {fixed} in flight"), RewriteMethod::Patch, limits));
        }
        let mut measurements = Vec::new();
        for (number, (way, method, pacer)) in ways.into_iter().enumerate() {
            let fixed = (pacer.first == pacer.ceiling).then_some(pacer.ceiling);
            self.bar.set_message(way.clone());
            self.store_in(if number % 2 == 0 { "v2" } else { "v1" }).await?;
            let run = RunOptions { method, pacer, ..RunOptions::default() };
            measurements.push(Measurement { fixed, ..self.once(way, run, args.objects).await? });
        }
        let peak_memory_bytes = super::process::peak_bytes(std::process::id()).unwrap_or(0.0);
        Ok(Measurements {
            objects: args.objects,
            bytes: args.bytes,
            idle_wait_ms: idle,
            measurements,
            peak_memory_bytes,
        })
    }

    async fn once(&self, way: String, run: RunOptions, objects: usize) -> anyhow::Result<Measurement> {
        let (_order, control) = watch::channel(RunControl::Run);
        let (progress, _seen) = watch::channel(Progress::default());
        // The settling time is a constant, so that it is not measured.
        let options = MigrationOptions { run, settling_time: Duration::ZERO, ..MigrationOptions::default() };
        let resource = resource()?;
        let started = Instant::now();
        let migration = async {
            let report =
                migrate(&self.cluster, &resource, options, MigrationChannels { control, progress: &progress }).await;
            (report, started.elapsed().as_secs_f64())
        };
        let ((report, seconds), others_wait_ms) = self.probe(migration).await;
        let report = report?;
        ensure!(report.outcome == MigrationOutcome::Succeeded, "{way}: {:?}", report.outcome);
        let run = report.run.context("nothing was rewritten")?;
        let rewritten = run.progress.counts.rewritten;
        ensure!(
            rewritten as usize == objects,
            "{way}: {rewritten} of {objects} objects were rewritten. Is another migrator running in this cluster? \
             (`restow up` has one; start it with --controller false)"
        );
        let objects_per_second = objects as f64 / seconds;
        let passes = run.passes.len();
        Ok(Measurement { way, seconds, objects_per_second, passes, fixed: None, others_wait_ms })
    }

    /// Runs some work, and measures the latency of another client's get meanwhile, in milliseconds.
    async fn probe<T>(&self, work: impl Future<Output = T>) -> (T, f64) {
        let is_done = Cell::new(false);
        let probing = async {
            let (api, mut waits) = (self.objects(), Vec::new());
            while !is_done.get() {
                let started = Instant::now();
                if api.get("object-00000000").await.is_ok() {
                    waits.push(started.elapsed().as_secs_f64() * 1_000.0);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            waits
        };
        let work = async {
            let result = work.await;
            is_done.set(true);
            result
        };
        let (result, mut waits) = tokio::join!(work, probing);
        waits.sort_by(f64::total_cmp);
        (result, waits.get(waits.len() / 2).copied().unwrap_or(0.0))
    }

    /// Changes the storage version, and waits until the servers agree on it.
    async fn store_in(&self, version: &str) -> anyhow::Result<()> {
        let hash = async || {
            let resource = resource().ok()?;
            let seen = observe(&self.cluster, Scope::Resources(&[&resource])).await.ok()?;
            seen.resource(&resource, None)?.agreed().cloned()
        };
        let before = hash().await;
        let patch = json!({"spec": {"versions": versions(version)}});
        let name = format!("{PLURAL}.{GROUP}");
        self.crds().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        eventually("the servers agree on the new storage version", async || {
            let now = hash().await;
            now.is_some() && now != before
        })
        .await
    }

    async fn remove(&self) -> anyhow::Result<()> {
        let name = format!("{PLURAL}.{GROUP}");
        if self.crds().get_opt(&name).await.context("cannot read from the cluster")?.is_none() {
            return Ok(());
        }
        self.crds().delete(&name, &DeleteParams::default()).await?;
        eventually("the CRD is deleted", async || matches!(self.crds().get_opt(&name).await, Ok(None))).await
    }
}

fn resource() -> anyhow::Result<GroupResource> {
    Ok(GroupResource::new(GROUP, PLURAL)?)
}

fn versions(stored: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == stored, "schema": schema});
    json!([version("v1"), version("v2")])
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
    let started = Instant::now();
    while !holds().await {
        ensure!(started.elapsed() < Duration::from_secs(300), "does not hold after five minutes: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

impl Measurements {
    fn print(&self) {
        println!(
            "{} objects of {} bytes; another client's get takes {:.1} ms when idle",
            self.objects, self.bytes, self.idle_wait_ms
        );
        println!("{:28} {:>9} {:>10} {:>7} {:>12}", "METHOD", "SECONDS", "OBJECTS/S", "PASSES", "OTHER GETS");
        for one in &self.measurements {
            println!(
                "{:28} {:>9.2} {:>10.0} {:>7} {:>9.1} ms",
                one.way, one.seconds, one.objects_per_second, one.passes, one.others_wait_ms
            );
        }
        let fixed = || self.measurements.iter().filter(|one| one.fixed.is_some());
        let best = |adaptive: &Measurement, kind: &str, among: Vec<&Measurement>| {
            let best = among.into_iter().max_by(|a, b| a.objects_per_second.total_cmp(&b.objects_per_second));
            if let Some(best) = best {
                let share = 100.0 * adaptive.objects_per_second / best.objects_per_second;
                println!("{}: {share:.0} % of the best fixed number {kind} ({})", adaptive.way, best.way);
            }
        };
        let gentle = |one: &&Measurement| one.others_wait_ms <= (2.0 * self.idle_wait_ms).max(1.0);
        for adaptive in self.measurements.iter().take(2) {
            best(adaptive, "of all", fixed().collect());
            best(adaptive, "that at most doubles the latency of others", fixed().filter(gentle).collect());
        }
        println!("peak memory of this process: {:.1} MB", self.peak_memory_bytes / 1e6);
    }
}
