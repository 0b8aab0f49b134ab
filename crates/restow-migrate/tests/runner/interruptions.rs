//! Runs that are paused, stopped, or end before their time, and where the next one continues.

use crate::server::{Server, instance, migrate, status, widgets};
use restow_migrate::runner::{Progress, RunControl, RunOptions, RunOutcome, RunReport, run};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

type Shared = Arc<Mutex<Server>>;

/// A run that goes on while its test does something.
struct Running {
    control: watch::Sender<RunControl>,
    progress: watch::Receiver<Progress>,
    report: JoinHandle<RunReport>,
}

fn start(server: &Shared, options: RunOptions, command: RunControl) -> Running {
    let (control, orders) = watch::channel(command);
    let (sender, progress) = watch::channel(Progress::default());
    let servers = [instance(server)];
    let report = tokio::spawn(async move { run(&servers, &widgets(), options, orders, &sender).await.unwrap() });
    Running { control, progress, report }
}

fn small_pages() -> RunOptions {
    RunOptions { page_size: 10, ..RunOptions::default() }
}

/// The token with which a run that has not ended can continue.
fn token_of(ending: RunOutcome) -> Option<String> {
    match ending {
        RunOutcome::Stopped { continue_token }
        | RunOutcome::Unresponsive { continue_token, .. }
        | RunOutcome::NotServed { continue_token, .. }
        | RunOutcome::WebhookDown { continue_token, .. }
        | RunOutcome::Overloaded { continue_token, .. } => continue_token,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_first_pass_can_be_continued() {
    let webhook = "conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://w\": dial tcp: refused";
    let answers = [
        status(429, "TooManyRequests", "slow down"),
        status(404, "NotFound", "the server could not find the requested resource"),
        status(500, "InternalError", webhook),
        // An answer that nobody understands counts as none.
        (200, json!("no object")),
    ];
    for answer in answers {
        for (writes, pass) in [(300, 1), (700, 2)] {
            let breaks_after = Some((writes, answer.clone()));
            let server = Arc::new(Mutex::new(Server { breaks_after, ..Server::with_objects(400) }));
            let timeouts = (Duration::ZERO, Duration::ZERO);
            let options = RunOptions { webhook_timeout: timeouts.0, overload_timeout: timeouts.1, ..small_pages() };
            let report = migrate(&[instance(&server)], options.clone()).await.unwrap();
            assert_eq!((report.passes.len(), report.progress.pass), (pass, pass as u64), "{answer:?}");
            let token = token_of(report.ending);
            assert_eq!(token.is_some(), pass == 1, "{answer:?}: a check starts at the beginning");
            let written = |server: &Shared| server.lock().unwrap().writes;
            let before = written(&server);
            server.lock().unwrap().breaks_after = None;
            let options = RunOptions { continue_token: token, ..options };
            let report = migrate(&[instance(&server)], options).await.unwrap();
            assert_eq!(report.ending, RunOutcome::Proven, "{answer:?}");
            assert_eq!(server.lock().unwrap().old_objects(), 0, "{answer:?}: none was left out");
            assert_eq!(report.passes[0].began_in_the_middle, pass == 1);
            if pass == 1 {
                assert!(written(&server) - before < 400 + 300, "{answer:?}: it did not start over");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_run_sends_nothing_and_says_so_until_it_goes_on() {
    let server = Arc::new(Mutex::new(Server::with_objects(40)));
    let mut running = start(&server, small_pages(), RunControl::Pause);
    let said = running.progress.wait_for(|progress| progress.waiting.is_some()).await.unwrap().waiting.clone();
    assert!(said.unwrap().contains("paused"));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(server.lock().unwrap().writes, 0);
    running.control.send_replace(RunControl::Run);
    let report = running.report.await.unwrap();
    assert_eq!((report.ending, report.progress.waiting), (RunOutcome::Proven, None));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_paused_later_sends_nothing_more_and_can_be_stopped() {
    let server = Arc::new(Mutex::new(Server::with_objects(400)));
    let mut running = start(&server, small_pages(), RunControl::Run);
    running.progress.wait_for(|progress| progress.done_in_pass >= 150).await.unwrap();
    running.control.send_replace(RunControl::Pause);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let written = server.lock().unwrap().writes;
    assert!(written < 400, "{written}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(server.lock().unwrap().writes, written);
    running.control.send_replace(RunControl::Stop);
    let report = running.report.await.unwrap();
    assert_eq!(report.progress.done_in_pass, u64::from(written), "what was in flight was counted");
    let continue_token = token_of(report.ending);
    assert!(continue_token.is_some());
    let report = migrate(&[instance(&server)], RunOptions { continue_token, ..small_pages() }).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven);
    assert_eq!(server.lock().unwrap().old_objects(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_between_its_passes_until_older_writes_have_ended_and_can_be_stopped() {
    for is_stopped in [false, true] {
        let server = Arc::new(Mutex::new(Server::with_objects(20)));
        let began = Instant::now();
        let settles_at = Some(began + Duration::from_secs(100));
        let mut running = start(&server, RunOptions { settles_at, ..small_pages() }, RunControl::Run);
        let said = running.progress.wait_for(|progress| progress.waiting.is_some()).await.unwrap().waiting.clone();
        assert!(said.unwrap().contains("(100 s)"));
        assert_eq!(server.lock().unwrap().writes, 20, "the first pass does not wait");
        tokio::time::sleep(Duration::from_secs(50)).await;
        if is_stopped {
            running.control.send_replace(RunControl::Stop);
        }
        let report = running.report.await.unwrap();
        let (ending, seconds) = match is_stopped {
            true => (RunOutcome::Stopped { continue_token: None }, 50),
            false => (RunOutcome::Proven, 100),
        };
        assert_eq!((report.ending, began.elapsed().as_secs()), (ending, seconds));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_sender_is_gone_keeps_its_last_order() {
    let server = Arc::new(Mutex::new(Server::with_objects(20)));
    let settles_at = Some(Instant::now() + Duration::from_secs(100));
    let running = start(&server, RunOptions { settles_at, ..small_pages() }, RunControl::Run);
    drop(running.control);
    assert_eq!(running.report.await.unwrap().ending, RunOutcome::Proven);
}

/// The outcome of a run whose lists get this answer, and how long it took.
async fn listing(answer: (u16, Value)) -> (String, Duration) {
    let server = Arc::new(Mutex::new(Server { about_lists: Some(answer), ..Server::with_objects(5) }));
    let began = Instant::now();
    let report = migrate(&[instance(&server)], small_pages()).await;
    let ending = report.map_or_else(|error| error.to_string(), |report| format!("{:?}", report.ending));
    (ending, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_tried_again_and_the_error_says_what_to_do() {
    let (ending, took) = listing(status(403, "Forbidden", "no")).await;
    assert!(ending.contains("cannot list the objects") && ending.contains("restow install"), "{ending}");
    assert_eq!(took, Duration::ZERO, "asking again does not help");
    let (ending, took) = listing(status(503, "ServiceUnavailable", "starting")).await;
    assert!(ending.contains("cannot list the objects") && !ending.contains("restow install"), "{ending}");
    assert!(took > Duration::from_millis(500), "{took:?}");
    let (ending, _) = listing(status(410, "Expired", "too old")).await;
    assert!(ending.contains("cannot list the objects"), "the first page has no token that could expire: {ending}");
}

#[tokio::test(start_paused = true)]
async fn a_first_page_that_cannot_be_read_once_is_read_again() {
    let server = Arc::new(Mutex::new(Server::with_objects(20)));
    server.lock().unwrap().about_lists = Some(status(503, "ServiceUnavailable", "starting"));
    let running = start(&server, small_pages(), RunControl::Run);
    tokio::time::sleep(Duration::from_millis(1)).await;
    server.lock().unwrap().about_lists = None;
    assert_eq!(running.report.await.unwrap().ending, RunOutcome::Proven);
}
