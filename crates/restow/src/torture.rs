//! `restow torture`: simulated worlds that try to break the rules. Each seed is another one. With `--processes`, real processes.

mod processes;

pub(crate) use processes::{TortureServerArgs, run_server};

use crate::output::Output;
use clap::Args;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use processes::ProcessArgs;
use restow_torture::{
    Campaign, CampaignReport, Plan, Statistics, StoryLine, Telling, Violation, run as run_plan, shrink,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The exit code if a rule was broken.
const VIOLATED: u8 = 3;
/// How much of a story is printed if not all of it is wanted.
const STORY_LINES: usize = 60;

/// Try to break the rules of storage versions, in simulated worlds.
///
/// Each seed is a world of its own: two or three API servers, one or two controllers and a few users on one store, all in one
/// thread and in simulated time. It is the code that runs in production; only time, random numbers, the network and the
/// store are simulated. The seed decides what goes wrong: crashes before and after a write, servers that are suspended
/// longer than their lease, lost answers, late writes, broken and stalled watches, clocks that jump, upgrades and
/// downgrades, webhooks that hang, refuse and mutate, CRDs whose storage version changes, users who delete leases.
///
/// After every revision of the store the rules are checked: report before write, agreement is true, no polluted migration,
/// stored versions are true, nothing changes that nobody asked for, what was acknowledged is there, quotas and ports are
/// respected. At the end all faults stop, and everything must settle.
///
/// A seed that breaks a rule is shrunk to the fewest events, and is repeated exactly by the command that is printed.
///
/// With --processes nothing is simulated: processes, network and etcd are real.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 nothing was violated, 1 failure, 2 wrong arguments, 3 a rule was broken, 5 stopped by Ctrl-C.\n\n\
    Examples:\n  restow torture --seeds 1000              a minute or less\n  \
    restow torture --seeds 100000            overnight\n  \
    restow torture --seed 42 --story         what happens in one world\n  \
    restow torture --processes               ten minutes with real processes, on etcd and on the embedded store\n  \
    restow torture --processes --seed 7      the faults of seed 7; their timing is never quite the same"
)]
pub(crate) struct TortureArgs {
    /// How many seeds to run, beginning with --first.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this one seed only, and tell what happened if it breaks a rule.
    #[arg(long, conflicts_with_all = ["seeds", "first", "threads"])]
    seed: Option<u64>,
    /// Only these events of the plan, by their numbers, or `none`; with --seed.
    #[arg(long, value_delimiter = ',', requires = "seed", value_parser = event_number)]
    keep: Option<Vec<usize>>,
    /// Print everything that happened; with --seed.
    #[arg(long, requires = "seed")]
    story: bool,
    /// How many seeds run at the same time [default: the number of processors].
    #[arg(long)]
    threads: Option<usize>,
    /// How many runs may be spent on finding the fewest events that break the same rule.
    #[arg(long, default_value_t = 200, conflicts_with = "seed")]
    shrink: usize,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    processes: ProcessArgs,
}

/// What one seed did.
struct SeedResult {
    plan: Plan,
    violation: Option<Violation>,
    story: Vec<StoryLine>,
    statistics: Statistics,
}

pub(crate) async fn run(args: TortureArgs) -> anyhow::Result<ExitCode> {
    if args.processes.is_wanted() {
        return processes::run(args.processes, args.seed, args.output).await;
    }
    // The runtime of this thread cannot run another one.
    let done = std::thread::scope(|scope| scope.spawn(|| run_seeds(&args)).join());
    done.map_err(|_| anyhow::anyhow!("the simulation panicked; please report the seed"))?
}

fn run_seeds(args: &TortureArgs) -> anyhow::Result<ExitCode> {
    if !restow_torture::repeats_exactly() {
        eprintln!("warning: built without `--cfg tokio_unstable`: a seed does not repeat exactly");
    }
    match args.seed {
        Some(seed) => run_one(seed, args),
        None => run_many(args),
    }
}

fn run_one(seed: u64, args: &TortureArgs) -> anyhow::Result<ExitCode> {
    let whole = Plan::new(seed);
    let plan = args.keep.as_ref().map_or(whole.clone(), |numbers| whole.keeping(numbers));
    let report = run_plan(&plan, Telling::Story);
    let result = SeedResult { plan, violation: report.violation, story: report.story, statistics: report.statistics };
    let lines = if args.story { usize::MAX } else { STORY_LINES };
    args.output.print(&result.to_json(), || result.text(lines))?;
    Ok(exit_code(result.violation.is_some()))
}

fn run_many(args: &TortureArgs) -> anyhow::Result<ExitCode> {
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let bar = match args.output.is_for_people() {
        true => ProgressBar::new(args.seeds),
        false => ProgressBar::hidden(),
    };
    bar.set_style(ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} seeds, {per_sec}, {eta} left")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let began = Instant::now();
    let campaign = Campaign { first: args.first, seeds: args.seeds, threads };
    let report = campaign.run(|_| bar.inc(1));
    bar.finish_and_clear();
    let Some((seed, violation)) = &report.violation else {
        args.output.print(&summary_json(&report, began.elapsed()), || summary(&report, began.elapsed()))?;
        return Ok(ExitCode::SUCCESS);
    };
    eprintln!("seed {seed} broke a rule: {violation}\nlooking for the fewest events that break it ...");
    let plan = shrink(&Plan::new(*seed), args.shrink);
    let told = run_plan(&plan, Telling::Story);
    let result = SeedResult { plan, violation: told.violation, story: told.story, statistics: told.statistics };
    args.output.print(&result.to_json(), || result.text(STORY_LINES))?;
    Ok(exit_code(true))
}

/// The number of an event; `none` is the number of no event.
fn event_number(text: &str) -> Result<usize, String> {
    match text {
        "none" => Ok(usize::MAX),
        text => text.parse().map_err(|_| "it must be the number of an event, or none".to_owned()),
    }
}

fn exit_code(violated: bool) -> ExitCode {
    if violated { ExitCode::from(VIOLATED) } else { ExitCode::SUCCESS }
}

impl SeedResult {
    /// The command that repeats it.
    fn command(&self) -> String {
        let numbers: Vec<String> = self.plan.numbers().iter().map(usize::to_string).collect();
        let whole = Plan::new(self.plan.seed).events.len() == numbers.len();
        let keep = match numbers.as_slice() {
            _ if whole => String::new(),
            [] => " --keep none".to_owned(),
            numbers => format!(" --keep {}", numbers.join(",")),
        };
        format!("restow torture --seed {}{keep}", self.plan.seed)
    }

    fn text(&self, lines: usize) -> String {
        let mut text = format!("Seed {}: {:?}\n\nEvents:\n", self.plan.seed, self.plan.shape);
        for event in &self.plan.events {
            let _ = writeln!(text, "  {event}");
        }
        let wanted = if self.violation.is_some() || lines == usize::MAX { lines } else { 0 };
        let told = &self.story[self.story.len().saturating_sub(wanted)..];
        if !told.is_empty() {
            let _ =
                writeln!(text, "\nWhat happened{}:", if told.len() < self.story.len() { " in the end" } else { "" });
        }
        for line in told {
            let _ = writeln!(text, "  {:9.3} {}", line.at.as_secs_f64(), line.words);
        }
        let _ = match &self.violation {
            Some(violation) => writeln!(text, "\nBroken: {violation}\nRepeat: {}", self.command()),
            None => writeln!(text, "\nNothing was violated. {}", counts(&self.statistics)),
        };
        text
    }

    fn to_json(&self) -> Value {
        let violation = self.violation.as_ref().map(|violation| {
            json!({
                "rule": violation.rule.to_string(), "what": violation.what,
                "seconds": violation.at.as_secs_f64(), "revision": violation.revision,
            })
        });
        let events: Vec<String> = self.plan.events.iter().map(ToString::to_string).collect();
        json!({
            "seed": self.plan.seed, "violation": violation, "repeat": self.command(), "events": events,
            "statistics": statistics_json(&self.statistics),
        })
    }
}

fn summary(report: &CampaignReport, took: Duration) -> String {
    let rate = report.seeds as f64 / took.as_secs_f64();
    format!(
        "{} seeds in {:.0} s ({rate:.1} a second): nothing was violated.\n{}\n",
        HumanCount(report.seeds),
        took.as_secs_f64(),
        counts(&report.statistics)
    )
}

fn counts(statistics: &Statistics) -> String {
    format!(
        "{} revisions, {} writes and {} reads of users were checked; {} events, {} crashes, {} suspensions, in {:.1} h of simulated time.",
        HumanCount(statistics.revisions),
        HumanCount(statistics.operations),
        HumanCount(statistics.reads),
        HumanCount(statistics.events),
        HumanCount(statistics.crashes),
        HumanCount(statistics.suspensions),
        statistics.simulated.as_secs_f64() / 3600.0
    )
}

fn summary_json(report: &CampaignReport, took: Duration) -> Value {
    json!({
        "seeds": report.seeds, "violation": null, "seconds": took.as_secs_f64(),
        "statistics": statistics_json(&report.statistics),
    })
}

fn statistics_json(statistics: &Statistics) -> Value {
    json!({
        "revisions": statistics.revisions, "operations": statistics.operations, "reads": statistics.reads,
        "events": statistics.events, "crashes": statistics.crashes, "suspensions": statistics.suspensions,
        "simulatedSeconds": statistics.simulated.as_secs_f64(),
    })
}
