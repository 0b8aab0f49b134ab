//! The run on the embedded store: one server (`restow up`) that is killed and starved, round after round.
//!
//! Nobody can watch the store of another process. So after each round a copy of it is opened and its history is read on, while the
//! server is down; then the server recovers the original by itself.

use super::admin::Admin;
use super::api::Access;
use super::disk::Disk;
use super::history::History;
use super::managed_process::{ManagedProcess, run as run_command};
use super::report::{Part, ProcessError};
use super::watcher::Watcher;
use super::writer::Writer;
use super::{ProcessOptions, Release, Reporter, panics_in};
use crate::checks::Rule;
use crate::world::convergence::{Expected, what_is_open_in};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use restow_store::{KeyRange, Store, WatchRequest};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The disk in megabytes. The embedded store refuses writes when less than about 100 MB are free.
const DISK: u32 = 512;
const NAME: &str = "server-0";
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often the server is started again to settle, and how long it runs each time.
const SETTLING_ROUNDS: usize = 9;
const SETTLING_ROUND: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const WRITER_PAUSE: Duration = Duration::from_millis(150);

/// A run on the embedded store.
struct EmbeddedPart<'r> {
    options: &'r ProcessOptions,
    reporter: &'r Reporter<'r>,
    history: Arc<History>,
    process: ManagedProcess,
    disk: Disk,
    folder: PathBuf,
    address: String,
    random: StdRng,
    round: u64,
}

/// What happens in the middle of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misery {
    /// Nothing.
    Nothing,
    /// The disk is full for a while.
    FullDisk,
    /// The server gets only a small part of the time.
    Starved,
    /// The server is suspended.
    Suspended,
}

/// Runs it for so long.
pub(crate) async fn run(
    options: &ProcessOptions,
    reporter: &Reporter<'_>,
    duration: Duration,
) -> Result<Part, ProcessError> {
    let history = Arc::new(History::record_to(&options.folder.join("embedded-history.jsonl"))?);
    let folder = options.folder.join("embedded");
    std::fs::create_dir_all(&folder).map_err(ProcessError::io("create a folder for logs"))?;
    let mut part = EmbeddedPart {
        options,
        reporter,
        history: history.clone(),
        process: ManagedProcess::new("restow up", folder.join("up.log")),
        disk: Disk::mount(folder.join("disk"), DISK)?,
        folder,
        address: format!("127.231.{}.2:6443", std::process::id() % 250),
        random: StdRng::seed_from_u64(options.seed),
        round: 0,
    };
    let ran = async {
        let began = Instant::now();
        while began.elapsed() < duration && !part.history.has_seen_enough() {
            part.torture().await?;
        }
        part.settle().await
    };
    let settled_after = ran.await;
    history.flush();
    let (counts, violations) = (history.counts(), history.violations());
    Ok(Part { store: "embedded", settled_after: settled_after?, counts, violations })
}

impl EmbeddedPart<'_> {
    /// One round: start, write, suffer, die.
    async fn torture(&mut self) -> Result<(), ProcessError> {
        let release = if self.round.is_multiple_of(2) { Release::Older } else { Release::Newer };
        let first = self.round == 0;
        self.round += 1;
        self.start(release).await?;
        let (servers, admin) = self.clients().await?;
        if !admin.set_up(READY_WITHIN).await {
            return Err(self.not_ready());
        }
        let mut tasks = JoinSet::new();
        for number in 0..self.options.writers {
            let number = number + 100 * usize::try_from(self.round).unwrap_or_default();
            let writer = Writer::new(number, self.options.seed, self.history.clone(), servers.clone());
            tasks.spawn(writer.write(WRITER_PAUSE));
        }
        for (via, client) in &servers {
            for watcher in Watcher::all(&self.history, client, via) {
                tasks.spawn(watcher.watch());
            }
        }
        if !first {
            self.history.count(|counts| match release {
                Release::Newer => counts.upgrades += 1,
                Release::Older => counts.rollbacks += 1,
            });
        }
        let length = Duration::from_millis(self.random.random_range(2_000..8_000));
        self.wait(length / 3).await;
        tasks.spawn(admin.flip_storage_version(0));
        self.suffer().await;
        self.wait(length / 3).await;
        self.history.note("SIGKILL");
        self.history.count(|counts| counts.kills += 1);
        self.process.kill_for(Duration::ZERO);
        // What is under way fails now, and is recorded.
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(tasks);
        self.read_on().await
    }

    async fn suffer(&mut self) {
        let misery =
            [Misery::Nothing, Misery::FullDisk, Misery::Starved, Misery::Suspended][self.random.random_range(0..4)];
        let length = Duration::from_millis(self.random.random_range(300..4_000));
        self.history.note(format!("{misery:?} for {length:?}"));
        match misery {
            Misery::Nothing => {}
            Misery::FullDisk => {
                if self.disk.fill() {
                    self.history.count(|counts| counts.full_disks += 1);
                    self.wait(length).await;
                    self.disk.free();
                }
            }
            Misery::Starved => {
                self.history.count(|counts| counts.pauses += 1);
                let began = Instant::now();
                while began.elapsed() < length {
                    self.process.pause_for(length);
                    tokio::time::sleep(Duration::from_millis(45)).await;
                    self.process.resume();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            Misery::Suspended => {
                self.history.count(|counts| counts.pauses += 1);
                self.process.pause_for(length);
                self.wait(length).await;
                self.process.resume();
            }
        }
    }

    async fn wait(&self, length: Duration) {
        self.reporter.progress("rounds on the embedded store", self.history.counts());
        tokio::time::sleep(length).await;
    }

    async fn start(&mut self, release: Release) -> Result<(), ProcessError> {
        let mut command = Command::new(&self.options.restow);
        command.args(["up", "--listen", &self.address, "--release", release.name(), "--identity", NAME]);
        command.arg("--data-dir").arg(self.disk.path().join("data"));
        self.history.note(format!("restow up is started as {release:?}"));
        self.process.start(&mut command)?;
        let began = Instant::now();
        while !self.is_ready().await {
            if began.elapsed() > READY_WITHIN || self.process.has_ended() != Some(false) {
                return Err(self.not_ready());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn not_ready(&self) -> ProcessError {
        let (what, folder) = ("restow up is not ready".to_owned(), self.folder.clone());
        ProcessError::NotReady { what, after: READY_WITHIN, folder }
    }

    async fn is_ready(&self) -> bool {
        let Ok(access) = Access::read(&self.disk.path().join("data/kubeconfig")).await else { return false };
        let Ok(client) = access.client(&self.address) else { return false };
        let answer = super::api::request(&client, ("GET", "/readyz", "application/json"), None).await;
        answer.is_ok_and(|answer| answer.code == 200)
    }

    async fn clients(&self) -> Result<(Vec<(String, kube::Client)>, Admin), ProcessError> {
        let access = Access::read(&self.disk.path().join("data/kubeconfig")).await?;
        let client = access.client(&self.address)?;
        Ok((vec![(NAME.to_owned(), client.clone())], Admin::new(self.history.clone(), vec![client])))
    }

    /// Opens a copy of the store, reads on, and checks all answers.
    async fn read_on(&mut self) -> Result<(), ProcessError> {
        let copy = self.folder.join("copy");
        // There is none after the first round.
        let _ = std::fs::remove_dir_all(&copy);
        run_command(Command::new("cp").arg("-a").arg(self.disk.path().join("data/store")).arg(&copy))?;
        let config = EmbeddedConfig::new(&copy);
        let opened = tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await;
        let store = match opened {
            Ok(Ok(store)) => store,
            Ok(Err(error)) => {
                let words = format!("the store cannot be opened after round {}: {error}", self.round);
                self.history.violated(Rule::AcknowledgedWritesAreThere, words.clone());
                return Err(ProcessError::History(words));
            }
            Err(error) => return Err(ProcessError::History(error.to_string())),
        };
        let lost = |error: restow_store::StoreError| ProcessError::History(error.to_string());
        let end = store.status().await.map_err(lost)?.revision;
        let mut watch = store.watch(WatchRequest::from(KeyRange::all(), self.history.next())).await.map_err(lost)?;
        while self.history.next() <= end {
            match tokio::time::timeout(READ_TIMEOUT, watch.next()).await {
                Ok(Some(batch)) => {
                    let batch = batch.map_err(lost)?;
                    self.history.look_at(&batch.events, batch.revision);
                }
                _ => return Err(ProcessError::History(format!("revision {end} was never delivered"))),
            }
        }
        self.history.check_answers(self.history.mark());
        drop(watch);
        // Closing the store waits for its threads.
        tokio::task::spawn_blocking(move || drop(store)).await.map_err(|error| ProcessError::History(error.to_string()))
    }

    /// Runs the server without faults until everything has settled.
    async fn settle(&mut self) -> Result<Option<f64>, ProcessError> {
        let expected = Expected { servers: BTreeSet::from([NAME.to_owned()]), aggregated: BTreeMap::new() };
        let mut open = Vec::new();
        for round in 1..=SETTLING_ROUNDS {
            self.start(Release::Newer).await?;
            self.reporter.progress("settling on the embedded store", self.history.counts());
            tokio::time::sleep(SETTLING_ROUND).await;
            // A store that is killed cannot be told from one that was settled, so nothing is lost here.
            self.process.kill_for(Duration::ZERO);
            self.read_on().await?;
            open = self.history.contents(|contents| what_is_open_in(contents, &expected, false));
            if open.is_empty() {
                self.check_log();
                return Ok(Some(SETTLING_ROUND.as_secs_f64() * round as f64));
            }
        }
        let seconds = SETTLING_ROUND.as_secs() * SETTLING_ROUNDS as u64;
        self.history.violated(Rule::ItGetsThere, format!("{seconds} s after the last fault: {}", open.join("; ")));
        self.check_log();
        Ok(None)
    }

    fn check_log(&self) {
        panics_in(NAME, self.process.log()).into_iter().for_each(|panic| self.history.violated(Rule::NoPanic, panic));
    }
}
