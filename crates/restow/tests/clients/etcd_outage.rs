//! An etcd that does not respond: the server is soon not ready, stays alive, and recovers when etcd responds again.

use restow_testkit::{Cluster, On, eventually_blocking};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_unready_but_alive_while_etcd_does_not_answer() {
    let cluster = Cluster::one(On::Etcd).await;
    let server = &cluster.servers[0];
    cluster.kubectl(&["create", "configmap", "before"]);

    cluster.pause_etcd();
    eventually_blocking("the server is not ready", || {
        !server.try_kubectl(&["get", "--raw", "/readyz"]).status.success()
    });
    cluster.kubectl(&["get", "--raw", "/livez"]);
    let begun = Instant::now();
    let refused = server.kubectl_fails(&["create", "configmap", "meanwhile"]);
    let retriable = ["ServiceUnavailable", "Timeout", "unavailable"].iter().any(|word| refused.contains(word));
    assert!(retriable, "{refused}");
    // Far below the minute that a request may take; how far depends on how busy the machine is.
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());

    cluster.resume_etcd();
    eventually_blocking("the server is ready", || server.try_kubectl(&["get", "--raw", "/readyz"]).status.success());
    cluster.kubectl(&["create", "configmap", "after"]);
    assert!(cluster.kubectl(&["get", "configmap", "before", "-o", "name"]).contains("before"));
}
