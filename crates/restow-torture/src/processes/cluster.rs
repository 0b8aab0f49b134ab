//! The processes of a run on etcd: three members of etcd, API servers and controllers, each on a host of its own.

mod stock;

use super::disk::Disk;
use super::history::History;
use super::host::{CONTROLLERS, Host, MEMBERS};
use super::managed_process::{ManagedProcess, Todo, run};
use super::member_loss::{self, MemberLoss, Replacement};
use super::network::Network;
use super::plan::is_voting;
use super::report::ProcessError;
use super::stock::{Migrator, Patience, StockOptions};
use super::wall_clock::{ClockLibrary, WallClock};
use super::{ProcessOptions, Release, Reporting};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// The disk of a member of etcd, in megabytes. etcd reserves 64 MB for each file of its log, of which there are up to four.
const DISK: u32 = 320;
/// How much larger it is for each minute of the run: the database grows, and a member that was away gets a copy of it.
const DISK_PER_MINUTE: u64 = 6;
/// Longer than any run.
const A_LONG_TIME: Duration = Duration::from_secs(1_000_000);
/// The port of the API servers and of the load balancer.
const PORT: u16 = 6443;

/// All processes. They end when this is dropped.
pub(crate) struct Cluster {
    pub(crate) network: Network,
    pub(crate) history: Arc<History>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) clocks: BTreeMap<Host, WallClock>,
    processes: BTreeMap<Host, ManagedProcess>,
    releases: Vec<Release>,
    /// Which servers report their storage versions.
    reporting: Vec<Reporting>,
    /// The release of the aggregated server, and the history of its store.
    aggregated: (Release, Arc<History>),
    is_voting: bool,
    /// The members of etcd that joined an existing cluster.
    joined: Vec<bool>,
    programs: Programs,
    /// Stock API servers in place of Restow's.
    stock: Option<StockOptions>,
    patience: Patience,
    folder: PathBuf,
}

/// The programs that are run.
struct Programs {
    restow: PathBuf,
    etcd: PathBuf,
}

impl Cluster {
    /// Prepares everything, and starts nothing yet. What this machine cannot do is added to `left_out`.
    pub(crate) fn prepare(
        options: &ProcessOptions,
        (history, aggregated): (Arc<History>, Arc<History>),
        left_out: &mut Vec<String>,
    ) -> Result<Self, ProcessError> {
        let members = (0..MEMBERS).map(Host::Member);
        let others = (0..options.servers).map(Host::Server).chain((0..CONTROLLERS).map(Host::Controller));
        let aggregated_host = options.stock.is_none().then_some(Host::Aggregated);
        let hosts: Vec<Host> = members.chain(others).chain(aggregated_host).collect();
        let network = Network::build(&hosts, left_out)?;
        let folder = options.folder.join("etcd");
        std::fs::create_dir_all(&folder).map_err(ProcessError::io("create a folder for logs"))?;
        let library = match ClockLibrary::compile(&folder) {
            Ok(library) => Some(library),
            Err(error) => {
                left_out.push(format!("wrong clocks: they need a C compiler named cc ({error})"));
                None
            }
        };
        if options.stock.is_some() {
            left_out.push("wrong clocks of stock programs: they read the time without the C library".to_owned());
        }
        if !member_loss::is_possible() {
            left_out.push("members of etcd that lose their disk: they need etcdctl".to_owned());
        }
        let mut clocks = BTreeMap::new();
        for host in hosts.iter().filter(|host| has_clock(**host, options.stock.as_ref())) {
            clocks.insert(*host, WallClock::right(&folder, &host.to_string(), library.as_ref())?);
        }
        if library.is_none() {
            clocks.clear();
        }
        let more = options.duration.as_secs() / 60 * DISK_PER_MINUTE;
        let megabytes = DISK.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        let disk = |number: usize| Disk::mount(folder.join(format!("disk-{number}")), megabytes);
        let process = |host: &Host| (*host, ManagedProcess::new(host.to_string(), folder.join(format!("{host}.log"))));
        let cluster = Cluster {
            network,
            history,
            disks: (0..MEMBERS).map(disk).collect::<Result<_, _>>()?,
            clocks,
            processes: hosts.iter().map(process).collect(),
            releases: vec![Release::Older; options.servers],
            reporting: vec![Reporting::On; options.servers],
            aggregated: (Release::Older, aggregated),
            joined: vec![false; MEMBERS],
            is_voting: is_voting(options.seed),
            programs: Programs { restow: options.restow.clone(), etcd: options.etcd.clone() },
            stock: options.stock.clone(),
            patience: Patience::of(options.seed),
            folder,
        };
        cluster.create_certificates(&hosts)?;
        Ok(cluster)
    }

    fn create_certificates(&self, hosts: &[Host]) -> Result<(), ProcessError> {
        let mut command = Command::new(&self.programs.restow);
        command.arg("pki").arg(self.pki());
        for host in hosts.iter().chain([&Host::Hub, &Host::Balancer]) {
            command.args(["--address", &self.network.address(*host)]);
        }
        run(command.args(["--server", &self.address(Host::Hub)]))?;
        // The aggregated server has its own way to the main ones.
        let kubeconfig = std::fs::read_to_string(self.kubeconfig()).map_err(ProcessError::io("read the kubeconfig"))?;
        let kubeconfig = kubeconfig.replace(&self.address(Host::Hub), &self.address(Host::Balancer));
        std::fs::write(self.aggregated_kubeconfig(), kubeconfig).map_err(ProcessError::io("write a kubeconfig"))
    }

    fn aggregated_kubeconfig(&self) -> PathBuf {
        self.pki().join("kubeconfig-aggregated")
    }

    /// Where the aggregated server records what happens in its store.
    pub(crate) fn record(&self) -> PathBuf {
        self.folder.join("aggregated.jsonl")
    }

    fn pki(&self) -> PathBuf {
        self.folder.join("pki")
    }

    /// The kubeconfig of an administrator, for the load balancer.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.pki().join("kubeconfig")
    }

    /// Where a server or the load balancer listens.
    pub(crate) fn address(&self, host: Host) -> String {
        format!("{}:{PORT}", self.network.address(host))
    }

    /// The URL of a member of etcd.
    pub(crate) fn member_url(&self, number: usize) -> String {
        format!("http://{}:2379", self.network.address(Host::Member(number)))
    }

    fn peer_url(&self, number: usize) -> String {
        format!("http://{}:2380", self.network.address(Host::Member(number)))
    }

    fn data_of(&self, number: usize) -> PathBuf {
        self.disks[number].path().join("data")
    }

    /// Ends a member of etcd for good, so that it can be replaced; `None` if another one is away too.
    pub(crate) fn lose_member(&mut self, number: usize) -> Option<MemberLoss> {
        if (0..MEMBERS).any(|number| !self.processes[&Host::Member(number)].is_undisturbed()) {
            return None;
        }
        self.process(Host::Member(number))?.kill_for(A_LONG_TIME);
        Some(MemberLoss {
            name: format!("m{number}"),
            peer_url: self.peer_url(number),
            others: (0..MEMBERS).filter(|other| *other != number).map(|other| self.member_url(other)).collect(),
            data: self.data_of(number),
        })
    }

    /// Starts a member of etcd that was lost.
    pub(crate) fn restore_member(&mut self, number: usize, how: Replacement) {
        self.history.note(format!("m{number}: {how:?}"));
        if how == Replacement::Joins {
            self.joined[number] = true;
            self.history.count(|counts| counts.lost_members += 1);
        }
        if let Some(process) = self.process(Host::Member(number)) {
            process.start_now();
        }
    }

    pub(crate) fn servers(&self) -> usize {
        self.releases.len()
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = Host> {
        self.processes.keys().copied()
    }

    pub(crate) fn process(&mut self, host: Host) -> Option<&mut ManagedProcess> {
        self.processes.get_mut(&host)
    }

    /// The processes that do not run, or are suspended or being stopped.
    pub(crate) fn disturbed(&self) -> Vec<String> {
        let disturbed = self.processes.values().filter(|process| !process.is_undisturbed());
        disturbed.map(|process| format!("{} is disturbed", process.name())).collect()
    }

    /// Whether servers are upgraded and rolled back. Stock ones are not.
    pub(crate) fn has_releases(&self) -> bool {
        self.stock.is_none()
    }

    pub(crate) fn release_of(&self, server: usize) -> Release {
        self.releases[server]
    }

    /// Stops a server, so that it is started again as another release.
    pub(crate) fn replace(&mut self, server: usize, release: Release) {
        self.releases[server] = release;
        self.count_replacement(release);
        if let Some(process) = self.processes.get_mut(&Host::Server(server)) {
            process.stop();
        }
    }

    pub(crate) fn aggregated_release(&self) -> Release {
        self.aggregated.0
    }

    /// Stops the aggregated server, so that it is started again as another release, which stores another version.
    pub(crate) fn replace_aggregated(&mut self, release: Release) {
        self.aggregated.0 = release;
        self.count_replacement(release);
        if let Some(process) = self.processes.get_mut(&Host::Aggregated) {
            process.stop();
        }
    }

    fn count_replacement(&self, release: Release) {
        self.history.count(|counts| match release {
            Release::Newer => counts.upgrades += 1,
            Release::Older => counts.rollbacks += 1,
        });
    }

    /// Stops a server, so that it is started again with reports or without.
    pub(crate) fn set_reporting(&mut self, server: usize, reporting: Reporting) {
        if self.reporting[server] == reporting {
            return;
        }
        self.reporting[server] = reporting;
        self.history.count(|counts| counts.silences += u64::from(reporting == Reporting::Off));
        if let Some(process) = self.processes.get_mut(&Host::Server(server)) {
            process.stop();
        }
    }

    /// Starts what is to be started of these hosts, and notes what has ended by itself.
    pub(crate) fn tick(&mut self, which: impl Fn(Host) -> bool) -> Result<(), ProcessError> {
        let hosts: Vec<Host> = self.hosts().filter(|host| which(*host)).collect();
        for host in hosts {
            let todo = self.processes.get_mut(&host).map_or(Todo::Nothing, ManagedProcess::tick);
            match todo {
                Todo::Nothing => {}
                Todo::HasEnded => {
                    self.history.note(format!("{host} has ended by itself"));
                    self.history.count(|counts| counts.unexpected_exits += 1);
                }
                Todo::Start => {
                    let mut command = self.command(host);
                    if let Host::Server(number) = host {
                        self.history.server_starts(&host.to_string(), self.reporting[number]);
                    }
                    if let Some(process) = self.processes.get_mut(&host) {
                        process.start(&mut command)?;
                        self.history.note(format!("{host} is started"));
                    }
                }
            }
        }
        Ok(())
    }

    fn command(&self, host: Host) -> Command {
        match (host, &self.stock) {
            (Host::Member(number), _) => self.etcd(number),
            (Host::Server(number), None) => self.server(number),
            (Host::Server(number), Some(stock)) => self.kube_apiserver(stock, number),
            (Host::Aggregated, _) => self.aggregated_server(),
            (Host::Controller(_) | Host::Hub | Host::Balancer, None) => self.restow_controller(host, None),
            (Host::Controller(_) | Host::Hub | Host::Balancer, Some(stock)) => self.stock_migrator(stock, host),
        }
    }

    fn etcd(&self, number: usize) -> Command {
        let peer = |number: usize| self.peer_url(number);
        let client = self.member_url(number);
        let peers: Vec<String> = (0..MEMBERS).map(|number| format!("m{number}={}", peer(number))).collect();
        let mut command = self.network.command_on(Host::Member(number), &self.programs.etcd);
        // etcd also reads settings from environment variables.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        let data = self.data_of(number);
        command.args(["--name", &format!("m{number}"), "--logger", "zap"]).arg("--data-dir").arg(data);
        command.args(["--initial-cluster-state", if self.joined[number] { "existing" } else { "new" }]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(number), "--initial-advertise-peer-urls", &peer(number)]);
        // Few entries between snapshots, so that a member that was away needs a snapshot.
        command.args(["--initial-cluster", &peers.join(","), "--snapshot-count", "500"]);
        // Its disk is small.
        command.args(["--max-wals", "2", "--max-snapshots", "2"]);
        command
    }

    fn server(&self, number: usize) -> Command {
        let host = Host::Server(number);
        let urls: Vec<String> = (0..MEMBERS).map(|number| self.member_url(number)).collect();
        let mut command = self.network.command_on(host, &self.programs.restow);
        command.args(["serve", "--listen", &self.address(host), "--etcd-endpoints", &urls.join(",")]);
        command.args(["--release", self.releases[number].name(), "--identity", &host.to_string()]);
        command.args(["--identity-lease-duration-seconds", "5", "--identity-lease-renew-seconds", "1"]);
        match (self.reporting[number], self.is_voting) {
            (Reporting::On, true) => drop(command.args(["--storage-versions", "vote"])),
            (Reporting::On, false) => {}
            (Reporting::Off, _) => drop(command.args(["--feature-gates", "StorageVersionAPI=false"])),
        }
        for (flag, file) in [
            ("--tls-cert-file", "server.crt"),
            ("--tls-private-key-file", "server.key"),
            ("--client-ca-file", "ca.crt"),
        ] {
            command.arg(flag).arg(self.pki().join(file));
        }
        self.set_clock(host, &mut command);
        command
    }

    fn restow_controller(&self, host: Host, patience: Option<Patience>) -> Command {
        let mut command = self.network.command_on(host, &self.programs.restow);
        command.args(["controller", "--identity", &host.to_string(), "--lease-duration", "5"]);
        command
            .args(["--namespace", "kube-system", "--poll-interval", "15"])
            .arg("--kubeconfig")
            .arg(self.kubeconfig());
        if let Some(patience) = patience {
            patience.set(&mut command);
        }
        self.set_clock(host, &mut command);
        command
    }

    fn aggregated_server(&self) -> Command {
        let host = Host::Aggregated;
        let (release, history) = &self.aggregated;
        let mut command = self.network.command_on(host, &self.programs.restow);
        command.args(["torture-server", "--listen", &self.address(host), "--identity", &host.to_string()]);
        command.args(["--stored", if *release == Release::Newer { "v2" } else { "v1" }]);
        command.arg("--store").arg(self.folder.join("aggregated-store")).arg("--pki").arg(self.pki());
        command.arg("--main").arg(self.aggregated_kubeconfig()).arg("--record").arg(self.record());
        command.args(["--first", &history.next().to_string()]);
        self.set_clock(host, &mut command);
        command
    }

    fn set_clock(&self, host: Host, command: &mut Command) {
        if let Some(clock) = self.clocks.get(&host) {
            clock.set(command);
        }
    }

    /// The logs of all processes.
    pub(crate) fn logs(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.processes.values().map(|process| (process.name(), process.log().as_path()))
    }
}

/// Whether a host can have a wrong clock.
fn has_clock(host: Host, stock: Option<&StockOptions>) -> bool {
    match host {
        Host::Member(_) | Host::Hub | Host::Balancer => false,
        Host::Server(_) | Host::Aggregated => stock.is_none(),
        Host::Controller(_) => stock.is_none_or(|stock| stock.migrator == Migrator::Restow),
    }
}
