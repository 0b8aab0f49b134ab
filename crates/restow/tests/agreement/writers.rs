//! Clients that write continuously, retry when a server requests it, and record which writes were acknowledged.

use crate::fleet::{Addresses, identity};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PostParams};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The annotation with the server through which an object was written.
pub(crate) const VIA: &str = "test/via";
/// The annotation that counts the writes of an object.
pub(crate) const COUNT: &str = "test/count";

/// How long a client waits for a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Clients at work.
pub(crate) struct Writers {
    tasks: Vec<JoinHandle<(String, u64)>>,
    stop: Arc<AtomicBool>,
    pub(crate) acknowledged: Arc<AtomicU64>,
}

impl Writers {
    /// Starts clients that have one object each.
    pub(crate) fn start(config: &kube::Config, addresses: &Addresses, count: usize) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writer = |number: usize| Writer {
            name: format!("slice-{number}"),
            turn: number,
            config: config.clone(),
            addresses: addresses.clone(),
            clients: HashMap::new(),
        };
        let tasks = (0..count).map(|number| tokio::spawn(writer(number).run(stop.clone(), acknowledged.clone())));
        Writers { tasks: tasks.collect(), stop, acknowledged }
    }

    /// Ends the work. Returns the last count that was acknowledged for each object.
    pub(crate) async fn finish(self) -> HashMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut last = HashMap::new();
        for task in self.tasks {
            let (name, count) = task.await.expect("a client saw an error that is not retriable");
            last.insert(name, count);
        }
        last
    }
}

struct Writer {
    name: String,
    turn: usize,
    config: kube::Config,
    addresses: Addresses,
    clients: HashMap<String, kube::Client>,
}

impl Writer {
    async fn run(mut self, stop: Arc<AtomicBool>, acknowledged: Arc<AtomicU64>) -> (String, u64) {
        let mut last = 0;
        let mut known: Option<EndpointSlice> = None;
        while !stop.load(Ordering::Relaxed) {
            let Some((number, client)) = self.next_server() else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let api: Api<EndpointSlice> = Api::namespaced(client, "default");
            let attempt = self.write(&api, number, known.take(), last + 1);
            match tokio::time::timeout(REQUEST_TIMEOUT, attempt).await {
                Ok(Ok(written)) => {
                    last = count_of(&written);
                    known = Some(written);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Err(error)) => {
                    check_retriable(&error);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                // There was no response. The write may still commit; a later read shows it.
                Err(_) => {}
            }
        }
        (self.name, last)
    }

    async fn write(
        &self,
        api: &Api<EndpointSlice>,
        number: usize,
        known: Option<EndpointSlice>,
        count: u64,
    ) -> Result<EndpointSlice, kube::Error> {
        let current = match known {
            Some(known) => Some(known),
            None => api.get_opt(&self.name).await?,
        };
        let annotations = json!({VIA: identity(number), COUNT: count.to_string()});
        match current {
            None => {
                let fresh = json!({
                    "metadata": {"name": self.name, "annotations": annotations}, "addressType": "IPv4", "endpoints": [],
                });
                api.create(&PostParams::default(), &serde_json::from_value(fresh).unwrap()).await
            }
            Some(mut slice) => {
                assert!(count_of(&slice) + 1 >= count, "an acknowledged write of {} was lost", self.name);
                slice.metadata.annotations = Some(serde_json::from_value(annotations).unwrap());
                // The resource version ensures that an earlier write without a response does not overwrite this one.
                api.replace(&self.name, &PostParams::default(), &slice).await
            }
        }
    }

    /// The next server that runs, as far as the clients know.
    fn next_server(&mut self) -> Option<(usize, kube::Client)> {
        let addresses = self.addresses.read().unwrap().clone();
        for _ in 0..addresses.len() {
            self.turn += 1;
            let number = self.turn % addresses.len();
            let Some(address) = &addresses[number] else { continue };
            let config = &self.config;
            let client = self.clients.entry(address.clone()).or_insert_with(|| client_at(config, address));
            return Some((number, client.clone()));
        }
        None
    }
}

/// A client of the server at this address.
pub(crate) fn client_at(config: &kube::Config, address: &str) -> kube::Client {
    let mut config = config.clone();
    config.cluster_url = format!("https://{address}").parse().unwrap();
    kube::Client::try_from(config).unwrap()
}

pub(crate) fn count_of(slice: &EndpointSlice) -> u64 {
    let annotations = slice.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(COUNT)).map_or(0, |count| count.parse().unwrap())
}

/// A client may get a retriable error, or a conflict with another write (also an earlier one of its own); nothing else.
fn check_retriable(error: &kube::Error) {
    if let kube::Error::Api(status) = error {
        assert!(matches!(status.code, 409 | 429 | 503 | 504), "not retriable: {status:?}");
    }
}
