//! Which groups aggregated API servers serve, and what their reports show.
//!
//! An APIService with a Service makes the API servers proxy requests for its group version. Any server behind the Service
//! may answer: a discovery document comes from one of them, so it shows nothing about the others. Their reports do: a server
//! made with `restow-aggregated` reports before it writes, under a lease that stays as long as a write of it can be
//! committed. So these resources can be migrated if every server behind the Service reports in this way, and only then.
//!
//! A report does not name an address, so servers are counted. A server that does not report any more, and whose lease was
//! left behind, makes up for one that never did; only its discovery document can show that.

use super::api_servers::{ApiServers, ServerVersion};
use restow_api::StorageVersionHash;
use std::collections::{BTreeMap, BTreeSet};

/// The groups with an APIService that names a Service; or why the APIServices cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregation(pub Result<BTreeMap<String, AggregatedGroup>, String>);

/// A group that aggregated API servers serve, perhaps not in all its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatedGroup {
    /// The services, as in `namespace/name`, by the name of the APIService, such as `v1.example.com`.
    pub services: BTreeMap<String, String>,
    /// The servers behind them, by address or Pod, including those that are not ready; or why they are unknown.
    pub addresses: Result<BTreeSet<String>, String>,
    /// What else changes when a server is added or removed, by the name of the object: the generation of the EndpointSlice.
    pub marks: BTreeMap<String, String>,
}

/// An aggregated API server, as its identity lease at the main API server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatedServer {
    /// The control plane that it belongs to.
    pub control_plane: String,
    /// Whether it writes only while the lease exists.
    pub is_fenced: bool,
    /// The id of the store that it writes to; `None` if the lease does not name it.
    pub store: Option<String>,
    /// Which process of it: the uid and the holder of the lease.
    pub process: String,
}

/// Who serves a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// The API servers themselves.
    ApiServers,
    /// Servers behind a Service.
    Aggregated(AggregatedGroup),
    /// Unknown, for this reason.
    Unknown(String),
}

/// The subject of a reason that concerns no server in particular.
const THEY: &str = "aggregated API servers";

impl Default for Aggregation {
    fn default() -> Self {
        Aggregation(Ok(BTreeMap::new()))
    }
}

impl Aggregation {
    /// Who serves the resources of a group. One aggregated version is enough: its servers may write the same objects.
    pub fn of_group(&self, group: &str) -> ServedBy {
        // The core group cannot be aggregated.
        if group.is_empty() {
            return ServedBy::ApiServers;
        }
        match &self.0 {
            Ok(groups) => groups.get(group).cloned().map_or(ServedBy::ApiServers, ServedBy::Aggregated),
            Err(why) => ServedBy::Unknown(format!(
                "the APIServices cannot be listed, so it is unknown whether aggregated API servers serve it: {why}"
            )),
        }
    }
}

impl AggregatedGroup {
    /// Who serves it, as text.
    pub fn describe(&self) -> String {
        let passes_on = |(api_service, service): (&String, &String)| {
            format!("the APIService {api_service} passes requests on to the service {service}")
        };
        self.services.iter().map(passes_on).collect::<Vec<_>>().join(", and ")
    }

    /// What the reports of its servers show, and every reason why there may be a server that writes something else.
    pub(super) fn evaluate(&self, servers: &ApiServers, entries: &[ServerVersion]) -> Vec<ServerVersion> {
        let doubt = |(who, why): (String, String)| (who, why, StorageVersionHash::unknown());
        let mut said = entries.to_vec();
        said.extend(without_fence(servers, entries).map(doubt));
        said.extend(without_report(servers, entries).map(doubt));
        said.extend(several_stores(servers, entries).map(|words| doubt((THEY.to_owned(), words))));
        if let Err(why) = &servers.identities {
            let words = format!("serve it, and the identity leases in \"kube-system\" cannot be read: {why}");
            said.push(doubt((THEY.to_owned(), words)));
        }
        let reporting: BTreeSet<&String> = entries.iter().map(|(id, _, _)| id).collect();
        said.extend(self.uncounted(reporting.len()).map(|words| doubt((THEY.to_owned(), words))));
        said
    }

    /// Why there may be more servers than reports; `None` if there are not.
    fn uncounted(&self, reports: usize) -> Option<String> {
        let described = self.describe();
        let words = match &self.addresses {
            _ if reports == 0 => {
                format!("and they cannot be queried one by one, and none of them reports what it stores ({described})")
            }
            Err(why) => format!("and it cannot be told how many there are ({described}): {why}"),
            Ok(addresses) if addresses.is_empty() => {
                format!("and it cannot be told how many there are, because no EndpointSlice names them ({described})")
            }
            Ok(addresses) if addresses.len() > reports => {
                let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
                format!(
                    "and not each of them reports what it stores ({described}): {} reports, but the EndpointSlices name {} \
                     ({})",
                    reports,
                    addresses.len(),
                    names.join(", ")
                )
            }
            Ok(_) => return None,
        };
        Some(format!("serve it, {words}"))
    }

    /// What must not change while objects are rewritten, by the name of the object: a server that was restarted, added or
    /// removed has not processed any object.
    pub(super) fn marks(&self, servers: &ApiServers, entries: &[ServerVersion]) -> BTreeMap<String, String> {
        let process = |id: &String| Some((format!("Lease {id}"), servers.aggregated.get(id)?.process.clone()));
        let leases = entries.iter().filter_map(|(id, _, _)| process(id));
        let services = self.services.iter().map(|(name, service)| (format!("APIService {name}"), service.clone()));
        leases.chain(services).chain(self.marks.clone()).collect()
    }
}

/// The servers that report without a lease that fences their writes.
fn without_fence(servers: &ApiServers, entries: &[ServerVersion]) -> impl Iterator<Item = (String, String)> {
    let is_fenced = |id: &String| servers.aggregated.get(id).is_some_and(|server| server.is_fenced);
    let unfenced = entries.iter().filter(move |(id, _, _)| !is_fenced(id));
    unfenced.map(|(id, _, _)| {
        (id.clone(), "reports, but no identity lease says that it writes only while that lease exists".to_owned())
    })
}

/// The servers that hold a lease in a control plane of which others report, and do not report.
fn without_report(servers: &ApiServers, entries: &[ServerVersion]) -> impl Iterator<Item = (String, String)> {
    let reports = |name: &String| entries.iter().any(|(id, _, _)| id == name);
    let reporting = servers.aggregated.iter().filter(|(name, _)| reports(name));
    let control_planes: BTreeSet<&String> = reporting.map(|(_, server)| &server.control_plane).collect();
    let silent = servers
        .aggregated
        .iter()
        .filter(move |(name, server)| control_planes.contains(&server.control_plane) && !reports(name));
    silent.map(|(name, _)| (name.clone(), "holds an identity lease and does not report".to_owned()))
}

/// Why the servers that report may have different objects; `None` if all of them have one store. Each request reaches any of
/// them, so that a pass would see objects of one store and rewrite those of another.
fn several_stores(servers: &ApiServers, entries: &[ServerVersion]) -> Option<String> {
    let mut stores: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, _, _) in entries {
        let store = servers.aggregated.get(id).and_then(|server| server.store.as_deref());
        stores.entry(store.unwrap_or("an unknown store")).or_default().push(id);
    }
    let described = || stores.iter().map(|(store, ids)| format!("{} in {store}", ids.join(", "))).collect::<Vec<_>>();
    let is_one = entries.len() < 2 || (stores.len() == 1 && !stores.contains_key("an unknown store"));
    (!is_one).then(|| {
        format!(
            "serve it, and do not all store it in the same place, while a request reaches any of them ({})",
            described().join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(addresses: &[&str]) -> AggregatedGroup {
        AggregatedGroup {
            services: BTreeMap::from([("v1.example.com".to_owned(), "n/s".to_owned())]),
            addresses: Ok(addresses.iter().map(ToString::to_string).collect()),
            marks: BTreeMap::from([("EndpointSlice n/s-1".to_owned(), "1".to_owned())]),
        }
    }

    fn server(control_plane: &str) -> AggregatedServer {
        AggregatedServer {
            control_plane: control_plane.to_owned(),
            is_fenced: true,
            store: Some("store-1".to_owned()),
            process: "1".to_owned(),
        }
    }

    fn servers(aggregated: &[(&str, AggregatedServer)]) -> ApiServers {
        let aggregated = aggregated.iter().map(|(name, server)| (name.to_string(), server.clone())).collect();
        ApiServers { aggregated, ..ApiServers::default() }
    }

    fn entries(ids: &[&str]) -> Vec<ServerVersion> {
        let entry = |id: &&str| (id.to_string(), "example.com/v1".to_owned(), StorageVersionHash::new("v1"));
        ids.iter().map(entry).collect()
    }

    #[test]
    fn a_group_with_a_version_behind_a_service_is_served_by_others() {
        let aggregation = Aggregation(Ok(BTreeMap::from([("example.com".to_owned(), group(&[]))])));
        let ServedBy::Aggregated(found) = aggregation.of_group("example.com") else { panic!("{aggregation:?}") };
        assert!(found.describe().contains("v1.example.com") && found.describe().contains("n/s"));
        assert_eq!(aggregation.of_group("apps"), ServedBy::ApiServers);
        assert_eq!(aggregation.of_group(""), ServedBy::ApiServers);
        let unreadable = Aggregation(Err("forbidden".into()));
        assert!(matches!(unreadable.of_group("apps"), ServedBy::Unknown(words) if words.contains("forbidden")));
        assert_eq!(unreadable.of_group(""), ServedBy::ApiServers);
    }

    /// Checks which doubt there is beside what these servers report.
    fn check(group: &AggregatedGroup, servers: &ApiServers, ids: &[&str], doubt: Option<&str>) {
        let said = group.evaluate(servers, &entries(ids));
        let (reported, doubts) = said.split_at(ids.len());
        assert_eq!(reported, entries(ids));
        assert!(doubts.iter().all(|(_, _, hash)| hash.is_unknown()));
        let doubts: Vec<String> = doubts.iter().map(|(who, why, _)| format!("{who} {why}")).collect();
        match doubt {
            None => assert!(doubts.is_empty(), "{doubts:?}"),
            Some(words) => assert!(doubts.iter().any(|doubt| doubt.contains(words)), "{doubts:?} lack {words:?}"),
        }
    }

    #[test]
    fn every_server_behind_the_service_has_to_report_under_a_lease_that_fences_it() {
        let two = servers(&[("a", server("garden")), ("b", server("garden"))]);
        check(&group(&["1", "2"]), &two, &["a", "b"], None);
        check(&group(&["1"]), &two, &["a", "b"], None);
        let one = servers(&[("a", server("garden"))]);
        check(&group(&["1", "2"]), &one, &["a", "a"], Some("1 reports, but the EndpointSlices name 2 (1, 2)"));
        check(&group(&["1"]), &two, &["a"], Some("b holds an identity lease and does not report"));
        check(&group(&["1"]), &servers(&[]), &["a"], Some("a reports, but no identity lease"));
        let unfenced = servers(&[("a", AggregatedServer { is_fenced: false, ..server("garden") })]);
        check(&group(&["1"]), &unfenced, &["a"], Some("a reports, but no identity lease"));
        check(&group(&[]), &two, &["a", "b"], Some("no EndpointSlice names them"));
        check(&group(&["1"]), &two, &[], Some("none of them reports"));
        check(&group(&[]), &two, &[], Some("none of them reports"));
        let unreadable = AggregatedGroup { addresses: Err("forbidden".into()), ..group(&[]) };
        check(&unreadable, &two, &["a", "b"], Some("cannot be told how many there are"));
        let unreadable = ApiServers { identities: Err("forbidden".into()), ..two };
        check(
            &group(&["1", "2"]),
            &unreadable,
            &["a", "b"],
            Some("leases in \"kube-system\" cannot be read: forbidden"),
        );
    }

    #[test]
    fn servers_behind_one_service_have_to_share_a_store() {
        let on = |store: Option<&str>| AggregatedServer { store: store.map(str::to_owned), ..server("garden") };
        for (stores, doubt) in [
            ([Some("x"), Some("x")], None),
            (
                [Some("x"), Some("y")],
                Some("do not all store it in the same place, while a request reaches any of them (a in x; b in y)"),
            ),
            ([Some("x"), None], Some("b in")),
            ([None, None], Some("a, b in an unknown store")),
        ] {
            let both = servers(&[("a", on(stores[0])), ("b", on(stores[1]))]);
            check(&group(&["1", "2"]), &both, &["a", "b"], doubt);
        }
        check(&group(&["1"]), &servers(&[("a", on(None))]), &["a"], None);
    }

    #[test]
    fn servers_of_other_control_planes_need_not_report() {
        let servers = servers(&[("a", server("garden")), ("x", server("metrics"))]);
        check(&group(&["1"]), &servers, &["a"], None);
    }

    #[test]
    fn a_server_that_was_restarted_added_or_removed_changes_a_mark() {
        let both = [("a", server("garden")), ("x", server("metrics"))];
        let marks = |group: &AggregatedGroup, both: &[_]| group.marks(&servers(both), &entries(&["a"]));
        let before = marks(&group(&["1"]), &both);
        assert_eq!(before, marks(&group(&["1"]), &both));
        let again = |process: &str| AggregatedServer { process: process.to_owned(), ..server("garden") };
        assert_ne!(before, marks(&group(&["1"]), &[("a", again("2")), both[1].clone()]));
        let other = AggregatedServer { process: "2".to_owned(), ..server("metrics") };
        assert_eq!(before, marks(&group(&["1"]), &[both[0].clone(), ("x", other)]), "it does not report this resource");
        let changed = BTreeMap::from([("EndpointSlice n/s-1".to_owned(), "2".to_owned())]);
        assert_ne!(before, marks(&AggregatedGroup { marks: changed, ..group(&["1"]) }, &both));
        let moved = BTreeMap::from([("v1.example.com".to_owned(), "n/other".to_owned())]);
        assert_ne!(before, marks(&AggregatedGroup { services: moved, ..group(&["1"]) }, &both));
    }
}
