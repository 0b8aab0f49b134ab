//! What several servers' answers amount to.

use super::*;
use restow_rules::migrate::aggregation::AggregatedServer;
use serde_json::json;

fn widgets(hash: Option<&str>) -> StoredResource {
    StoredResource {
        resource: "widgets.v1.example.com".parse().unwrap(),
        kind: "Widget".into(),
        is_namespaced: true,
        hash: hash.map(StorageVersionHash::new),
    }
}

fn name() -> GroupResource {
    "widgets.example.com".parse().unwrap()
}

impl Observation {
    /// What a single server shows that has these resources, and does not say what it has of these group versions.
    pub(crate) fn of_one_server(resources: &[&str], unread: &[&str]) -> Self {
        let stored = |name: &&str| StoredResource { resource: name.parse().unwrap(), ..widgets(Some("a")) };
        let resources = resources.iter().map(stored);
        let discovery = Discovery {
            resources: resources.map(|one| (one.resource.group_resource(), one)).collect(),
            unread: unread.iter().map(|version| (version.to_string(), "503".to_owned())).collect(),
        };
        Observation { discoveries: vec![("one".to_owned(), Ok(discovery))], ..observation(Vec::new()) }
    }
}

fn observation(answers: Vec<Result<Option<&str>, &str>>) -> Observation {
    let discovery = |answer: Result<Option<&str>, &str>| match answer {
        Ok(hash) => Ok(Discovery { resources: BTreeMap::from([(name(), widgets(hash))]), unread: BTreeMap::new() }),
        Err(message) => Err(RequestError { message: message.into(), ..RequestError::default() }),
    };
    let named = |(index, answer): (usize, _)| (format!("server-{index}"), discovery(answer));
    let discoveries = answers.into_iter().enumerate().map(named).collect();
    let servers = ApiServers { required: RequiredServers::Any, ..ApiServers::default() };
    let (reported, aggregation) = (BTreeMap::new(), Aggregation::default());
    Observation { instances: Vec::new(), servers, discoveries, reported, aggregation }
}

#[test]
fn servers_agree_when_all_of_them_say_the_same() {
    let seen = observation(vec![Ok(Some("a")), Ok(Some("a"))]).resource(&name(), None).unwrap();
    assert_eq!(seen.agreed(), Some(&StorageVersionHash::new("a")));
    assert_eq!(seen.disagreement(), None);
}

#[test]
fn a_server_that_differs_or_cannot_be_asked_is_named() {
    for (answers, words) in [
        (vec![Ok(Some("a")), Ok(Some("b"))], "server-1 b"),
        (vec![Ok(Some("a")), Err("connection refused")], "server-1 cannot be queried: connection refused"),
        (vec![Ok(Some("a")), Ok(None)], "server-1 does not say"),
    ] {
        let seen = observation(answers).resource(&name(), None).unwrap();
        assert_eq!(seen.agreed(), None);
        assert!(seen.disagreement().unwrap().contains(words), "{:?}", seen.disagreement());
    }
}

#[test]
fn what_servers_whose_writes_are_fenced_report_counts_more_than_discovery() {
    let kind: GroupVersionKind = "Widget.v1.example.com".parse().unwrap();
    let hash = StorageVersionHash::of(&kind).to_string();
    let mut seen = observation(vec![Ok(Some(&hash)), Ok(None)]);
    let both = ["one", "two"].map(str::to_owned);
    seen.servers.identities = Ok(both.iter().map(|name| (name.clone(), name.clone())).collect());
    seen.servers.fenced = both.into();
    let report = |common: Option<&str>| {
        let entry = |id: &str, version: &str| json!({"apiServerID": id, "encodingVersion": version});
        serde_json::from_value::<StorageVersion>(json!({
            "metadata": {"name": "example.com.widgets", "resourceVersion": "7"},
            "status": {
                "storageVersions": [entry("one", "example.com/v1"), entry("two", common.unwrap_or("example.com/v2"))],
                "commonEncodingVersion": common,
            },
        }))
        .unwrap()
    };
    seen.reported.insert("example.com.widgets".into(), report(None));
    let disagreed = seen.resource(&name(), None).unwrap();
    assert_eq!(disagreed.revision, Some(ResourceVersion::new("7")));
    assert!(disagreed.disagreement().unwrap().contains("two example.com/v2"));

    seen.reported.insert("example.com.widgets".into(), report(Some("example.com/v1")));
    let agreed = seen.resource(&name(), None).unwrap();
    assert_eq!(agreed.agreed(), Some(&StorageVersionHash::of(&kind)));
    assert_eq!(agreed.revision, Some(ResourceVersion::new("7")));
    // Without a fence the second server, which does not say, has to be queried.
    seen.servers.fenced.clear();
    let stock = seen.resource(&name(), None).unwrap();
    assert_eq!((stock.agreed(), &stock.revision), (None, &None));
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_an_aggregated_server_does_not_restart_the_settling_time_of_others() {
    let service = tower::service_fn(|_: Request<kube::client::Body>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let cluster = Cluster::from_client(kube::Client::new(service, "default"));
    let since = |process: &str| {
        let server =
            AggregatedServer { control_plane: "garden".into(), is_fenced: true, store: None, process: process.into() };
        let mut observation = observation(vec![Ok(Some("a"))]);
        observation.servers.aggregated.insert("garden-a".into(), server);
        let seen = observation.resource(&name(), None).unwrap();
        observation.agreed_since(&cluster, &seen, None)
    };
    let first = since("1");
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(since("2"), first);
}

#[test]
fn a_document_that_cannot_be_read_is_not_taken_for_one_without_the_resource() {
    let mut seen = observation(vec![Ok(Some("a")), Ok(Some("a"))]);
    assert!(seen.is_complete());
    let (_, second) = &mut seen.discoveries[1];
    let second = second.as_mut().unwrap();
    second.resources.clear();
    second.unread.insert("example.com/v1".into(), "503 down".into());
    let disagreement = seen.resource(&name(), None).unwrap().disagreement().unwrap();
    assert!(disagreement.contains("document of example.com/v1 cannot be read: 503 down"), "{disagreement}");
    assert!(!seen.is_complete() && !seen.is_complete_for("example.com"));
    assert!(seen.every_server_answered() && seen.is_complete_for("apps"));
    assert_eq!(seen.unread(), BTreeMap::from([("example.com/v1", "503 down")]));
}

#[test]
fn servers_have_to_store_the_version_that_the_crd_names() {
    let crd: Crd = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"},
                 "versions": [{"name": "v1", "served": true}, {"name": "v2", "served": true, "storage": true}]},
    }))
    .unwrap();
    let hash = |version: &str| hash_of(&format!("example.com/{version}"), "Widget");
    let lagging = observation(vec![Ok(Some(&hash("v1").to_string()))]).resource(&name(), Some(&crd)).unwrap();
    assert!(lagging.disagreement().unwrap().contains("the CRD names v2"), "{lagging:?}");
    let current = observation(vec![Ok(Some(&hash("v2").to_string()))]).resource(&name(), Some(&crd)).unwrap();
    assert_eq!(current.agreed(), Some(&hash("v2")));
}
