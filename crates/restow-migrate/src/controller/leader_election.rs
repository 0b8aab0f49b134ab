//! Leader election: acquires and renews the lease, and runs the reconcile loop while it is held.
//!
//! A controller that was suspended in the middle of a reconcile resumes with stale state after its lease may have expired.
//! Every write therefore checks [`LeaseTerm`] first.

use super::{Context, reconcile_loop, stopped};
use crate::request::RequestError;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use restow_api::ResourceVersion;
use restow_host::{Moment, since_boot};
use restow_rules::leader_election::{LeaseAction, LeaseView, lease_action};
use restow_rules::{LeaseWatch, ReadTime, SeenLease};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

const NAME: &str = "restow-controller";

/// Until when this controller may act; without limit if there is no leader election.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseTerm(Arc<Mutex<Option<(Moment, Duration)>>>);

impl LeaseTerm {
    /// Records a renewal, which is valid for this duration.
    fn renewed(&self, at: Moment, good_for: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, good_for));
    }

    /// Fails if another controller may have acquired the lease.
    pub(super) fn check(&self) -> Result<(), RequestError> {
        let term = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match term.is_none_or(|(at, good_for)| at.elapsed() <= good_for) {
            true => Ok(()),
            false => Err(RequestError {
                message: "the controller's lease was not renewed in time".into(),
                ..RequestError::default()
            }),
        }
    }
}

/// Acts whenever this controller holds the lease, until it is stopped.
pub(super) async fn run(context: Context, mut stop: watch::Receiver<bool>) {
    let api: Api<Lease> = Api::namespaced(context.cluster.client().clone(), &context.config.namespace);
    let me = context.config.identity.clone();
    let mut watched = LeaseWatch::default();
    let mut acting: Option<(watch::Sender<bool>, tokio::task::JoinHandle<()>)> = None;
    let mut renewed = Moment::now();
    let duration = context.config.lease_duration;
    // The retry period, and the renew deadline: without a renewal for so long, the holder stops before another controller
    // can acquire the lease.
    let (interval, deadline) = (duration.mul_f64(0.13), duration.mul_f64(0.66));
    loop {
        let begun = Moment::now();
        // A request that hangs must not delay noticing that the deadline has passed.
        let renewal = tokio::time::timeout(deadline, acquire_or_renew(&api, &me, duration, &mut watched)).await;
        let renewal = renewal.unwrap_or_else(|_| Err(no_answer(deadline)));
        match renewal {
            Ok(true) => {
                renewed = begun;
                context.term.renewed(begun, deadline);
                if acting.is_none() {
                    tracing::info!("{me} leads");
                    let (end, ended) = watch::channel(false);
                    acting = Some((end, restow_host::spawn(reconcile_loop(context.clone(), ended))));
                }
            }
            Ok(false) => stop_leading(&mut acting).await,
            Err(failure) => {
                tracing::warn!("cannot read or write the lease {NAME}: {failure}");
                if renewed.elapsed() > deadline {
                    stop_leading(&mut acting).await;
                }
            }
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(interval) => {}
            () = stopped(&mut stop) => break,
        }
    }
    let was_acting = acting.is_some();
    stop_leading(&mut acting).await;
    if was_acting && let Err(failure) = release(&api, &me).await {
        tracing::warn!("cannot give up the lease {NAME}: {failure}");
    }
}

fn no_answer(within: Duration) -> RequestError {
    RequestError { message: format!("no answer within {:.0} s", within.as_secs_f64()), ..RequestError::default() }
}

async fn stop_leading(acting: &mut Option<(watch::Sender<bool>, tokio::task::JoinHandle<()>)>) {
    if let Some((end, acted)) = acting.take() {
        tracing::info!("not leading any more");
        end.send_replace(true);
        // The loop ends by itself; if it panicked, there is nothing to stop.
        let _ = acted.await;
    }
}

/// Reads the lease once, and acquires or renews it. Returns whether this controller holds it.
async fn acquire_or_renew(
    api: &Api<Lease>,
    me: &str,
    duration: Duration,
    watched: &mut LeaseWatch,
) -> Result<bool, RequestError> {
    let asked = since_boot();
    let found = api.get_opt(NAME).await?;
    let view = look(found.as_ref(), ReadTime { asked, answered: since_boot() }, watched);
    let lease_action = lease_action(view.as_ref(), me);
    if lease_action == LeaseAction::Wait {
        return Ok(false);
    }
    let now = MicroTime(restow_host::now());
    let old = found.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let is_renewal = lease_action == LeaseAction::Renew;
    let spec = LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(duration.as_secs().max(1)).ok(),
        acquire_time: if is_renewal { old.acquire_time.clone() } else { Some(now.clone()) },
        renew_time: Some(now),
        lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(!is_renewal)),
        ..old
    };
    let written = match found {
        None => {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
        }
        Some(lease) => api.replace(NAME, &PostParams::default(), &Lease { spec: Some(spec), ..lease }).await,
    };
    match written.map_err(RequestError::from) {
        Ok(_) => Ok(true),
        Err(failure) if failure.code == 409 => Ok(false),
        Err(failure) => Err(failure),
    }
}

async fn release(api: &Api<Lease>, me: &str) -> Result<(), RequestError> {
    let Some(mut lease) = api.get_opt(NAME).await? else { return Ok(()) };
    if holder(&lease) != me {
        return Ok(());
    }
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
    }
    api.replace(NAME, &PostParams::default(), &lease).await?;
    Ok(())
}

/// Evaluates a read of the lease together with earlier reads.
fn look(lease: Option<&Lease>, read: ReadTime, watched: &mut LeaseWatch) -> Option<LeaseView> {
    let revision = ResourceVersion::new(lease?.metadata.resource_version.clone().unwrap_or_default());
    let duration_seconds = lease?.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).map(i64::from);
    let seen = SeenLease { name: NAME, revision: &revision, duration_seconds };
    watched.saw([seen], read);
    Some(LeaseView { holder: holder(lease?), expired: watched.is_expired(seen) })
}

fn holder(lease: &Lease) -> String {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fake_api::{ApiRequest, FakeApi};
    use serde_json::json;

    #[test]
    fn a_term_is_over_when_the_lease_was_not_renewed_in_time() {
        let term = LeaseTerm::default();
        assert!(term.check().is_ok(), "without an election everybody may act");
        let begun = Moment::now();
        term.renewed(begun, Duration::ZERO);
        while begun.elapsed() == Duration::ZERO {}
        assert!(term.clone().check().is_err());
        term.renewed(Moment::now(), Duration::from_secs(3600));
        assert!(term.check().is_ok());
    }

    fn lease(holder: &str) -> serde_json::Value {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": NAME, "namespace": "restow-system", "resourceVersion": "5"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3,
                "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:01.000000Z"}})
    }

    fn leases(api: &FakeApi) -> Api<Lease> {
        Api::namespaced(api.client.clone(), "restow-system")
    }

    async fn attempt(api: &FakeApi) -> Result<bool, RequestError> {
        acquire_or_renew(&leases(api), "me", Duration::from_secs(15), &mut LeaseWatch::default()).await
    }

    #[tokio::test]
    async fn a_free_lease_is_acquired_an_own_one_renewed_and_another_one_respected() {
        let holds = |code: u16, found: serde_json::Value| {
            FakeApi::new(move |request| match request.method.as_str() {
                "GET" => (code, found.clone()),
                _ => (200, request.body.clone()),
            })
        };
        let none = holds(404, json!("no such lease"));
        assert!(attempt(&none).await.unwrap());
        let created = &none.requests()[1];
        assert_eq!(created.method, "POST");
        assert_eq!(created.body["metadata"]["name"], NAME);
        let spec = |request: &ApiRequest| {
            let spec = &request.body["spec"];
            (spec["holderIdentity"].clone(), spec["leaseDurationSeconds"].clone(), spec["leaseTransitions"].clone())
        };
        assert_eq!(spec(created), (json!("me"), json!(15), json!(1)));
        assert_eq!(created.body["spec"]["acquireTime"], created.body["spec"]["renewTime"]);

        let own = holds(200, lease("me"));
        assert!(attempt(&own).await.unwrap());
        let renewed = &own.requests()[1];
        assert_eq!((renewed.method.as_str(), spec(renewed)), ("PUT", (json!("me"), json!(15), json!(3))));
        assert_eq!(renewed.body["spec"]["acquireTime"], "2026-01-01T00:00:00.000000Z");
        assert_ne!(renewed.body["spec"]["renewTime"], "2026-01-01T00:00:01.000000Z");
        assert_eq!(renewed.body["metadata"]["resourceVersion"], "5", "the write fails if the lease has changed");

        let released = holds(200, lease(""));
        assert!(attempt(&released).await.unwrap());
        assert_eq!(spec(&released.requests()[1]), (json!("me"), json!(15), json!(4)));

        let other = holds(200, lease("another"));
        assert!(!attempt(&other).await.unwrap());
        assert_eq!(other.calls().len(), 1, "nothing is written");
    }

    #[tokio::test]
    async fn a_controller_that_is_overtaken_does_not_hold_the_lease() {
        let refusing = |code: u16| {
            FakeApi::new(move |request| match request.method.as_str() {
                "GET" => (200, lease("me")),
                _ => (code, json!("refused")),
            })
        };
        assert!(!attempt(&refusing(409)).await.unwrap());
        assert_eq!(attempt(&refusing(500)).await.unwrap_err().code, 500, "unknown, so it may still hold it");
    }

    #[tokio::test]
    async fn only_the_holder_releases_the_lease() {
        for (holder, released) in [("me", true), ("another", false)] {
            let api = FakeApi::new(move |request| match request.method.as_str() {
                "GET" => (200, lease(holder)),
                _ => (200, request.body.clone()),
            });
            release(&leases(&api), "me").await.unwrap();
            let written: Vec<ApiRequest> =
                api.requests().into_iter().filter(|request| request.method != "GET").collect();
            assert_eq!(written.len(), usize::from(released), "{holder}");
            assert!(written.iter().all(|request| request.body["spec"]["holderIdentity"] == ""), "{written:?}");
        }
        let none = FakeApi::new(|_| (404, json!("no such lease")));
        release(&leases(&none), "me").await.unwrap();
    }

    /// Runs a controller for five minutes where this lease exists, and stops it. Returns the holders that were written,
    /// and whether anything was reconciled.
    async fn ran(found: serde_json::Value, code: u16) -> (Vec<String>, bool) {
        let current = Mutex::new(found);
        let api = FakeApi::new(move |request| {
            if !request.path.contains("/leases/") {
                return (404, json!("not served"));
            }
            let mut current = current.lock().unwrap();
            if request.method == "PUT" && code == 200 {
                *current = request.body.clone();
            }
            if request.method == "GET" { (200, current.clone()) } else { (code, current.clone()) }
        });
        let (stop, stopped) = watch::channel(false);
        let controller = tokio::spawn(run(api.context(), stopped));
        tokio::time::sleep(Duration::from_secs(300)).await;
        stop.send_replace(true);
        tokio::time::timeout(Duration::from_secs(60), controller).await.expect("it ends").unwrap();
        let requests = api.requests();
        let written = requests.iter().filter(|request| request.method == "PUT");
        let holders = written.map(|request| request.body["spec"]["holderIdentity"].as_str().unwrap().to_owned());
        (holders.collect(), requests.iter().any(|request| !request.path.contains("/leases/")))
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_acts_while_it_renews_the_lease_and_gives_it_up_in_the_end() {
        let (holders, has_acted) = ran(lease(""), 200).await;
        let (last, others) = holders.split_last().unwrap();
        assert!(has_acted && last.is_empty(), "{holders:?}");
        assert!(others.len() > 100 && others.iter().all(|holder| holder == "restow"), "{holders:?}");
        let (holders, has_acted) = ran(lease("restow"), 409).await;
        assert!(!has_acted && holders.iter().all(|holder| holder == "restow"), "others write it: {holders:?}");
    }

    #[test]
    fn a_renewal_without_an_answer_says_how_long_it_took() {
        assert_eq!(no_answer(Duration::from_millis(9_900)).message, "no answer within 10 s");
    }
}
