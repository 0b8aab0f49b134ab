//! `restow bench hostile`: the latency of health checks, lease renewals and administrators under hostile load.

mod attacks;
mod probes;

use crate::bench::apiserver::objects::Collection;
use crate::bench::apiserver::server_under_test::ServerUnderTest;
use crate::bench::report::{Report, Unit};
use anyhow::Context;
use attacks::Attack;
use clap::Args;
use futures::future::{join_all, try_join_all};
use http::{Method, Request};
use http_body_util::BodyExt;
use indicatif::{ProgressBar, ProgressStyle};
use kube::client::Body;
use probes::{Latencies, Probe};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Measure the latency of `/healthz`, of a lease renewal and of an administrator's get: on an idle server, and while users with
/// few rights send patches of megabytes and list with selectors of 60 kB. The target is 100 ms at the 99th percentile.
///
/// The server is a process of this program on the embedded store, or on an etcd that the benchmark starts.
#[derive(Debug, Args)]
pub(crate) struct HostileArgs {
    /// Run the server on etcd.
    #[arg(long)]
    etcd: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// A short run to check that the benchmark works; its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// The seconds for which each state is measured.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The number of hostile requests in flight.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: u64,
    /// The number of users that send them.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=256))]
    users: u64,
    /// The number of objects to list.
    #[arg(long, default_value_t = 16_000)]
    objects: u64,
    /// The directory for the store, which is removed afterwards.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// The namespace of the benchmark.
const NAMESPACE: &str = "restow-bench";

pub(crate) async fn run(args: HostileArgs) -> anyhow::Result<()> {
    let (seconds, objects) = if args.quick { (2, 200) } else { (args.seconds, args.objects) };
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{elapsed} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let server = match args.etcd {
        true => ServerUnderTest::etcd(&args.directory, &[]).await?,
        false => ServerUnderTest::embedded(&args.directory).await?,
    };
    bar.set_message(format!("{}: creating {objects} objects", server.name));
    let client = server.client.clone();
    prepare(&client, objects, args.users).await?;
    let attacks = attacks::all(objects);
    // Every hostile request must work once before the measurement.
    for attack in &attacks {
        attack.send(&client, "hostile-0").await.with_context(|| format!("{} fails on an idle server", attack.what))?;
    }
    bar.set_message("idle");
    let idle = measure(&client, seconds).await?;
    bar.set_message("under hostile load");
    let load = Load::start(&client, &attacks, args.clients, args.users);
    let hostile = measure(&client, seconds).await?;
    let answered = load.end().await;
    bar.finish_and_clear();
    let report = report(&server, &args, objects, [&idle, &hostile], answered);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.table()),
    }
    Ok(())
}

/// Creates objects to list, a lease, and the roles of the hostile users.
async fn prepare(client: &kube::Client, objects: u64, users: u64) -> anyhow::Result<()> {
    Collection::prepare(client.clone(), NAMESPACE).await?;
    let subjects: Vec<String> = (0..users)
        .map(|number| format!(r#"{{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"hostile-{number}"}}"#))
        .chain([r#"{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"renewer"}"#.to_string()])
        .collect();
    let binding = format!(
        r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{{"name":"users"}},
        "roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"}},
        "subjects":[{}]}}"#,
        subjects.join(",")
    );
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings");
    send(client, Method::POST, &path, Some(("application/json", binding)), None).await?;
    let lease = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"probe"},"spec":{"holderIdentity":"0"}}"#;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    send(client, Method::POST, &path, Some(("application/json", lease.into())), None).await?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    const AT_ONCE: u64 = 16;
    let filling = (0..AT_ONCE).map(|first| {
        let path = &path;
        async move {
            for number in (first..objects).step_by(AT_ONCE as usize) {
                let text = "x".repeat(1500);
                let object = format!(
                    r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"map-{number:06}","labels":{{"number":"{number}","app":"web"}}}},"data":{{"text":"{text}"}}}}"#
                );
                send(client, Method::POST, path, Some(("application/json", object)), None).await?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(filling).await?;
    Ok(())
}

async fn measure(client: &kube::Client, seconds: u64) -> anyhow::Result<Vec<(Probe, Latencies)>> {
    let end = Instant::now() + Duration::from_secs(seconds);
    try_join_all(Probe::ALL.map(|probe| async move { anyhow::Ok((probe, probe.measure(client, end).await?)) })).await
}

/// Hostile clients, until they are stopped.
struct Load {
    ended: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(client: &kube::Client, attacks: &[Arc<Attack>], clients: u64, users: u64) -> Self {
        let (ended, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let one = |number: u64| {
            let (client, attacks, ended, answered) =
                (client.clone(), attacks.to_vec(), ended.clone(), answered.clone());
            let user = format!("hostile-{}", number % users);
            tokio::spawn(async move {
                for attack in attacks.iter().cycle().skip(usize::try_from(number).unwrap_or(0)) {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    // A refused request is load too.
                    let _ = attack.send(&client, &user).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..clients).map(one).collect();
        Load { ended, answered, clients }
    }

    /// Stops them. Returns how many hostile requests were answered.
    async fn end(self) -> u64 {
        let answered = self.answered.load(Ordering::Relaxed);
        self.ended.store(true, Ordering::Relaxed);
        join_all(self.clients).await;
        answered
    }
}

fn report(
    server: &ServerUnderTest,
    args: &HostileArgs,
    objects: u64,
    measured: [&[(Probe, Latencies)]; 2],
    answered: u64,
) -> Report {
    let title = format!(
        "{} with {objects} objects: idle, and with {} hostile clients of {} users",
        server.name, args.clients, args.users
    );
    let columns = vec!["idle".to_string(), "hostile load".to_string()];
    let mut report = Report { title, columns, compared: None, rows: Vec::new() };
    for (number, probe) in Probe::ALL.into_iter().enumerate() {
        for (what, share) in [("p50", 0.5), ("p99", 0.99), ("slowest", 1.0)] {
            let values = measured.map(|state| state.get(number).and_then(|(_, latencies)| latencies.at(share)));
            report.add(format!("{}, {what}", probe.name()), Unit::Milliseconds, values.to_vec());
        }
        let counts = measured.map(|state| state.get(number).map(|(_, latencies)| latencies.count()));
        report.add(format!("{}, requests", probe.name()), Unit::Count, counts.to_vec());
    }
    report.add("hostile requests answered", Unit::Count, vec![Some(0.0), Some(answered as f64)]);
    report
}

/// Sends a request, impersonating a user where one is given. Returns the size of a successful response.
async fn send(
    client: &kube::Client,
    method: Method,
    path: &str,
    body: Option<(&str, String)>,
    user: Option<&str>,
) -> anyhow::Result<usize> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(user) = user {
        request = request.header("Impersonate-User", user);
    }
    let request = match body {
        Some((kind, body)) => request.header(http::header::CONTENT_TYPE, kind).body(Body::from(body.into_bytes()))?,
        None => request.body(Body::empty())?,
    };
    let answer = client.send(request).await?;
    let code = answer.status();
    let bytes = answer.into_body().collect().await?.to_bytes();
    anyhow::ensure!(code.is_success(), "{code}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(300)]));
    Ok(bytes.len())
}
