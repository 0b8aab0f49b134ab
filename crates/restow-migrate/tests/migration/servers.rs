//! Which API servers are queried, and what is known if some of them, or what they report, cannot be read.

use crate::cluster::{State, cluster, state};
use crate::{NAME, shared};
use http::Response;
use kube::Client;
use kube::client::Body;
use restow_migrate::RequestError;
use restow_migrate::api_servers::{Observation, Scope, observe};
use restow_migrate::cluster::{Cluster, Reach};
use std::convert::Infallible;

/// A server that answers every request with this code.
fn refusing(code: u16) -> Client {
    let answer = serde_json::json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"});
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let response = Response::builder().status(code);
        let body = Body::from(answer.to_string().into_bytes());
        async move { Ok::<_, Infallible>(response.body(body).unwrap()) }
    });
    Client::new(service, "default")
}

async fn observed(cluster: &Cluster) -> Result<Observation, RequestError> {
    let name = NAME.parse().unwrap();
    observe(cluster, Scope::Resources(&[&name])).await
}

/// The servers that were queried, and whether each answered.
fn asked(observation: &Observation) -> Vec<(String, bool)> {
    observation.asked().map(|(name, failure)| (name.to_owned(), failure.is_none())).collect()
}

#[tokio::test(start_paused = true)]
async fn servers_that_cannot_be_reached_by_their_own_address_are_queried_together() {
    let two = State { addresses: vec!["10.0.0.1", "10.0.0.2"], ..state() };
    let common = cluster(&shared(two)).client().clone();
    let hidden = Cluster::from_clients(common, |_| refusing(503));
    let observation = observed(&hidden).await.unwrap();
    let found = asked(&observation);
    assert_eq!(found.iter().map(|(_, answered)| *answered).collect::<Vec<_>>(), [false, false, true], "{found:?}");
    assert_eq!(observation.instances.len(), 1);
    assert_eq!(observation.instances[0].name, found[2].0);
    assert!(!observation.every_server_answered() && !observation.is_complete_for("example.com"));
    let dead = Cluster::from_clients(refusing(503), |_| refusing(503));
    assert_eq!(observed(&dead).await.err().map(|failure| failure.code), Some(503), "the reports cannot be read");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_of_which_no_server_can_be_queried_is_an_error_that_says_so() {
    let unserved = || State { unserved: vec!["apis/example.com"], forbidden: vec!["apis/example.com"], ..state() };
    for (reach, words) in [(Reach::EachServer, "no API server can be queried"), (Reach::OneEndpoint, "")] {
        let failure = observed(&cluster(&shared(unserved())).reached_by(reach)).await.err().unwrap();
        assert!(failure.code == 403 && failure.message.contains(words), "{failure:?}");
        assert_eq!(failure.message.contains("no API server can be queried"), reach == Reach::EachServer);
    }
}

#[tokio::test(start_paused = true)]
async fn reports_and_api_services_that_may_not_be_read_are_unknown() {
    let complete = observed(&cluster(&shared(state()))).await.unwrap();
    assert!(complete.every_server_answered() && complete.is_complete() && complete.is_complete_for("example.com"));
    assert_eq!(asked(&complete).len(), 1);
    assert_eq!(complete.resources(), [NAME.parse().unwrap()]);
    assert_eq!((complete.undetermined(), complete.reporting().len()), (Vec::<String>::new(), 0));
    let fenced = observed(&cluster(&shared(crate::fenced()))).await.unwrap();
    assert_eq!(fenced.reporting().into_iter().collect::<Vec<_>>(), ["apiserver-a"]);
    assert!(fenced.without_reports().reporting().is_empty());
    let forbidden = State { forbidden: vec!["storageversions", "apiservices"], ..crate::fenced() };
    let observation = observed(&cluster(&shared(forbidden))).await.unwrap();
    assert!(observation.reporting().is_empty());
    let [words] = observation.undetermined().try_into().unwrap();
    assert!(words.contains("which resources aggregated API servers serve"), "{words}");
    let unread = State { unserved: vec!["example.com/v1"], ..state() };
    let observation = observed(&cluster(&shared(unread))).await.unwrap();
    let [words] = observation.undetermined().try_into().unwrap();
    assert!(words.contains("which resources example.com/v1 has"), "{words}");
    assert!(!observation.is_complete() && observation.is_complete_for("apps"));
}
