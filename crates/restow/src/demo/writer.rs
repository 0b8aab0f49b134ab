//! A client that writes all the time, and records which writes were acknowledged.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// How often a write is tried at other servers before it counts as failed.
const ATTEMPTS: usize = 200;

/// What the writer has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// How many writes were acknowledged.
    pub(super) acknowledged: u64,
    /// How many were refused with "try again", and then succeeded.
    pub(super) retried: u64,
    /// The errors of all others; there must be none.
    pub(super) failed: Vec<String>,
    /// The last value that was acknowledged for each object.
    pub(super) values: BTreeMap<String, u64>,
}

/// A writer that runs until it is stopped.
pub(super) struct Writer {
    ledger: Arc<Mutex<Ledger>>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Writer {
    /// Writes to these objects through each server in turn.
    pub(super) fn start(servers: watch::Receiver<Vec<Client>>, names: Vec<String>) -> Self {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(write_until(stopped, servers, names, ledger.clone()));
        Writer { ledger, stop, task }
    }

    /// Stops it, and returns its records.
    pub(super) async fn stop(mut self) -> Ledger {
        self.stop.send_replace(true);
        let _ = (&mut self.task).await;
        self.ledger.lock().map(|ledger| ledger.clone()).unwrap_or_default()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write_until(
    stopped: watch::Receiver<bool>,
    servers: watch::Receiver<Vec<Client>>,
    names: Vec<String>,
    ledger: Arc<Mutex<Ledger>>,
) {
    let mut number = 0_u64;
    while !*stopped.borrow() {
        number += 1;
        let name = &names[number as usize % names.len()];
        let (answer, attempts) = write(&servers, name, number).await;
        if let Ok(mut ledger) = ledger.lock() {
            match answer {
                Ok(()) => {
                    ledger.acknowledged += 1;
                    ledger.retried += u64::from(attempts > 0);
                    ledger.values.insert(name.clone(), number);
                }
                Err(error) => ledger.failed.push(error),
            }
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

/// Writes one value; tries the next server whenever one says "try again" or does not answer.
async fn write(servers: &watch::Receiver<Vec<Client>>, name: &str, number: u64) -> (Result<(), String>, usize) {
    for attempt in 0..ATTEMPTS {
        let client = {
            let servers = servers.borrow();
            servers[(number as usize + attempt) % servers.len()].clone()
        };
        let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
        let patch = json!({"metadata": {"annotations": {"demo.restow.dev/number": number.to_string()}}});
        let parameters = PatchParams::default();
        let patch = Patch::Merge(&patch);
        let writing = slices.patch_metadata(name, &parameters, &patch);
        match tokio::time::timeout(Duration::from_secs(1), writing).await {
            Ok(Ok(_)) => return (Ok(()), attempt),
            // Only with these other codes is a retry useless.
            Ok(Err(kube::Error::Api(status))) if !matches!(status.code, 409 | 429 | 500 | 503 | 504) => {
                return (Err(format!("{} {}", status.code, status.message)), attempt);
            }
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(25)).await,
        }
    }
    (Err(format!("{name} could not be written in {ATTEMPTS} attempts")), ATTEMPTS)
}
