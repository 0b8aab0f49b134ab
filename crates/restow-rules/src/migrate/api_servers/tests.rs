//! Servers that cannot be reached, lag behind, or contradict themselves.

use super::*;
use crate::migrate::aggregation::AggregatedGroup;
use proptest::prelude::*;

fn hash(text: &str) -> StorageVersionHash {
    StorageVersionHash::new(text)
}

/// API servers at these addresses, with these leases and their holders. The writes of all of them are fenced.
fn servers(addresses: &[&str], identities: &[(&str, &str)]) -> ApiServers {
    ApiServers {
        fenced: identities.iter().map(|(name, _)| name.to_string()).collect(),
        addresses: Ok(addresses.iter().map(ToString::to_string).collect()),
        identities: Ok(identities.iter().map(|(name, holder)| (name.to_string(), holder.to_string())).collect()),
        ..ApiServers::default()
    }
}

fn shows(server: &str, version: &str) -> (String, Discovered) {
    (server.to_owned(), Discovered::Hash(hash(version)))
}

fn reports(server: &str, version: &str) -> (String, String, StorageVersionHash) {
    (server.to_owned(), format!("example.com/{version}"), hash(version))
}

/// The same servers, whose writes are not fenced.
fn unfenced(evidence: &ServerEvidence) -> ServerEvidence {
    let servers = ApiServers { fenced: BTreeSet::new(), ..evidence.servers.clone() };
    ServerEvidence { servers, ..evidence.clone() }
}

fn two_that_show(one: &str, other: &str) -> ServerEvidence {
    ServerEvidence {
        servers: servers(&["1", "2"], &[("a", "a_1"), ("b", "b_1")]),
        discovered: vec![shows("1", one), shows("2", other)],
        ..ServerEvidence::default()
    }
}

/// Checks that there is agreement on this version, or none and these words say why.
fn check(evidence: &ServerEvidence, expected: Result<&str, &str>) {
    let evaluate = evidence.evaluate();
    match expected {
        Ok(version) => assert_eq!(evaluate.agreement, EncodingAgreement::Agreed(hash(version)), "{evidence:?}"),
        Err(words) => {
            assert!(matches!(evaluate.agreement, EncodingAgreement::Disagreed(_)), "{evaluate:?}");
            let said: Vec<String> = evaluate.by_server.iter().map(|(who, what)| format!("{who} {what}")).collect();
            assert!(said.iter().any(|said| said.contains(words)), "{said:?} lacks {words:?}");
        }
    }
}

#[test]
fn servers_agree_when_each_of_them_shows_the_same() {
    check(&two_that_show("v1", "v1"), Ok("v1"));
    check(&two_that_show("v1", "v2"), Err("2 v2"));
    let with = |discovered| ServerEvidence {
        discovered: vec![shows("1", "v1"), ("2".to_owned(), discovered)],
        ..two_that_show("v1", "v1")
    };
    check(&with(Discovered::NoHash), Err("2 does not say"));
    check(&with(Discovered::NotServed), Err("2 does not serve it"));
    check(&with(Discovered::Unreachable("refused".into())), Err("2 cannot be queried: refused"));
}

#[test]
fn all_servers_must_show_the_storage_version_of_the_crd() {
    let defined = |version: &str| Some((version.to_owned(), hash(version)));
    check(&ServerEvidence { defined: defined("v2"), ..two_that_show("v1", "v1") }, Err("the CRD names v2"));
    check(&ServerEvidence { defined: defined("v2"), ..two_that_show("v1", "v2") }, Err("1 v1"));
    check(&ServerEvidence { defined: defined("v2"), ..two_that_show("v2", "v2") }, Ok("v2"));
    let neither = ServerEvidence { defined: defined("v2"), ..two_that_show("v1", "v3") }.evaluate();
    assert_eq!(neither.by_server.len(), 2, "the servers disagree already: {neither:?}");
    let reported = Some(vec![reports("a", "v1"), reports("b", "v1")]);
    let stale = ServerEvidence { defined: defined("v2"), reported, ..two_that_show("v1", "v1") };
    check(&stale, Err("the CRD names v2"));
}

#[test]
fn a_server_without_an_address_keeps_others_from_agreeing() {
    let three = &[("a", "a_1"), ("b", "b_1"), ("c", "c_1")];
    for (addresses, identities, is_unreachable) in [
        (&["1"][..], &three[..], true),
        (&[], &three[..2], true),
        (&["1", "2"], &three[..], true),
        (&["1", "2", "3"], &three[..], false),
        (&["1", "2", "3"], &three[..1], false),
        (&[], &three[..1], false),
        (&["1"], &three[..1], false),
        (&[], &[], true),
        (&["1"], &[], true),
    ] {
        let servers = servers(addresses, identities);
        assert_eq!(servers.unreachable_servers().is_some(), is_unreachable, "{servers:?}");
        let evidence = ServerEvidence { servers, discovered: vec![shows("1", "v1")], ..ServerEvidence::default() };
        check(&evidence, if is_unreachable { Err("other API servers cannot be queried") } else { Ok("v1") });
    }
    let unreadable = ApiServers { identities: Err("forbidden".into()), ..servers(&["1"], &[]) };
    assert!(
        unreadable.unreachable_servers().is_some_and(|words| words.contains("leases") && words.contains("forbidden"))
    );
    let unreadable = ApiServers { addresses: Err("forbidden".into()), ..servers(&[], &[]) };
    assert!(
        unreadable
            .unreachable_servers()
            .is_some_and(|words| words.contains("EndpointSlices") && words.contains("forbidden"))
    );
}

#[test]
fn reports_count_unless_a_server_shows_another_version() {
    let reported = |versions: [&str; 2]| Some(vec![reports("a", versions[0]), reports("b", versions[1])]);
    let agreed = ServerEvidence { reported: reported(["v2", "v2"]), ..two_that_show("v2", "v2") };
    check(&agreed, Ok("v2"));
    check(&ServerEvidence { reported: reported(["v2", "v1"]), ..two_that_show("v2", "v2") }, Err("b example.com/v1"));
    // A server that was started again as an older release still has the report of its earlier life.
    let stale = ServerEvidence { discovered: vec![shows("1", "v2"), shows("2", "v1")], ..agreed.clone() };
    check(&stale, Err("2 shows v1 in its discovery"));
    // Behind a load balancer only the reports tell.
    let behind = ServerEvidence { discovered: vec![shows("1", "v2")], ..agreed.clone() };
    let servers = ApiServers { addresses: Ok(BTreeSet::from(["1".to_owned()])), ..behind.servers.clone() };
    check(&ServerEvidence { servers, ..behind }, Ok("v2"));
    let cannot = ("1".to_owned(), Discovered::Unreachable("refused".into()));
    check(&ServerEvidence { discovered: vec![cannot], ..agreed.clone() }, Ok("v2"));
    let unreadable = ApiServers { identities: Err("forbidden".into()), ..agreed.servers.clone() };
    check(&ServerEvidence { servers: unreadable, ..agreed }, Err("cannot be read: forbidden"));
}

#[test]
fn a_report_counts_for_the_whole_only_where_writes_are_fenced() {
    let reported = Some(vec![reports("a", "v2"), reports("b", "v2")]);
    let fenced = ServerEvidence { reported, ..two_that_show("v2", "v2") };
    assert!(fenced.evaluate().is_fenced);
    assert_eq!(fenced.evaluate().by_server.len(), 2, "what a server shows is no news if it is reported");
    let one = ApiServers { fenced: BTreeSet::from(["a".to_owned()]), ..fenced.servers.clone() };
    for stock in [unfenced(&fenced), ServerEvidence { servers: one, ..fenced.clone() }] {
        assert!(!stock.evaluate().is_fenced, "settling time, processes and a comparison are needed");
        check(&stock, Ok("v2"));
        // As where nobody reports, each of them has to be queried.
        let cannot = ("2".to_owned(), Discovered::Unreachable("refused".into()));
        check(
            &ServerEvidence { discovered: vec![shows("1", "v2"), cannot], ..stock.clone() },
            Err("2 cannot be queried"),
        );
        let one_address = ApiServers { addresses: Ok(BTreeSet::from(["1".to_owned()])), ..stock.servers.clone() };
        check(&ServerEvidence { servers: one_address, ..stock }, Err("other API servers cannot be queried"));
    }
    // The label alone, on a lease that is gone, vouches for nobody.
    let gone = ApiServers { identities: Ok(BTreeMap::from([("a".into(), "a_1".into())])), ..fenced.servers.clone() };
    assert!(!ServerEvidence { servers: gone, ..fenced }.evaluate().is_fenced);
    assert!(!two_that_show("v2", "v2").evaluate().is_fenced, "nobody reports");
}

#[test]
fn a_server_without_a_lease_beside_servers_that_report_is_not_overlooked() {
    let three_addresses = servers(&["1", "2", "3"], &[("a", "a_1"), ("b", "b_1")]);
    let reported = Some(vec![reports("a", "v2"), reports("b", "v2")]);
    let evidence = ServerEvidence { servers: three_addresses, reported, ..two_that_show("v2", "v2") };
    check(&evidence, Err("name 3 API servers (1, 2, 3), but 2 of them hold identity leases"));
    let servers = ApiServers { addresses: Err("forbidden".into()), ..evidence.servers.clone() };
    check(&ServerEvidence { servers, ..evidence }, Err("EndpointSlices"));
}

/// A group behind a Service with so many servers.
fn behind_a_service(addresses: usize) -> ServedBy {
    ServedBy::Aggregated(AggregatedGroup {
        services: BTreeMap::from([("v1.example.com".to_owned(), "n/s".to_owned())]),
        addresses: Ok((0..addresses).map(|index| format!("10.0.0.{index}")).collect()),
        marks: BTreeMap::new(),
    })
}

/// Two aggregated servers with leases, of which these report these versions, behind a Service with two addresses.
fn aggregated(versions: &[&str]) -> ServerEvidence {
    let server = AggregatedServer {
        control_plane: "garden".into(),
        is_fenced: true,
        store: Some("store-1".into()),
        process: "1".into(),
    };
    let main = two_that_show("v2", "v2");
    let leases = ["x", "y"].map(|name| (name.to_owned(), server.clone()));
    ServerEvidence {
        servers: ApiServers { aggregated: leases.into(), ..main.servers },
        served_by: behind_a_service(2),
        reported: Some(versions.iter().zip(["x", "y"]).map(|(version, id)| reports(id, version)).collect()),
        discovered: main.discovered,
        ..ServerEvidence::default()
    }
}

#[test]
fn only_reports_show_what_aggregated_servers_store() {
    let agreed = aggregated(&["v2", "v2"]);
    check(&agreed, Ok("v2"));
    assert!(agreed.evaluate().is_fenced);
    check(&aggregated(&["v2", "v1"]), Err("y example.com/v1"));
    check(&aggregated(&["v1", "v1"]), Err("1 shows v2 in its discovery"));
    check(&aggregated(&["v2"]), Err("y holds an identity lease and does not report"));
    check(&ServerEvidence { has_common_version: false, ..agreed.clone() }, Err("no commonEncodingVersion"));
    let hashless = vec![shows("1", "v2"), ("2".to_owned(), Discovered::NoHash)];
    check(&ServerEvidence { discovered: hashless, ..agreed.clone() }, Err("2 shows no storageVersionHash"));
    let down = vec![("1".to_owned(), Discovered::Unreachable("503".into()))];
    check(&ServerEvidence { discovered: down, ..agreed.clone() }, Ok("v2"));
    let defined = Some(("v2".to_owned(), hash("v2")));
    check(&ServerEvidence { defined, ..agreed.clone() }, Err("a CRD defines it too"));
    for (doubtful, words) in [
        (ServerEvidence { reported: None, ..agreed.clone() }, "none of them reports"),
        (aggregated(&[]), "none of them reports"),
        (ServerEvidence { served_by: behind_a_service(3), ..agreed.clone() }, "the EndpointSlices name 3"),
        // What the API servers themselves could report is not about these objects.
        (
            ServerEvidence { reported: Some(vec![reports("a", "v2"), reports("b", "v2")]), ..agreed.clone() },
            "a reports",
        ),
    ] {
        check(&doubtful, Err(words));
        assert!(!doubtful.evaluate().is_fenced);
    }
}

#[test]
fn aggregated_servers_that_were_restarted_are_noticed() {
    let before = aggregated(&["v2", "v2"]);
    let mut after = before.clone();
    assert_eq!(before.evaluate().marks, after.evaluate().marks);
    after.servers.aggregated.get_mut("y").unwrap().process = "2".into();
    assert_ne!(before.evaluate().marks, after.evaluate().marks);
    // That concerns no other resource: the marks of the API servers themselves are the same.
    assert_eq!(after.servers.change_since(&before.servers), None);
    assert_eq!(two_that_show("v2", "v2").evaluate().marks, BTreeMap::new());
}

#[test]
fn there_is_no_agreement_while_aggregated_servers_may_serve_a_resource() {
    let unknown = ServedBy::Unknown("s is forbidden".into());
    for reported in [None, Some(vec![reports("a", "v2"), reports("b", "v2")])] {
        let evidence = ServerEvidence { served_by: unknown.clone(), reported, ..two_that_show("v2", "v2") };
        check(&evidence, Err("may serve it: s is forbidden"));
        // A client of a single address proves nothing anyway.
        let one = ApiServers { required: RequiredServers::Any, ..evidence.servers.clone() };
        check(&ServerEvidence { servers: one, ..evidence }, Ok("v2"));
    }
    let silent = ServerEvidence { reported: None, ..aggregated(&[]) };
    let one = ApiServers { required: RequiredServers::Any, ..silent.servers.clone() };
    check(&ServerEvidence { servers: one, ..silent }, Ok("v2"));
}

#[test]
fn a_server_that_takes_part_and_does_not_report_keeps_others_from_agreeing() {
    let reported = Some(vec![reports("a", "v2")]);
    check(
        &ServerEvidence { reported, ..two_that_show("v2", "v2") },
        Err("b holds an identity lease and does not report"),
    );
    // Nobody who holds a lease here reports: the resource is another server's.
    let reported = Some(vec![reports("aggregated", "v2")]);
    check(&ServerEvidence { reported, ..two_that_show("v2", "v2") }, Ok("v2"));
}

#[test]
fn a_server_that_came_went_or_was_started_anew_is_noticed() {
    let start = servers(&["1", "2"], &[("a", "a_1"), ("b", "b_1")]);
    assert_eq!(start.change_since(&start), None);
    for (end, words) in [
        (servers(&["1", "3"], &[("a", "a_1"), ("b", "b_1")]), "addresses"),
        (servers(&["1", "2"], &[("a", "a_1"), ("b", "b_2")]), "b was restarted"),
        (servers(&["1", "2"], &[("a", "a_1")]), "b has left"),
        (servers(&["1", "2"], &[("a", "a_1"), ("b", "b_1"), ("c", "c_1")]), "c has joined"),
    ] {
        assert!(end.change_since(&start).is_some_and(|said| said.contains(words)), "{end:?}");
    }
    // It took its address away and put it back, and has the same lease as before.
    let marked = |mark: &str| ApiServers {
        marks: BTreeMap::from([("EndpointSlice kubernetes".to_owned(), mark.to_owned())]),
        ..start.clone()
    };
    assert_eq!(marked("7").change_since(&marked("7")), None);
    let words = marked("9").change_since(&marked("7"));
    assert!(words.is_some_and(|words| words.contains("EndpointSlice kubernetes")));
    assert_ne!(marked("9").processes(), marked("7").processes());
}

#[test]
fn a_single_address_needs_no_list_of_servers() {
    let one = ApiServers { required: RequiredServers::Any, ..ApiServers::default() };
    assert_eq!(one.unreachable_servers(), None);
    assert!(ApiServers::default().unreachable_servers().is_some_and(|words| words.contains("APIServerIdentity")));
}

proptest! {
    /// Whatever the evidence is: who agrees has left nobody out, and agrees on what the CRD names.
    #[test]
    fn agreement_leaves_nobody_out(
        addresses in 0usize..4,
        identities in 0usize..4,
        fenced in 0usize..4,
        behind_a_service in prop::option::weighted(0.3, 0usize..3),
        reporters_behind_it in 0usize..4,
        shown in prop::collection::vec(0u8..5, 1..4),
        reported in prop::option::of(prop::collection::vec((0usize..4, 0u8..2), 1..5)),
        defined in prop::option::of(0u8..2),
    ) {
        let version = |number: u8| format!("v{number}");
        let discovered = |(index, what): (usize, &u8)| (index.to_string(), match what {
            0 | 1 => Discovered::Hash(hash(&version(*what))),
            2 => Discovered::NoHash,
            3 => Discovered::NotServed,
            _ => Discovered::Unreachable("no".into()),
        });
        let names: Vec<String> = (0..identities).map(|index| format!("s{index}")).collect();
        let evidence = ServerEvidence {
            servers: ApiServers {
                addresses: Ok((0..addresses).map(|index| index.to_string()).collect()),
                identities: Ok(names.iter().map(|name| (name.clone(), name.clone())).collect()),
                fenced: (0..fenced).map(|index| format!("s{index}")).collect(),
                aggregated: (0..reporters_behind_it).map(|index| {
                    let control_plane = if index < 3 { "garden" } else { "metrics" }.to_owned();
                    (format!("s{index}"), AggregatedServer { control_plane, is_fenced: index < fenced, store: Some("s".into()), process: "1".into() })
                }).collect(),
                ..ApiServers::default()
            },
            served_by: behind_a_service.map_or(ServedBy::ApiServers, self::behind_a_service),
            discovered: shown.iter().enumerate().map(discovered).collect(),
            reported: reported.map(|entries| {
                entries.into_iter().map(|(id, number)| reports(&format!("s{id}"), &version(number))).collect()
            }),
            has_common_version: true,
            defined: defined.map(|number| (version(number), hash(&version(number)))),
        };
        let ServerFinding { agreement: EncodingAgreement::Agreed(agreed), is_fenced, .. } = evidence.evaluate() else { return Ok(()) };
        if let Some(behind) = behind_a_service {
            let entries = evidence.reported.as_deref().unwrap_or_default();
            let number = |id: &str| id[1..].parse::<usize>().unwrap();
            prop_assert!(is_fenced && defined.is_none() && behind > 0);
            let distinct: BTreeSet<&String> = entries.iter().map(|(id, _, _)| id).collect();
            prop_assert!(distinct.len() >= behind);
            prop_assert!(entries.iter().all(|(id, _, hash)| *hash == agreed && number(id) < fenced.min(reporters_behind_it)));
            let reports = |index: usize| entries.iter().any(|(id, _, _)| number(id) == index);
            prop_assert!((0..reporters_behind_it).all(|index| reports(index) || index == 3 || !(0..3).any(reports)));
            let is_consistent = |found: &Discovered| match found {
                Discovered::Hash(hash) => *hash == agreed,
                other => *other != Discovered::NoHash,
            };
            prop_assert!(evidence.discovered.iter().all(|(_, found)| is_consistent(found)));
            return Ok(());
        }
        prop_assert!(is_fenced || evidence.servers.unreachable_servers().is_none());
        prop_assert!(evidence.defined.as_ref().is_none_or(|(_, defined)| *defined == agreed));
        for (_, discovered) in &evidence.discovered {
            match discovered {
                Discovered::Hash(hash) => prop_assert_eq!(hash, &agreed),
                _ => prop_assert!(is_fenced, "one did not say, and nobody vouches for it"),
            }
        }
        match &evidence.reported {
            None => prop_assert!(!is_fenced),
            Some(entries) => {
                let has_fenced_lease = |id: &String| names.contains(id) && evidence.servers.fenced.contains(id);
                prop_assert!(!is_fenced || entries.iter().all(|(id, _, _)| has_fenced_lease(id)));
                prop_assert!(addresses <= identities);
                prop_assert!(entries.iter().all(|(_, _, hash)| *hash == agreed));
                let reports = |name: &String| entries.iter().any(|(id, _, _)| id == name);
                prop_assert!(names.iter().all(reports) || !names.iter().any(reports));
            }
        }
    }

    /// Aggregated servers agree if, and only if, each of them is known, reports under a fence, and reports what is shown.
    #[test]
    fn aggregated_servers_agree_only_if_all_of_them_report_the_same(
        leases in prop::collection::vec((any_server(), prop::bool::weighted(0.9), prop::bool::weighted(0.9)), 1..4),
        without_lease in prop::bool::weighted(0.1),
        addresses in 0usize..4,
        shown in prop::collection::vec(prop::sample::select(vec!["v2", "v2", "v2", "v1"]), 1..3),
        has_common_version in prop::bool::weighted(0.9),
    ) {
        let name = |index: usize| format!("s{index}");
        let servers = leases.iter().enumerate().map(|(index, (server, _, _))| (name(index), server.clone()));
        let reporting = leases.iter().enumerate().filter(|(_, (_, reports, _))| *reports);
        let mut entries: Vec<ServerVersion> = reporting
            .map(|(index, (_, _, is_new))| self::reports(&name(index), if *is_new { "v2" } else { "v1" }))
            .collect();
        entries.extend(without_lease.then(|| self::reports("gone", "v2")));
        let evidence = ServerEvidence {
            servers: ApiServers { aggregated: servers.collect(), ..two_that_show("v2", "v2").servers },
            served_by: behind_a_service(addresses),
            discovered: shown.iter().enumerate().map(|(index, version)| shows(&index.to_string(), version)).collect(),
            reported: Some(entries.clone()),
            has_common_version,
            defined: None,
        };
        let planes: BTreeSet<&str> =
            leases.iter().filter(|(_, reports, _)| *reports).map(|(server, _, _)| server.control_plane.as_str()).collect();
        let is_complete = leases.iter().all(|(server, reports, _)| match reports {
            true => server.is_fenced,
            false => !planes.contains(server.control_plane.as_str()),
        });
        let is_counted = addresses > 0 && addresses <= entries.len();
        let is_same = shown.iter().all(|version| entries.iter().all(|(_, _, found)| *found == hash(version)));
        let reporting = leases.iter().filter(|(_, reports, _)| *reports);
        let stores: Vec<&Option<String>> = reporting.map(|(server, _, _)| &server.store).collect();
        let is_one_store = stores.len() < 2 || (stores[0].is_some() && stores.iter().all(|store| *store == stores[0]));
        let expected = is_complete && is_counted && is_same && is_one_store && has_common_version && !without_lease;
        let finding = evidence.evaluate();
        prop_assert_eq!(matches!(finding.agreement, EncodingAgreement::Agreed(_)), expected, "{:?}", finding);
    }
}

/// An aggregated server, most often of the garden, whose writes are most often fenced.
fn any_server() -> impl Strategy<Value = AggregatedServer> {
    let control_planes = prop::sample::select(vec!["garden", "garden", "metrics"]);
    let stores = prop::option::weighted(0.95, prop::sample::select(vec!["x", "x", "x", "x", "y"]));
    (control_planes, prop::bool::weighted(0.9), stores).prop_map(|(control_plane, is_fenced, store)| AggregatedServer {
        control_plane: control_plane.to_owned(),
        is_fenced,
        store: store.map(str::to_owned),
        process: "1".to_owned(),
    })
}
