//! `restow torture --processes`: real processes, a real etcd, a real network, and everything that can go wrong with them.
//!
//! The command runs itself again in a sandbox of namespaces, and prints what the run found. What is done in the run is in
//! `restow-torture`.

mod stock;

use crate::output::Output;
use crate::serving;
use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use restow_torture::processes::{
    self, AggregatedServer, Listener, Part, ProcessOptions, ProcessReport, Progress, Stores, sandbox,
};
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use stock::StockArgs;

/// Tells the process in the sandbox where its folder is.
const FOLDER: &str = "RESTOW_TORTURE_FOLDER";
/// A rule was broken.
const BROKEN: u8 = 3;
/// Stopped by Ctrl-C.
const INTERRUPTED: u8 = 5;

/// Torture with real processes.
#[derive(Debug, Args)]
pub(super) struct ProcessArgs {
    /// Torture real processes: three members of etcd, API servers, two controllers, an aggregated API server and writers, each server on
    /// a network of its own.
    ///
    /// Processes are killed and suspended, links are cut (also in one direction), slow and lossy, disks are full, clocks jump, and API
    /// servers are upgraded from 1.30 to 1.31, rolled back, and run without reports while a CRD changes its storage version. Then the same
    /// with `restow up` on the embedded store. Every request is recorded, and the whole history of the stores is checked against the rules.
    ///
    /// Everything happens in namespaces of its own, which vanish at the end; nothing else on this machine is touched. Faults that
    /// this machine cannot make (no root, no `ip`, no `tc`, no `nft`) are named and left out.
    #[arg(long, conflicts_with_all = ["seeds", "first", "threads", "keep", "story"])]
    processes: bool,
    /// How many minutes faults happen; with --processes. Starting and settling take one or two more.
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = minutes, requires = "processes")]
    minutes: f64,
    /// The number of API servers on etcd; with --processes [default: 3; two with --kube-apiserver].
    #[arg(long, value_name = "N", requires = "processes", value_parser = clap::value_parser!(u8).range(1..=5))]
    servers: Option<u8>,
    /// The number of clients that write at the same time; with --processes.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "processes", value_parser = clap::value_parser!(u8).range(1..=100))]
    writers: u8,
    /// The store to torture; with --processes.
    #[arg(long, value_name = "STORE", default_value = "both", requires = "processes")]
    store: StoreArg,
    /// The folder for logs and histories, which is kept; with --processes [default: a temporary folder, which is kept only if a rule was broken].
    #[arg(long, value_name = "DIR", requires = "processes")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    stock: StockArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StoreArg {
    Both,
    Etcd,
    Embedded,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "is not a number".to_owned())?;
    match (0.1..=10_000.0).contains(&minutes) {
        true => Ok(minutes),
        false => Err("must be between 0.1 and 10000".to_owned()),
    }
}

impl ProcessArgs {
    /// Whether real processes are to be tortured.
    pub(super) fn is_wanted(&self) -> bool {
        self.processes
    }
}

/// Runs the aggregated API server of `restow torture --processes`.
#[derive(Debug, Args)]
pub(crate) struct TortureServerArgs {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    identity: String,
    #[arg(long)]
    stored: String,
    #[arg(long)]
    store: PathBuf,
    #[arg(long)]
    pki: PathBuf,
    #[arg(long)]
    main: PathBuf,
    #[arg(long)]
    record: PathBuf,
    #[arg(long)]
    first: u64,
}

/// Serves until a signal.
pub(crate) async fn run_server(args: TortureServerArgs) -> anyhow::Result<()> {
    let TortureServerArgs { listen, identity, stored, store, pki, main, record, first } = args;
    let server = AggregatedServer { listen, identity, stored, store, pki, main, record, first };
    Ok(server.serve(serving::stop_signal()).await?)
}

/// Runs it with this seed, or another one each time.
pub(super) async fn run(args: ProcessArgs, seed: Option<u64>, output: Output) -> anyhow::Result<ExitCode> {
    if sandbox::is_inside() {
        let folder = std::env::var_os(FOLDER).context("the sandbox has no folder")?;
        return torture(&args, seed, output, Path::new(&folder)).await;
    }
    let (folder, temporary) = match &args.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
            let is_empty = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
            anyhow::ensure!(is_empty, "{} is not empty; name another folder with --folder", folder.display());
            (folder.clone(), None)
        }
        None => {
            let folder = tempfile::Builder::new().prefix("restow-torture-").tempdir();
            let folder = folder.context("cannot create a temporary folder")?;
            (folder.path().to_owned(), Some(folder))
        }
    };
    let code = match sandbox::command() {
        Ok(command) => in_sandbox(command, &folder).await,
        Err(why) => {
            eprintln!("LEFT OUT: a sandbox of namespaces ({why})");
            torture(&args, seed, output, &folder).await
        }
    };
    let keeps = !matches!(&code, Ok(code) if *code == ExitCode::SUCCESS || *code == ExitCode::from(INTERRUPTED));
    if let (Some(temporary), true) = (temporary, keeps) {
        eprintln!("the logs and the history are in {}", temporary.keep().display());
    }
    code
}

/// Runs this program again in a sandbox, and returns its exit code.
async fn in_sandbox(mut command: std::process::Command, folder: &Path) -> anyhow::Result<ExitCode> {
    let mut child = command.env(FOLDER, folder).spawn().context("cannot run unshare")?;
    let id = Pid::from_child(&child);
    let mut ended = tokio::task::spawn_blocking(move || child.wait());
    let mut interrupted = false;
    let status = loop {
        tokio::select! {
            status = &mut ended => break status?.context("cannot wait for the sandbox")?,
            () = serving::stop_signal() => {
                // The first signal is passed on, and everything is cleaned up. The second one ends all of it at once.
                match std::mem::replace(&mut interrupted, true) {
                    false => terminate_children(id),
                    true => drop(kill_process(id, Signal::KILL)),
                }
            }
        }
    };
    Ok(match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) if !interrupted => ExitCode::from(code),
        _ => ExitCode::from(INTERRUPTED),
    })
}

/// Asks the processes that `unshare` has started to stop. It does not pass on signals itself.
fn terminate_children(parent: Pid) {
    let id = parent.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)) {
        // It may have ended already.
        let _ = kill_process(child, Signal::TERM);
    }
}

async fn torture(args: &ProcessArgs, seed: Option<u64>, output: Output, folder: &Path) -> anyhow::Result<ExitCode> {
    let random =
        || std::time::UNIX_EPOCH.elapsed().map_or(1, |elapsed| u64::from(elapsed.subsec_nanos()) + elapsed.as_secs());
    let stock = args.stock.options()?;
    let options = ProcessOptions {
        seed: seed.unwrap_or_else(random),
        duration: Duration::from_secs_f64(args.minutes * 60.0),
        servers: args.servers.unwrap_or(if stock.is_some() { 2 } else { 3 }).into(),
        writers: args.writers.into(),
        stores: match args.store {
            StoreArg::Both => Stores::Both,
            StoreArg::Etcd => Stores::Etcd,
            StoreArg::Embedded => Stores::Embedded,
        },
        stock,
        restow: std::env::current_exe().context("cannot find the path of this program")?,
        etcd: std::env::var_os("RESTOW_ETCD").map_or_else(|| PathBuf::from("etcd"), PathBuf::from),
        folder: folder.canonicalize().with_context(|| format!("cannot use {}", folder.display()))?,
    };
    eprintln!("seed {}{}", options.seed, if options.is_voting() { ", with which the API servers vote" } else { "" });
    let bar = Bar::new(options.duration);
    let report = tokio::select! {
        report = processes::run(&options, &bar) => report,
        () = serving::stop_signal() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    bar.0.finish_and_clear();
    let report = report?;
    output.print(&report, || text(&report))?;
    Ok(match report.violations().next() {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(BROKEN),
    })
}

/// A progress bar on standard error.
struct Bar(ProgressBar);

impl Bar {
    fn new(duration: Duration) -> Self {
        let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {msg}");
        let bar = ProgressBar::new(duration.as_secs());
        Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }
}

impl Listener for Bar {
    fn progress(&self, progress: &Progress) {
        let counts = &progress.counts;
        self.0.set_position(progress.elapsed.as_secs());
        self.0.set_message(format!(
            "{}: {} writes, {} reads, {} revisions, {} kills, {} pauses, {} partitions",
            progress.phase,
            counts.operations,
            counts.reads,
            counts.revisions,
            counts.kills,
            counts.pauses,
            counts.partitions
        ));
    }

    fn left_out(&self, left_out: &[String]) {
        self.0.suspend(|| left_out.iter().for_each(|what| eprintln!("LEFT OUT: {what}")));
    }
}

/// The report for people.
fn text(report: &ProcessReport) -> String {
    let mut text = String::new();
    for part in &report.parts {
        text.push_str(&part_text(part));
    }
    text.push_str(&format!("seed {}, {:.0} s\n", report.seed, report.seconds));
    if report.violations().next().is_some() {
        text.push_str(&format!("A RULE WAS BROKEN; the logs and the history are in {}\n", report.folder.display()));
    }
    text
}

fn part_text(part: &Part) -> String {
    let counts = &part.counts;
    let settled =
        part.settled_after.map_or("it did not settle".to_owned(), |after| format!("settled after {after:.0} s"));
    let mut text = format!(
        "{}: {} writes ({} acknowledged, {} refused, {} unknown), {} reads and {} watch events checked, {} revisions checked\n  {} kills, {} pauses, {} \
         partitions, {} slow and {} lossy links, {} lost members, {} full disks, {} clock jumps, {} upgrades, {} roll-backs, {} times without reports, {} flips, {} compactions, {} migrations, {} \
         unexpected exits; {settled}\n",
        part.store,
        counts.operations,
        counts.acknowledged,
        counts.refused,
        counts.unknown,
        counts.reads,
        counts.watched,
        counts.revisions,
        counts.kills,
        counts.pauses,
        counts.partitions,
        counts.slow_links,
        counts.lossy_links,
        counts.lost_members,
        counts.full_disks,
        counts.clock_jumps,
        counts.upgrades,
        counts.rollbacks,
        counts.silences,
        counts.flips,
        counts.compactions,
        counts.migrations,
        counts.unexpected_exits,
    );
    if counts.late_writes > 0 {
        let words = "old versions were written by a stock API server after its own time limit for the request; \
            `restow verify` finds these";
        text.push_str(&format!("  {} {words}\n", counts.late_writes));
    }
    for violation in &part.violations {
        text.push_str(&format!("  BROKEN: {violation}\n"));
    }
    text
}
