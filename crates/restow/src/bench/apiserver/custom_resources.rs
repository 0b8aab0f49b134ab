//! Measures custom resources: objects with a long schema and CEL rules, a long list that a webhook converts, and many CRDs at
//! once.

use crate::bench::apiserver::server_under_test::ServerUnderTest;
use crate::bench::apiserver::work::Meter;
use crate::bench::apiserver::{Amounts, Measurement, conversion_webhook};
use crate::bench::process::resident_bytes;
use crate::bench::rate::count;
use crate::bench::report::Unit;
use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use http::{Method, Request};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const GROUP: &str = "restow-bench.example.com";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How many fields the long schema has: with their keywords about 200 lines of YAML.
const FIELDS: usize = 48;
/// How many CRDs are created one after the other.
const ALONE: u64 = 20;
/// How often the long list is read.
const LISTS: usize = 3;

pub(super) async fn measure(
    server: &ServerUnderTest,
    amounts: Amounts,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Measurement>> {
    let say = |what: &str| bar.set_message(format!("{}: {what}", server.name));
    let bench = Bench { server };
    say("custom resources");
    let mut results = bench.single_objects(amounts).await?;
    say("conversion by webhook");
    results.extend(bench.conversion(amounts).await?);
    say("a definition at a time");
    results.extend(bench.single_definitions(amounts).await?);
    say("many definitions");
    results.extend(bench.definitions(amounts).await?);
    Ok(results)
}

struct Bench<'a> {
    server: &'a ServerUnderTest,
}

impl Bench<'_> {
    async fn single_objects(&self, amounts: Amounts) -> anyhow::Result<Vec<Measurement>> {
        self.define("ruled", &long_schema(), &json!({"strategy": "None"})).await?;
        let time = Duration::from_secs(amounts.seconds);
        let next = AtomicU64::new(0);
        let meter = Meter::start(self.server);
        let made = count(amounts.clients, time, async |_| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let object = ruled_object("ruled", &format!("made-{number}"));
            self.send(Method::POST, &path("v1", "ruled", ""), Some(&object)).await.map(drop)
        })
        .await?;
        let mut results = meter.rows("creates of custom resources, 48 fields and 5 rules", "create", made);
        let meter = Meter::start(self.server);
        let updated = count(amounts.clients, time, async |task| {
            let patch = json!({"spec": {"field0": next.fetch_add(1, Ordering::Relaxed) % 900}});
            let name = format!("made-{}", task % made);
            self.send(Method::PATCH, &path("v1", "ruled", &name), Some(&patch)).await.map(drop)
        })
        .await?;
        results.extend(meter.rows("updates of these, by merge patch", "update", updated));
        self.undefine("ruled").await?;
        Ok(results)
    }

    async fn conversion(&self, amounts: Amounts) -> anyhow::Result<Vec<Measurement>> {
        let webhook = conversion_webhook::Converter::start().await?;
        let conversion = json!({"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"],
            "clientConfig": {"url": webhook.url, "caBundle": webhook.ca_bundle}}});
        self.define("converted", &long_schema(), &conversion).await?;
        futures::stream::iter(0..amounts.converted)
            .map(async |number| {
                let object = ruled_object("converted", &format!("made-{number}"));
                self.send(Method::POST, &path("v1", "converted", ""), Some(&object)).await.map(drop)
            })
            .buffer_unordered(32)
            .try_collect::<()>()
            .await?;
        let meter = Meter::start(self.server);
        let begun = Instant::now();
        for _ in 0..LISTS {
            let list = self.send(Method::GET, &path("v2", "converted", ""), None).await?;
            anyhow::ensure!(list.len() as u64 > amounts.converted * 100, "a converted list is incomplete");
        }
        let each = begun.elapsed().as_secs_f64() * 1e3 / LISTS as f64;
        let what = format!("list of {} objects, converted by webhook", amounts.converted);
        let cpu = meter.rows("", "converted list", LISTS as u64).into_iter().skip(1);
        let mut results = vec![(what, Unit::Milliseconds, Some(each))];
        results.extend(cpu);
        self.undefine("converted").await?;
        Ok(results)
    }

    /// How long it takes until a CRD can be used, at the server that it was sent to and at another one.
    async fn single_definitions(&self, amounts: Amounts) -> anyhow::Result<Vec<Measurement>> {
        let another = self.server.another().await?;
        let (mut here, mut there) = (0f64, None);
        for number in 0..amounts.crds.min(ALONE) {
            let plural = format!("alone{number}");
            let begun = Instant::now();
            self.post_definition(&plural, &long_schema(), &json!({"strategy": "None"})).await?;
            let usable_there = async {
                match &another {
                    Some(another) => until_served(&another.client, &plural).await.map(Some),
                    None => Ok(None),
                }
            };
            let (at_once, later) =
                futures::future::try_join(until_served(&self.server.client, &plural), usable_there).await?;
            let milliseconds = |at: Instant| at.duration_since(begun).as_secs_f64() * 1e3;
            here = here.max(milliseconds(at_once));
            there = later.map(milliseconds).map(|time| time.max(there.unwrap_or_default()));
            self.undefine(&plural).await?;
        }
        let row = |what: &str, time| (format!("a CRD until it is usable, {what}, longest"), Unit::Milliseconds, time);
        Ok(vec![row("same server", Some(here)), row("another server", there)])
    }

    async fn definitions(&self, amounts: Amounts) -> anyhow::Result<Vec<Measurement>> {
        let process = self.server.process;
        let before = process.and_then(resident_bytes);
        let begun = Instant::now();
        let names: Vec<String> = (0..amounts.crds).map(|number| format!("many{number}")).collect();
        futures::stream::iter(&names)
            .map(async |name| self.define(name, &long_schema(), &json!({"strategy": "None"})).await)
            .buffer_unordered(8)
            .try_collect::<()>()
            .await?;
        let each = begun.elapsed().as_secs_f64() * 1e3 / amounts.crds.max(1) as f64;
        let document = self.send(Method::GET, &format!("/apis/{GROUP}/v1"), None).await?;
        let grown = process.and_then(resident_bytes).zip(before).map(|(now, before)| (now - before).max(0.0));
        for name in &names {
            self.undefine(name).await?;
        }
        let number = amounts.crds;
        Ok(vec![
            (format!("{number} CRDs, each until it is usable"), Unit::Milliseconds, Some(each)),
            (format!("memory of {number} CRDs"), Unit::Bytes, grown),
            (format!("discovery of {number} custom resources"), Unit::Bytes, Some(document.len() as f64)),
        ])
    }

    /// Creates a CRD, and waits until its objects can be listed.
    async fn define(&self, plural: &str, schema: &Value, conversion: &Value) -> anyhow::Result<()> {
        self.post_definition(plural, schema, conversion).await?;
        until_served(&self.server.client, plural).await.map(drop)
    }

    async fn post_definition(&self, plural: &str, schema: &Value, conversion: &Value) -> anyhow::Result<()> {
        let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{GROUP}")},
            "spec": {
                "group": GROUP, "scope": "Cluster", "names": {"plural": plural, "kind": format!("Kind{plural}")},
                "versions": [version("v1", true), version("v2", false)], "conversion": conversion,
            },
        });
        let made = self.send(Method::POST, CRDS, Some(&definition)).await;
        made.context("cannot define a resource; is one left over from an earlier run?").map(drop)
    }

    async fn undefine(&self, plural: &str) -> anyhow::Result<()> {
        self.send(Method::DELETE, &format!("{CRDS}/{plural}.{GROUP}"), None).await.map(drop)
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<String> {
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("content-type", media).body(body)?;
        Ok(self.server.client.request_text(request).await?)
    }
}

/// When a server first serves a custom resource.
async fn until_served(client: &kube::Client, plural: &str) -> anyhow::Result<Instant> {
    let begun = Instant::now();
    let path = format!("{}?limit=1", path("v1", plural, ""));
    while client.request_text(Request::get(&path).body(Vec::new())?).await.is_err() {
        anyhow::ensure!(begun.elapsed() < Duration::from_secs(60), "a custom resource is not served");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(Instant::now())
}

fn path(version: &str, plural: &str, name: &str) -> String {
    let name = if name.is_empty() { String::new() } else { format!("/{name}") };
    format!("/apis/{GROUP}/{version}/{plural}{name}")
}

/// A schema of numbers, texts and lists, with five rules.
fn long_schema() -> Value {
    let field = |number: usize| match number % 3 {
        0 => json!({"type": "integer", "minimum": 0, "maximum": 1000}),
        1 => json!({"type": "string", "maxLength": 64, "pattern": "^[a-z0-9-]*$"}),
        _ => json!({"type": "array", "maxItems": 8, "items": {"type": "string", "maxLength": 32}}),
    };
    let fields: Map<String, Value> = (0..FIELDS).map(|number| (format!("field{number}"), field(number))).collect();
    let rules = [
        "self.field0 <= self.field3",
        "self.field1.startsWith('text')",
        "self.field2.all(item, item.size() < 32)",
        "!has(self.field6) || self.field6 < 1000",
        "self.field4 == self.field7",
    ];
    let rules: Vec<Value> = rules.iter().map(|rule| json!({"rule": rule, "message": "is not so"})).collect();
    json!({"type": "object", "properties": {"spec": {
        "type": "object", "required": ["field0", "field1", "field2", "field3"], "properties": fields,
        "x-kubernetes-validations": rules}}})
}

/// An object that fills every field of the schema.
fn ruled_object(plural: &str, name: &str) -> Value {
    let field = |number: usize| match number % 3 {
        0 => json!(900 + number),
        1 => json!("text-of-some-length"),
        _ => json!(["one", "two", "three"]),
    };
    let fields: Map<String, Value> = (0..FIELDS).map(|number| (format!("field{number}"), field(number))).collect();
    let kind = format!("Kind{plural}");
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "spec": fields})
}
