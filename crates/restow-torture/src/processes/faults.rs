//! Carries out faults on a cluster, and ends them.

use super::admin::Admin;
use super::cluster::Cluster;
use super::host::{Host, MEMBERS};
use super::member_loss::{self, Replacement};
use super::network::BadLink;
use super::observer;
use super::plan::{Cut, Direction, Fault};
use super::report::ProcessError;
use super::{Release, Reporting};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

/// The time between two servers of an upgrade.
const ONE_AFTER_THE_OTHER: Duration = Duration::from_secs(4);

/// The faults that are going on.
pub(crate) struct Faults {
    admin: Admin,
    ends: Vec<(Instant, End)>,
    /// A member of etcd that is being replaced.
    loss: Option<(usize, JoinHandle<Result<Replacement, ProcessError>>)>,
    /// What administrators are doing.
    tasks: JoinSet<()>,
    /// Counts what administrators did, so that they begin with another server each time.
    turns: usize,
}

/// What is to be done later.
enum End {
    Mend(Vec<(Host, Host)>),
    MakeGood(Host),
    FreeDisk(usize),
    Replace(usize, Release),
    Report(usize),
}

impl Faults {
    pub(crate) fn new(admin: Admin) -> Self {
        Faults { admin, ends: Vec::new(), loss: None, tasks: JoinSet::new(), turns: 0 }
    }

    /// Begins a fault.
    pub(crate) async fn begin(&mut self, cluster: &mut Cluster, fault: Fault) -> Result<(), ProcessError> {
        cluster.history.note(format!("FAULT {fault:?}"));
        match fault {
            Fault::Kill(host, pause) => kill(cluster, host, pause),
            Fault::Pause(host, pause) => suspend(cluster, host, pause),
            Fault::KillLeader(pause) => kill(cluster, leader(cluster).await, pause),
            Fault::PauseLeader(pause) => suspend(cluster, leader(cluster).await, pause),
            Fault::LoseMember(member) => {
                // One at a time: without two of three members there is nobody to take in the third.
                if self.loss.is_none()
                    && member_loss::is_possible()
                    && let Some(loss) = cluster.lose_member(member)
                {
                    self.loss = Some((member, tokio::task::spawn_blocking(move || loss.replace())));
                }
            }
            Fault::FillDisk(member, pause) => {
                if cluster.disks[member].fill() {
                    cluster.history.count(|counts| counts.full_disks += 1);
                    self.later(pause, End::FreeDisk(member));
                }
            }
            Fault::Cut(cut, direction, pause) => self.cut(cluster, cut, direction, pause)?,
            Fault::Slow(host, how, pause) => {
                if cluster.network.make_bad(host, how) {
                    cluster.history.count(|counts| match how {
                        BadLink::Delay(_) => counts.slow_links += 1,
                        BadLink::Loss(_) => counts.lossy_links += 1,
                    });
                    self.later(pause, End::MakeGood(host));
                }
            }
            Fault::Clock(host, seconds) => {
                if let Some(clock) = cluster.clocks.get(&host) {
                    clock.jump(seconds)?;
                    cluster.history.count(|counts| counts.clock_jumps += 1);
                }
            }
            Fault::Upgrade => self.roll(cluster, Release::Newer),
            Fault::RollBack => self.roll(cluster, Release::Older),
            Fault::ReplaceAggregated => cluster.replace_aggregated(match cluster.aggregated_release() {
                Release::Older => Release::Newer,
                Release::Newer => Release::Older,
            }),
            Fault::Silence(server, pause) => {
                cluster.set_reporting(server, Reporting::Off);
                self.later(pause, End::Report(server));
            }
            Fault::FlipStorageVersion => {
                let (admin, turn) = (self.admin.clone(), self.turn());
                self.tasks.spawn(admin.flip_storage_version(turn));
            }
            Fault::Compact => {
                let urls = (0..MEMBERS).map(|number| cluster.member_url(number)).collect();
                self.tasks.spawn(observer::compact(urls, cluster.history.clone()));
            }
            Fault::DeleteCrd(pause) => {
                let (admin, turn) = (self.admin.clone(), self.turn());
                self.tasks.spawn(admin.delete_crd(turn, pause));
            }
            Fault::DeleteNamespace(pause) => {
                let (admin, turn) = (self.admin.clone(), self.turn());
                self.tasks.spawn(admin.delete_namespace(turn, pause));
            }
            Fault::AskForMigration => {
                let (admin, turn) = (self.admin.clone(), self.turn());
                self.tasks.spawn(admin.ask_for_migration(turn));
            }
            Fault::DeleteLease(server) => {
                let (admin, turn) = (self.admin.clone(), self.turn());
                self.tasks.spawn(admin.delete_lease(Host::Server(server).to_string(), turn));
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> usize {
        self.turns += 1;
        self.turns
    }

    fn later(&mut self, pause: Duration, end: End) {
        self.ends.push((Instant::now() + pause, end));
    }

    fn cut(
        &mut self,
        cluster: &mut Cluster,
        cut: Cut,
        direction: Direction,
        pause: Duration,
    ) -> Result<(), ProcessError> {
        let ways = cut.ways(direction);
        let mut done = Vec::new();
        for (from, to) in ways {
            if cluster.network.cut(from, to)? {
                done.push((from, to));
            }
        }
        if !done.is_empty() {
            cluster.history.count(|counts| counts.partitions += 1);
            self.later(pause, End::Mend(done));
        }
        Ok(())
    }

    fn roll(&mut self, cluster: &Cluster, release: Release) {
        for server in 0..cluster.servers() {
            self.later(ONE_AFTER_THE_OTHER * u32::try_from(server).unwrap_or_default(), End::Replace(server, release));
        }
    }

    /// Ends the faults whose time is over.
    pub(crate) async fn tick(&mut self, cluster: &mut Cluster) -> Result<(), ProcessError> {
        if self.loss.as_ref().is_some_and(|(_, task)| task.is_finished()) {
            self.end_loss(cluster).await?;
        }
        while self.tasks.try_join_next().is_some() {}
        let now = Instant::now();
        let (over, open): (Vec<_>, Vec<_>) = self.ends.drain(..).partition(|(at, _)| *at <= now);
        self.ends = open;
        over.into_iter().try_for_each(|(_, end)| carry_out(cluster, end))
    }

    /// Waits until a member of etcd was replaced, and starts it.
    async fn end_loss(&mut self, cluster: &mut Cluster) -> Result<(), ProcessError> {
        let Some((member, task)) = self.loss.take() else { return Ok(()) };
        let replacement = task.await.map_err(|error| ProcessError::History(error.to_string()))??;
        cluster.restore_member(member, replacement);
        Ok(())
    }

    /// Ends all faults. In the end all servers run, report, and are of the newer release.
    pub(crate) async fn end_all(&mut self, cluster: &mut Cluster) -> Result<(), ProcessError> {
        for (_, end) in self.ends.drain(..) {
            if !matches!(end, End::Replace(..)) {
                carry_out(cluster, end)?;
            }
        }
        cluster.clocks.values().try_for_each(|clock| clock.jump(0))?;
        let lost = self.loss.as_ref().map(|(member, _)| Host::Member(*member));
        for host in cluster.hosts().filter(|host| Some(*host) != lost).collect::<Vec<_>>() {
            if let Some(process) = cluster.process(host) {
                process.resume();
                process.start_now();
            }
        }
        // The others have to run for that.
        cluster.tick(|host| Some(host) != lost)?;
        self.end_loss(cluster).await?;
        // What an administrator has not finished is restored later.
        self.tasks.shutdown().await;
        for server in 0..cluster.servers() {
            if cluster.has_releases() && cluster.release_of(server) != Release::Newer {
                cluster.replace(server, Release::Newer);
            }
        }
        if cluster.aggregated_release() != Release::Newer {
            cluster.replace_aggregated(Release::Newer);
        }
        Ok(())
    }
}

fn carry_out(cluster: &mut Cluster, end: End) -> Result<(), ProcessError> {
    match end {
        End::Mend(ways) => ways.into_iter().try_for_each(|(from, to)| cluster.network.mend(from, to))?,
        End::MakeGood(host) => cluster.network.make_good(host),
        End::FreeDisk(member) => cluster.disks[member].free(),
        End::Replace(server, release) => cluster.replace(server, release),
        End::Report(server) => cluster.set_reporting(server, Reporting::On),
    }
    Ok(())
}

fn kill(cluster: &mut Cluster, host: Host, pause: Duration) {
    let Some(process) = cluster.process(host).filter(|process| process.runs()) else { return };
    process.kill_for(pause);
    cluster.history.count(|counts| counts.kills += 1);
}

fn suspend(cluster: &mut Cluster, host: Host, pause: Duration) {
    let Some(process) = cluster.process(host).filter(|process| process.is_undisturbed()) else { return };
    process.pause_for(pause);
    cluster.history.count(|counts| counts.pauses += 1);
}

/// The leader of etcd; the first member if nobody says so.
async fn leader(cluster: &Cluster) -> Host {
    for number in 0..MEMBERS {
        let address = format!("{}:2379", cluster.network.address(Host::Member(number)));
        let asked = tokio::time::timeout(Duration::from_millis(500), metrics(&address)).await;
        if asked.is_ok_and(|text| text.is_ok_and(|text| text.contains("\netcd_server_is_leader 1"))) {
            return Host::Member(number);
        }
    }
    Host::Member(0)
}

async fn metrics(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: etcd\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}
