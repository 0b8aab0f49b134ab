//! The run on etcd: starts everything, lets writers write while faults happen, ends all faults, and waits until everything has settled.

use super::admin::Admin;
use super::aggregated::{self, PLANTS, Reader, RevisionTimes};
use super::api::Access;
use super::balancer::Balancer;
use super::cluster::Cluster;
use super::faults::Faults;
use super::history::History;
use super::host::{Host, MEMBERS};
use super::observer::Observer;
use super::plan::{plan, stock_plan};
use super::report::{Part, ProcessError};
use super::stock::{Migrator, Patience, StockRules};
use super::watcher::Watcher;
use super::writer::Writer;
use super::{ProcessOptions, Reporter, panics_in};
use crate::checks::Rule;
use crate::world::convergence::{Expected, what_is_open_in};
use crate::world::user::{Kind, WIDGETS};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long everything may take to be ready at first.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long everything may take to settle after the last fault.
const SETTLES_WITHIN: Duration = Duration::from_secs(180);
/// The same on stock API servers, where a settling time begins again when something changes.
const STOCK_SETTLES_WITHIN: Duration = Duration::from_secs(300);
/// How often an administrator asks a migrator again that does not begin by itself.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// How long the trigger of kube-storage-version-migrator takes to go through all resources.
const ONE_PASS: Duration = Duration::from_secs(150);
const TICK: Duration = Duration::from_millis(50);
/// The average time between two requests of a writer.
const WRITER_PAUSE: Duration = Duration::from_millis(150);
/// The number of writers at the aggregated server, and what they write.
const PLANT_WRITERS: usize = 3;
const PLANT_KINDS: &[Kind] = &[PLANTS];
/// What writers write on stock API servers.
const CUSTOM_KINDS: &[Kind] = &[WIDGETS];

/// A run on etcd.
pub(crate) struct EtcdPart<'r> {
    options: &'r ProcessOptions,
    reporter: &'r Reporter<'r>,
    cluster: Cluster,
    observer: Observer,
    admin: Admin,
    access: Access,
    _balancers: [Balancer; 2],
    /// The history of the aggregated server.
    aggregated: Arc<History>,
    reader: Reader,
    revision_times: RevisionTimes,
    /// When the trigger of kube-storage-version-migrator last began to go through all resources.
    triggered: Instant,
}

/// Runs it for so long.
pub(crate) async fn run(
    options: &ProcessOptions,
    reporter: &Reporter<'_>,
    left_out: &mut Vec<String>,
    duration: Duration,
) -> Result<Vec<Part>, ProcessError> {
    let record = options.folder.join("etcd-history.jsonl");
    let history = Arc::new(match options.stock {
        None => History::record_to(&record)?,
        Some(_) => History::of_stock(&record, StockRules::new(Patience::of(options.seed).request_timeout))?,
    });
    let aggregated = Arc::new(History::record_to(&options.folder.join("aggregated-history.jsonl"))?);
    let ran = async {
        let mut part = EtcdPart::start(options, reporter, (history.clone(), aggregated.clone()), left_out).await?;
        part.torture(duration).await?;
        let settled_after = part.settle().await?;
        if options.stock.is_none() {
            part.compare_stores().await?;
        }
        Ok(settled_after)
    };
    let ran = ran.await;
    [&history, &aggregated].into_iter().for_each(|history| history.flush());
    let settled_after = ran?;
    let part = |store, history: &History| Part {
        store,
        settled_after,
        counts: history.counts(),
        violations: history.violations(),
    };
    Ok(match options.stock {
        None => vec![part("etcd", &history), part("aggregated", &aggregated)],
        Some(_) => vec![part("stock API servers on etcd", &history)],
    })
}

impl<'r> EtcdPart<'r> {
    async fn start(
        options: &'r ProcessOptions,
        reporter: &'r Reporter<'r>,
        (history, aggregated): (Arc<History>, Arc<History>),
        left_out: &mut Vec<String>,
    ) -> Result<Self, ProcessError> {
        let mut cluster = Cluster::prepare(options, (history.clone(), aggregated.clone()), left_out)?;
        reporter.left_out(left_out);
        let urls: Vec<String> = (0..MEMBERS).map(|number| cluster.member_url(number)).collect();
        let access = Access::read(&cluster.kubeconfig()).await?;
        let addresses: Vec<String> =
            (0..cluster.servers()).map(|number| cluster.address(Host::Server(number))).collect();
        let clients = addresses.iter().map(|address| access.client(address)).collect::<Result<_, _>>()?;
        let balancers = [
            Balancer::start(&cluster.address(Host::Hub), addresses.clone()).await?,
            Balancer::start(&cluster.address(Host::Balancer), addresses).await?,
        ];
        cluster.tick(|host| matches!(host, Host::Member(_)))?;
        let revision_times = RevisionTimes::start(urls.clone());
        let observer = Observer::start(urls, history.clone());
        cluster.tick(|host| matches!(host, Host::Server(_)))?;
        let admin = Admin::new(history, clients).of_stock(options.stock.clone());
        let reader = Reader::new(cluster.record(), aggregated.clone());
        let mut part = EtcdPart {
            options,
            reporter,
            cluster,
            observer,
            admin,
            access,
            _balancers: balancers,
            aggregated,
            reader,
            revision_times,
            triggered: Instant::now(),
        };
        let setting_up = tokio::spawn({
            let admin = part.admin.clone();
            async move { admin.set_up(READY_WITHIN).await }
        });
        while !setting_up.is_finished() {
            part.tick("starting", |host| !matches!(host, Host::Controller(_) | Host::Aggregated)).await?;
        }
        if !setting_up.await.unwrap_or_default() {
            let folder = options.folder.clone();
            return Err(ProcessError::NotReady {
                what: "the API servers are not ready".into(),
                after: READY_WITHIN,
                folder,
            });
        }
        Ok(part)
    }

    fn history(&self) -> &Arc<History> {
        &self.cluster.history
    }

    async fn tick(&mut self, phase: &'static str, which: impl Fn(Host) -> bool) -> Result<(), ProcessError> {
        self.cluster.tick(which)?;
        self.observer.still_reads().await?;
        self.reader.read();
        self.reporter.progress(phase, self.history().counts());
        tokio::time::sleep(TICK).await;
        Ok(())
    }

    /// Lets writers write while faults happen.
    async fn torture(&mut self, duration: Duration) -> Result<(), ProcessError> {
        let mut writers = JoinSet::new();
        for number in 0..self.options.writers {
            let client = |server: usize| {
                let host = Host::Server(server);
                Ok((host.to_string(), self.access.client(&self.cluster.address(host))?))
            };
            let servers = (0..self.cluster.servers()).map(client).collect::<Result<_, ProcessError>>()?;
            let writer = Writer::new(number, self.options.seed, self.history().clone(), servers);
            let writer = if self.options.stock.is_some() { writer.of(CUSTOM_KINDS) } else { writer };
            writers.spawn(writer.write(WRITER_PAUSE));
        }
        // What stock servers tell their watchers is not Restow's.
        let watched = if self.options.stock.is_some() { 0 } else { self.cluster.servers() };
        for server in 0..watched {
            let host = Host::Server(server);
            let client = self.access.client(&self.cluster.address(host))?;
            for watcher in Watcher::all(self.history(), &client, &host.to_string()) {
                writers.spawn(watcher.watch());
            }
        }
        let plant_writers = if self.options.stock.is_some() { 0 } else { PLANT_WRITERS };
        for number in 0..plant_writers {
            let host = Host::Aggregated;
            let server = (host.to_string(), self.access.client(&self.cluster.address(host))?);
            let writer = Writer::new(500 + number, self.options.seed, self.aggregated.clone(), vec![server]);
            writers.spawn(writer.of(PLANT_KINDS).write(WRITER_PAUSE));
        }
        let mut faults = Faults::new(self.admin.clone());
        let (seed, servers) = (self.options.seed, self.cluster.servers());
        let planned = match self.migrator() {
            None => plan(seed, duration, servers),
            Some(migrator) => stock_plan(seed, duration, servers, migrator.calm(seed)),
        };
        let mut planned = planned.into_iter().peekable();
        let (began, mut flips) = (Instant::now(), 0);
        while began.elapsed() < duration && !self.history().has_seen_enough() {
            while let Some(next) = planned.next_if(|next| next.at <= began.elapsed()) {
                faults.begin(&mut self.cluster, next.fault).await?;
            }
            faults.tick(&mut self.cluster).await?;
            if std::mem::replace(&mut flips, self.history().counts().flips) != flips {
                self.ask();
            }
            self.tick("faults on etcd", |_| true).await?;
        }
        self.history().note("all faults end");
        faults.end_all(&mut self.cluster).await
    }

    /// Who migrates on stock API servers.
    fn migrator(&self) -> Option<&'r Migrator> {
        self.options.stock.as_ref().map(|stock| &stock.migrator)
    }

    /// What an administrator does after a change of the storage version, where the migrator does not notice it by itself.
    fn ask(&mut self) {
        match self.migrator() {
            None | Some(Migrator::Restow) => {}
            Some(Migrator::InTree { .. }) => {
                let turn = self.history().counts().operations as usize;
                drop(tokio::spawn(self.admin.clone().ask_for_migration(turn)));
            }
            Some(Migrator::Ksvm { .. }) => {
                if self.triggered.elapsed() > ONE_PASS
                    && let Some(trigger) = self.cluster.process(Host::Controller(1))
                {
                    trigger.kill_for(Duration::ZERO);
                    self.triggered = Instant::now();
                }
            }
        }
    }

    /// Waits until everything has settled, and checks what is stored. The writers have ended.
    async fn settle(&mut self) -> Result<Option<f64>, ProcessError> {
        let expected = Expected {
            servers: (0..self.cluster.servers()).map(|number| Host::Server(number).to_string()).collect(),
            aggregated: BTreeMap::from([(aggregated::RESOURCE.to_owned(), Host::Aggregated.to_string())]),
        };
        let began = Instant::now();
        let mut settled_after = None;
        let within = if self.options.stock.is_some() { STOCK_SETTLES_WITHIN } else { SETTLES_WITHIN };
        let mut asked = Instant::now();
        while settled_after.is_none() && began.elapsed() < within {
            self.tick("settling on etcd", |_| true).await?;
            if asked.elapsed() > ASK_AGAIN {
                asked = Instant::now();
                self.ask();
            }
            if self.what_is_open(&expected).await.is_empty() {
                settled_after = Some(began.elapsed().as_secs_f64());
            }
        }
        if settled_after.is_none() {
            let open = self.what_is_open(&expected).await.join("; ");
            self.history().violated(Rule::ItGetsThere, format!("{} s after the last fault: {open}", within.as_secs()));
        }
        if !self.observer.catch_up(Duration::from_secs(60)).await {
            return Err(ProcessError::History("etcd does not answer after the last fault".to_owned()));
        }
        self.observer.compare().await?;
        for (name, log) in self.cluster.logs().filter(|(name, _)| !name.starts_with("etcd")) {
            panics_in(name, log).into_iter().for_each(|panic| self.history().violated(Rule::NoPanic, panic));
        }
        Ok(settled_after)
    }

    /// Compares the store of the aggregated server with etcd. Everything in etcd is read.
    async fn compare_stores(&mut self) -> Result<(), ProcessError> {
        let (now, began) = (restow_host::since_boot(), Instant::now());
        while !self.reader.has_read(now) {
            if began.elapsed() > Duration::from_secs(60) {
                return Err(ProcessError::History("the aggregated server does not record any more".to_owned()));
            }
            self.tick("reading", |_| true).await?;
        }
        let (writes, states) = (self.reader.writes(), self.history().reported());
        let answers = self.revision_times.answers();
        for (rule, what) in aggregated::check(&writes, &states, &answers) {
            self.aggregated.violated(rule, what);
        }
        Ok(())
    }

    /// What is not as it should be yet: of the processes, and then in the store.
    async fn what_is_open(&self, expected: &Expected) -> Vec<String> {
        let mut open = self.cluster.disturbed();
        if open.is_empty() {
            open.extend(
                self.admin.who_is_not_ready().await.iter().map(|server| format!("server-{server} is not ready")),
            );
        }
        if open.is_empty() && !self.admin.restore().await {
            open.push("the CRD or a namespace is missing".to_owned());
        }
        // Everything is read that was written before the last server was ready.
        if open.is_empty() && !self.observer.catch_up(Duration::from_secs(10)).await {
            open.push("etcd does not answer".to_owned());
        }
        if open.is_empty() {
            open = match self.migrator() {
                None => self.history().contents(|contents| what_is_open_in(contents, expected, false)),
                Some(migrator) => self.history().open_for(migrator),
            };
        }
        open
    }
}
