//! How a migration ends or waits, and what its status says then.

use super::*;
use crate::controller::fake_api::FakeApi;
use crate::controller::migration_api;
use crate::runner::{RunOutcome, RunReport};
use restow_api::ResourceVersion;
use restow_api::migration::StorageVersionMigrationSpec;
use restow_rules::migrate::passes::PassReport;

fn report(outcome: MigrationOutcome, run: Option<RunReport>) -> MigrationReport {
    MigrationReport { target: None, outcome, run, trimmed_to: None, crd_generation: 3 }
}

fn failure(number: usize) -> MigrationFailure {
    MigrationFailure {
        namespace: "default".to_owned(),
        name: format!("w{number}"),
        uid: format!("uid-{number}"),
        code: 403,
        reason: "Forbidden".to_owned(),
        message: "no".to_owned(),
    }
}

/// A run in which so many objects failed.
fn failed_run(count: usize) -> RunReport {
    let mut progress = Progress::default();
    progress.counts.failed = count as u64;
    RunReport {
        ending: RunOutcome::SomeFailed,
        passes: vec![PassReport {
            failed: count as u64,
            on_each: true,
            is_after_settling: true,
            ..PassReport::default()
        }],
        progress,
        failures: (0..count).map(failure).collect(),
        settled_at: "70".to_owned(),
    }
}

fn migration(annotations: Value) -> MigrationObject {
    let mut object = MigrationObject::new("m", &migration_api(), StorageVersionMigrationSpec::default());
    object.metadata.uid = Some("u".to_owned());
    object.metadata.annotations = serde_json::from_value(annotations).unwrap();
    object
}

fn worker(api: &FakeApi, migration: MigrationObject) -> (watch::Sender<RunControl>, MigrationWorker) {
    let (command, control) = watch::channel(RunControl::Run);
    let resource = "widgets.example.com".parse().unwrap();
    (command, MigrationWorker::new(api.context(), migration, resource, control, Arc::new(Semaphore::new(1))))
}

#[test]
fn a_migration_waits_for_servers_and_agreement_and_ends_otherwise() {
    use MigrationOutcome::*;
    let (words, continue_token) = ("why".to_owned(), Some("token".to_owned()));
    let resumed = Some(("why", Some(Some("token"))));
    let over = Some(("starts over: why", Some(None)));
    for (outcome, one_version, any_version) in [
        (NoAgreement(words.clone()), Some(("why", None)), Some(("why", None))),
        (ServerUnresponsive { words: words.clone(), continue_token: continue_token.clone() }, resumed, resumed),
        (NotReady { words: words.clone(), continue_token: continue_token.clone() }, resumed, resumed),
        (WebhookDown { words: words.clone(), continue_token: continue_token.clone() }, resumed, resumed),
        (Overloaded { words: words.clone(), continue_token }, resumed, resumed),
        (AgreementChanged(words.clone()), None, over),
        (CrdChanged(words.clone()), None, over),
        (Succeeded, None, None),
        (SomeFailed, None, None),
        (NotManaged(words), None, None),
    ] {
        for (policy, expected) in
            [(TargetPolicy::OneVersion, one_version), (TargetPolicy::AnyAgreedVersion, any_version)]
        {
            let found = wait_reason(&outcome, policy);
            let found = found.as_ref().map(|wait| match &wait.resume {
                ResumePoint::AsBefore => (wait.words.as_str(), None),
                ResumePoint::At(token) => (wait.words.as_str(), Some(token.as_deref())),
            });
            assert_eq!(found, expected, "{outcome:?} {policy:?}");
        }
    }
}

#[test]
fn the_condition_of_a_migration_says_how_it_ended() {
    let described = |outcome, run| describe(&report(outcome, run));
    let failed = |words: &str| Some((MigrationCondition::FAILED, words.to_owned()));
    let succeeded = Some((MigrationCondition::SUCCEEDED, "every object is in the target version".to_owned()));
    assert_eq!(described(MigrationOutcome::Succeeded, None), succeeded);
    let quoted = "5 objects could not be rewritten: default/w0: 403 no; default/w1: 403 no; default/w2: 403 no";
    assert_eq!(described(MigrationOutcome::SomeFailed, Some(failed_run(5))), failed(quoted));
    for outcome in [
        MigrationOutcome::NoAgreement("why".to_owned()),
        MigrationOutcome::AgreementChanged("why".to_owned()),
        MigrationOutcome::CrdChanged("why".to_owned()),
        MigrationOutcome::Unproven("why".to_owned()),
        MigrationOutcome::NotManaged("why".to_owned()),
        MigrationOutcome::ServerUnresponsive { words: "why".to_owned(), continue_token: None },
        MigrationOutcome::NotReady { words: "why".to_owned(), continue_token: None },
        MigrationOutcome::WebhookDown { words: "why".to_owned(), continue_token: None },
        MigrationOutcome::Overloaded { words: "why".to_owned(), continue_token: None },
    ] {
        assert_eq!(described(outcome.clone(), None), failed("why"), "{outcome:?}");
    }
    let gone = described(MigrationOutcome::ResourceGone, None);
    assert_eq!(gone, failed("the resource is not served any more"));
    let never = described(MigrationOutcome::NeverSettles, None);
    assert_eq!(never, failed("objects keep changing their stored version"));
    for outcome in [MigrationOutcome::Stopped(None), MigrationOutcome::DryRunDone] {
        assert_eq!(described(outcome, None), None);
    }
}

#[test]
fn what_was_verified_is_recorded_if_some_objects_failed_and_all_of_them_are_listed() {
    let of = |outcome, count| settled(&report(outcome, Some(failed_run(count))));
    let expected = SettledObjects { resource_version: "70".to_owned(), definition_generation: 3 };
    assert_eq!(of(MigrationOutcome::SomeFailed, 2), Some(expected.clone()));
    assert_eq!(of(MigrationOutcome::SomeFailed, failures::IN_STATUS), Some(expected));
    assert_eq!(of(MigrationOutcome::SomeFailed, failures::IN_STATUS + 1), None);
    assert_eq!(of(MigrationOutcome::NeverSettles, 2), None);
    assert_eq!(settled(&report(MigrationOutcome::SomeFailed, None)), None);
}

#[test]
fn the_last_status_has_the_result_and_removes_what_an_earlier_attempt_left() {
    let mut progress = Progress::default();
    progress.counts.seen = 7;
    let target = MigrationTarget {
        hash: restow_api::StorageVersionHash::new("hash"),
        revision: Some(ResourceVersion::new("12")),
    };
    let done = MigrationReport { target: Some(target), ..report(MigrationOutcome::Succeeded, None) };
    let status = ended(&Ok(done), (MigrationCondition::SUCCEEDED, "done"), &progress, &[]);
    let conditions: Vec<[&str; 3]> = status["conditions"].as_array().unwrap().iter().map(words).collect();
    assert_eq!(conditions, [["Running", "False", ""], ["Succeeded", "True", "done"]]);
    assert_eq!((&status["reason"], &status["counts"]["seen"]), (&json!("done"), &json!(7)));
    assert_eq!((&status["targetStorageVersionHash"], &status["agreementRevision"]), (&json!("hash"), &json!("12")));
    for field in ["failures", "settled"] {
        assert_eq!(status.get(field), Some(&Value::Null), "{field}");
    }
    let some_failed = Ok(report(MigrationOutcome::SomeFailed, Some(failed_run(1))));
    let status = ended(&some_failed, (MigrationCondition::FAILED, "1"), &progress, &[failure(0)]);
    assert_eq!(status["failures"][0]["name"], "w0");
    assert_eq!(status["settled"]["resourceVersion"], "70");
    assert_eq!(status.get("agreementRevision"), None);
}

fn words(condition: &Value) -> [&str; 3] {
    ["type", "status", "message"].map(|field| condition[field].as_str().unwrap_or_default())
}

#[test]
fn a_migration_that_waits_is_not_running() {
    let counts = MigrationCounts { seen: 5, ..MigrationCounts::default() };
    let status = waiting_status(MigrationCondition::PAUSED, "later", counts);
    let condition = &status["conditions"][0];
    assert_eq!(words(condition), ["Running", "False", "later"]);
    assert_eq!((&condition["reason"], &status["reason"]), (&json!("Paused"), &json!("later")));
    assert_eq!(status["counts"]["seen"], 5);
    assert!(condition["lastUpdateTime"].is_string());
    let status = running();
    assert_eq!(words(&status["conditions"][0]), ["Running", "True", ""]);
    assert_eq!(status["reason"], "", "an earlier reason is removed");
}

#[tokio::test(start_paused = true)]
async fn the_rate_is_that_of_the_pass_since_the_last_save() {
    let done = |pass, done_in_pass| {
        let mut progress = Progress::default();
        (progress.pass, progress.done_in_pass) = (pass, done_in_pass);
        progress
    };
    let before = (done(1, 100), Instant::now());
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!(pace(Some(&before), &done(1, 500)), Some(100.0));
    assert_eq!(pace(Some(&before), &done(1, 90)), Some(0.0), "fewer after an interruption");
    assert_eq!(pace(Some(&before), &done(2, 500)), None, "another pass");
    assert_eq!(pace(None, &done(1, 500)), None);
}

#[tokio::test]
async fn a_migration_is_for_the_version_that_its_annotations_name() {
    let api = FakeApi::new(|_| (200, json!({})));
    let policy = |annotations| worker(&api, migration(annotations)).1.target_policy();
    assert_eq!(policy(json!({})), TargetPolicy::AnyAgreedVersion);
    let hash = restow_api::migration::StorageVersionMigration::TARGET_HASH_ANNOTATION;
    assert_eq!(policy(json!({hash: "hash"})), TargetPolicy::OneVersion);
}

#[tokio::test]
async fn a_worker_continues_at_the_token_of_its_migration() {
    let api = FakeApi::new(|_| (200, json!({})));
    let mut object = migration(json!({}));
    assert_eq!(worker(&api, object.clone()).1.continue_token, None);
    object.spec.continue_token = "there".to_owned();
    assert_eq!(worker(&api, object).1.continue_token.as_deref(), Some("there"));
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_again_until_the_server_has_answered() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let api = FakeApi::new(move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => (503, json!("starting")),
        1 => (429, json!("later")),
        _ => (409, json!("another object has this name")),
    });
    let (_command, mut worker) = worker(&api, migration(json!({})));
    worker.write(&json!({"reason": "x"})).await;
    let path = "/apis/migration.k8s.io/v1alpha1/storageversionmigrations/m/status?";
    assert_eq!(api.calls(), [format!("PATCH {path}"), format!("PATCH {path}"), format!("PATCH {path}")]);
    let expected = json!({"metadata": {"uid": "u"}, "status": {"reason": "x"}});
    assert_eq!(api.requests()[0].body, expected, "the uid: another migration may have the name by now");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_stopped_does_not_repeat_a_request() {
    let api = FakeApi::new(|_| (503, json!("stopping")));
    let (command, mut worker) = worker(&api, migration(json!({})));
    command.send_replace(RunControl::Stop);
    worker.write(&json!({})).await;
    assert_eq!(api.calls().len(), 1);
}

#[tokio::test]
async fn a_paused_migration_waits_for_the_annotation_and_another_one_for_a_window() {
    let api = FakeApi::new(|_| (200, json!({})));
    let (command, mut worker) = worker(&api, migration(json!({})));
    assert!(worker.why_not_now().is_none());
    command.send_replace(RunControl::Pause);
    let (reason, _, wait) = worker.why_not_now().unwrap();
    assert_eq!((reason, wait), (MigrationCondition::PAUSED, None));
    // A window that is twelve hours away.
    let hour = (restow_host::now().as_second() / 3600 + 12) % 24;
    worker.context.config.windows = vec![format!("{hour:02}:00-{hour:02}:30").parse().unwrap()];
    command.send_replace(RunControl::Run);
    let (reason, _, wait) = worker.why_not_now().unwrap();
    assert_eq!(reason, MigrationCondition::WAITING);
    assert!(wait.unwrap() > Duration::from_secs(10 * 3600), "{wait:?}");
    command.send_replace(RunControl::Stop);
    assert!(worker.why_not_now().is_none(), "a stopped one ends instead");
}

/// Saves this progress every two seconds; returns the paths and bodies of the writes. The server answers so.
async fn saved(code: u16, progress: Vec<Progress>) -> Vec<(String, Value)> {
    let api = FakeApi::new(move |_| (code, json!({"metadata": {"name": "m"}, "spec": {}})));
    let (sender, seen) = watch::channel(Progress::default());
    let (end, ended) = oneshot::channel();
    let resource = "widgets.example.com".parse().unwrap();
    let saver = tokio::spawn(save(api.context(), "m".to_owned(), resource, seen, ended));
    for progress in progress {
        sender.send_replace(progress);
        tokio::time::sleep(SAVE_INTERVAL * 2).await;
    }
    end.send(()).unwrap();
    sender.send_replace(Progress::default());
    tokio::time::timeout(SAVE_INTERVAL, saver).await.expect("it ends at once").unwrap();
    let name = |path: String| path.trim_end_matches('?').rsplit('/').next().unwrap().to_owned();
    api.requests().into_iter().map(|request| (name(request.path), request.body)).collect()
}

#[tokio::test(start_paused = true)]
async fn progress_is_saved_with_the_token_at_which_the_first_pass_can_continue() {
    let at = |pass, token: Option<&str>, waiting: Option<&str>| {
        let mut progress = Progress::default();
        (progress.pass, progress.counts.seen) = (pass, 5);
        progress.continue_token = token.map(str::to_owned);
        progress.waiting = waiting.map(str::to_owned);
        progress
    };
    let status = |reason: &str| {
        let counts = MigrationCounts { seen: 5, ..MigrationCounts::default() };
        ("status".to_owned(), json!({"status": {"counts": counts, "reason": reason}}))
    };
    let token = |token: &str| ("m".to_owned(), json!({"spec": {"continueToken": token}}));
    let first = saved(200, vec![at(1, Some("there"), None), at(1, None, Some("why"))]).await;
    assert_eq!(first, [status(""), token("there"), status("why"), token("")]);
    assert_eq!(saved(200, vec![at(2, Some("there"), None)]).await, [status("")], "a check starts at the beginning");
    assert_eq!(saved(500, vec![at(1, Some("there"), None)]).await, [status("")], "the counts belong to the token");
    assert_eq!(saved(200, Vec::new()).await, [], "nothing has changed");
}
