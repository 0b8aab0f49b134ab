//! The endpoints of the Service `kubernetes` while servers start and stop.

use crate::fleet::Fleet;
use crate::writers::client_at;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams};
use restow_testkit::eventually;
use std::collections::BTreeSet;

/// The addresses in the endpoint slices of the service.
async fn in_slices(client: &kube::Client) -> BTreeSet<String> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let of_service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let listed = slices.list(&of_service).await.unwrap().items;
    let addresses = listed.iter().flat_map(|slice| {
        let port = slice.ports.as_ref().unwrap()[0].port.unwrap();
        let hosts = slice.endpoints.iter().flatten().flat_map(|endpoint| endpoint.addresses.clone());
        hosts.map(move |host| format!("{host}:{port}")).collect::<Vec<_>>()
    });
    addresses.collect()
}

/// The addresses in the endpoints of the service.
async fn in_endpoints(client: &kube::Client) -> BTreeSet<String> {
    let endpoints: Api<Endpoints> = Api::namespaced(client.clone(), "default");
    let found = endpoints.get("kubernetes").await.unwrap();
    let addresses = found.subsets.iter().flatten().flat_map(|subset| {
        let port = subset.ports.as_ref().unwrap()[0].port;
        let hosts = subset.addresses.clone().unwrap_or_default();
        hosts.into_iter().map(move |host| format!("{}:{port}", host.ip)).collect::<Vec<_>>()
    });
    addresses.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubernetes_service_has_the_endpoints_of_live_servers() {
    let mut fleet = Fleet::of(3).await;
    // No client connects to these addresses; loopback addresses are not listed.
    let hosts = ["10.1.0.1", "10.1.0.2", "10.1.0.3"];
    (0..3).for_each(|number| fleet.start(number, "1.37", &["--advertise-address", hosts[number]]));
    let config = fleet.client_config().await;
    let listening = fleet.addresses.read().unwrap().clone();
    let listening: Vec<String> = listening.into_iter().map(Option::unwrap).collect();
    let all: Vec<String> =
        (0..3).map(|number| format!("{}:{}", hosts[number], listening[number].rsplit(':').next().unwrap())).collect();
    let client = client_at(&config, &listening[0]);
    let lists = async |numbers: &[usize]| {
        let wanted: BTreeSet<String> = numbers.iter().map(|number| all[*number].clone()).collect();
        eventually(&format!("{wanted:?} are listed"), async || {
            in_slices(&client).await == wanted && in_endpoints(&client).await == wanted
        })
        .await
    };
    lists(&[0, 1, 2]).await;
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let service = services.get("kubernetes").await.unwrap().spec.unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("10.96.0.1"));
    assert_eq!(service.ports.unwrap()[0].port, 443);
    fleet.stop(1);
    lists(&[0, 2]).await;
    fleet.kill(2);
    lists(&[0]).await;
    assert!(!fleet.has_lease(2).await, "a server is listed for as long as its lease exists");
}
