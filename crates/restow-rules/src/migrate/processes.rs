//! Which process answers at each address, and whether it is the same as before.
//!
//! An address does not identify a server: behind a load balancer it leads to any of them, and two addresses can lead to
//! one. A lease does not either: it survives a restart. The start time in the metrics identifies a process. So every lease
//! has to have a process of its own that was queried, and these have to be the same at the end.

use super::api_servers::{ApiServers, RequiredServers};
use std::collections::{BTreeMap, BTreeSet};

/// The start time of the process at each address, or why it is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes(pub BTreeMap<String, Result<String, String>>);

/// The metric with the start time.
const START_TIME: &str = "process_start_time_seconds ";

impl Processes {
    /// Why it is unknown whether every server was queried; `None` if every one was.
    pub fn unidentified(&self, servers: &ApiServers) -> Option<String> {
        if servers.required == RequiredServers::Any {
            return None;
        }
        if let Some((address, why)) = self.0.iter().find_map(|(address, found)| Some((address, found.as_ref().err()?)))
        {
            return Some(format!("it is unknown which process answers at {address}: {why}"));
        }
        let distinct: BTreeSet<&String> = self.0.values().flatten().collect();
        let leases = servers.identities.as_ref().map_or(0, BTreeMap::len);
        let addresses: Vec<&str> = self.0.keys().map(String::as_str).collect();
        (distinct.len() != leases).then(|| {
            format!(
                "{leases} API servers hold identity leases in \"kube-system\", but behind the addresses {} there are {} \
                 processes, going by process_start_time_seconds in their metrics: not every API server can be queried",
                addresses.join(", "),
                distinct.len(),
            )
        })
    }

    /// What has changed since `start`, as text.
    pub fn change_since(&self, start: &Processes) -> Option<String> {
        let addresses: BTreeSet<&String> = start.0.keys().chain(self.0.keys()).collect();
        let is_other = |address: &&&String| start.0.get(**address) != self.0.get(**address);
        let changed = addresses.iter().find(is_other)?;
        Some(format!("the API server at {changed} was restarted, or another one answers there,"))
    }
}

/// The start time of a process, from its metrics; `None` if this part does not contain the whole line.
pub fn start_time(metrics: &str) -> Option<&str> {
    let ended = metrics.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    ended.filter_map(|line| line.strip_prefix(START_TIME)).map(str::trim).find(|time| !time.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(leases: usize) -> ApiServers {
        let names = (0..leases).map(|number| (format!("s{number}"), format!("s{number}_1"))).collect();
        ApiServers { identities: Ok(names), ..ApiServers::default() }
    }

    fn processes(started: &[(&str, &str)]) -> Processes {
        Processes(started.iter().map(|(address, time)| (address.to_string(), Ok(time.to_string()))).collect())
    }

    #[test]
    fn every_lease_has_a_process_of_its_own() {
        let three = processes(&[("1", "10"), ("2", "20"), ("3", "30")]);
        for (processes, leases, is_identified) in [
            (&processes(&[("1", "10")]), 1, true),
            (&three, 3, true),
            // An address more than there are processes hides nobody.
            (&processes(&[("1", "10"), ("2", "20"), ("3", "10")]), 2, true),
            // Three addresses of one load balancer.
            (&processes(&[("1", "10"), ("2", "10"), ("3", "10")]), 3, false),
            (&three, 2, false),
            (&three, 0, false),
            (&Processes::default(), 1, false),
        ] {
            let words = processes.unidentified(&servers(leases));
            assert_eq!(words.is_none(), is_identified, "{processes:?} {leases}: {words:?}");
        }
        let mut forbidden = three;
        forbidden.0.insert("2".into(), Err("403".into()));
        assert!(forbidden.unidentified(&servers(3)).is_some_and(|words| words.contains("answers at 2")));
        let whoever = ApiServers { required: RequiredServers::Any, ..servers(0) };
        assert_eq!(forbidden.unidentified(&whoever), None);
    }

    #[test]
    fn a_process_that_was_started_anew_is_noticed() {
        let start = processes(&[("1", "10"), ("2", "20")]);
        assert_eq!(start.change_since(&start), None);
        for end in [&[("1", "10"), ("2", "21")][..], &[("1", "10")], &[("1", "10"), ("2", "20"), ("3", "30")]] {
            assert!(processes(end).change_since(&start).is_some(), "{end:?}");
        }
    }

    #[test]
    fn the_start_time_is_read_from_a_whole_line() {
        for (metrics, expected) in [
            ("# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7e+09\nx 1\n", Some("1.7e+09")),
            ("process_start_time_seconds 1.7", None),
            ("a_process_start_time_seconds 5\n", None),
            ("process_start_time_seconds{a=\"b\"} 5\n", None),
            ("", None),
        ] {
            assert_eq!(start_time(metrics), expected, "{metrics}");
        }
    }
}
