//! Identifies the process of each API server. `restow_rules::migrate::processes` decides what that means.
//!
//! The metrics of a large server have megabytes and are expensive to gather. They are read only at the start and the end of
//! a migration, and only up to the line that is needed.

use crate::api_servers::Observation;
use crate::cluster::Instance;
use crate::request::RequestError;
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use restow_rules::migrate::processes::{Processes, start_time};
use std::time::Duration;

/// The timeout of the query.
const METRICS_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of bytes that are read.
const MOST_BYTES: usize = 64 << 20;
/// The maximum length of a line that is kept. The needed one is short.
const LONGEST_LINE: usize = 64 << 10;

/// The process of each server that answered, or why it is unknown whether these are all.
pub async fn identify(observation: &Observation) -> Result<Processes, String> {
    let ask = |instance: &Instance| {
        let Instance { name, client } = instance.clone();
        async move {
            let started = tokio::time::timeout(METRICS_TIMEOUT, started(&client)).await;
            let unresponsive = || Err(format!("no answer to a GET of /metrics within {} s", METRICS_TIMEOUT.as_secs()));
            (name, started.unwrap_or_else(|_| unresponsive()))
        }
    };
    let found = Processes(futures::future::join_all(observation.instances.iter().map(ask)).await.into_iter().collect());
    match found.unidentified(&observation.servers) {
        Some(words) => Err(words),
        None => Ok(found),
    }
}

/// The start time of the process that answers.
async fn started(client: &Client) -> Result<String, String> {
    let request = Request::get("/metrics").header(http::header::ACCEPT, "text/plain").body(Body::empty());
    let response = client.send(request.map_err(|error| error.to_string())?).await;
    let response = response.map_err(|error| RequestError::from(error).to_string())?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 => {
            return Err("its metrics may not be read; a ClusterRole has to allow it: nonResourceURLs [\"/metrics\"], \
                        verbs [\"get\"]"
                .to_owned());
        }
        code => return Err(format!("a GET of /metrics is answered with {code}")),
    }
    let mut body = response.into_body();
    let (mut text, mut read) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("its metrics cannot be read: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        read += data.len();
        text.extend_from_slice(&data);
        let whole_lines = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if let Some(time) = start_time(&String::from_utf8_lossy(&text[..whole_lines])) {
            return Ok(time.to_owned());
        }
        text.drain(..whole_lines);
        if read > MOST_BYTES || text.len() > LONGEST_LINE {
            break;
        }
    }
    Err("its metrics have no process_start_time_seconds".to_owned())
}
