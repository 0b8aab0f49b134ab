//! What clients may change in a StorageVersion. API servers of the main control plane report for themselves, in the store; the
//! entries of all others, aggregated API servers, are written by clients.
//!
//! If a client could change or remove the entry of a server that runs, that server would write what is not reported, and an
//! agreement could be made up.

use crate::participants::{Participants, Presence};
use restow_api::internal_apiserver::ServerStorageVersion;

/// The entries after a client has written `written`: those of servers that report for themselves stay as they are.
pub fn client_entries(
    written: Vec<ServerStorageVersion>,
    stored: &[ServerStorageVersion],
    participants: &Participants,
    main_control_plane: &str,
) -> Vec<ServerStorageVersion> {
    let reports_itself = |entry: &ServerStorageVersion| reports_itself(&entry.api_server_id, participants, main_control_plane);
    let kept = stored.iter().filter(|entry| reports_itself(entry)).cloned();
    kept.chain(written.into_iter().filter(|entry| !reports_itself(entry))).collect()
}

/// The servers whose entries no client may remove.
pub fn own_reporters<'e>(
    stored: &'e [ServerStorageVersion],
    participants: &Participants,
    main_control_plane: &str,
) -> Vec<&'e str> {
    let ids = stored.iter().map(|entry| entry.api_server_id.as_str());
    ids.filter(|id| reports_itself(id, participants, main_control_plane)).collect()
}

/// Whether a server takes part, and reports for itself. One whose lease cannot be read may.
fn reports_itself(id: &str, participants: &Participants, main_control_plane: &str) -> bool {
    match participants.presence(id) {
        Presence::Gone => false,
        Presence::Unknown => true,
        Presence::Participating => participants.control_plane(id) == Some(main_control_plane),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = "kube-apiserver";

    fn entry(id: &str, version: &str) -> ServerStorageVersion {
        ServerStorageVersion { api_server_id: id.into(), encoding_version: version.into(), ..Default::default() }
    }

    fn participants() -> Participants {
        let id = |text: &str| text.parse().unwrap();
        let listed = Participants::listed([id("some-lease")]).with_unread(id("unread"));
        listed.with_server(id("a"), MAIN).with_server(id("b"), MAIN).with_server(id("plot"), "garden")
    }

    fn check(written: &[(&str, &str)], stored: &[(&str, &str)], expected: &[(&str, &str)]) {
        let entries = |of: &[(&str, &str)]| of.iter().map(|(id, version)| entry(id, version)).collect::<Vec<_>>();
        let found = client_entries(entries(written), &entries(stored), &participants(), MAIN);
        assert_eq!(found, entries(expected), "{written:?} over {stored:?}");
    }

    #[test]
    fn entries_of_main_api_servers_that_run_cannot_be_changed_removed_or_made_up_by_clients() {
        check(&[("a", "v7")], &[("a", "v1")], &[("a", "v1")]);
        check(&[], &[("a", "v1"), ("b", "v2")], &[("a", "v1"), ("b", "v2")]);
        check(&[("a", "v1"), ("b", "v1")], &[("a", "v1")], &[("a", "v1")]);
        check(&[], &[("unread", "v1")], &[("unread", "v1")]);
    }

    #[test]
    fn clients_write_the_entries_of_aggregated_servers_and_remove_those_of_servers_that_are_gone() {
        check(&[("plot", "v2")], &[("a", "v1"), ("plot", "v1")], &[("a", "v1"), ("plot", "v2")]);
        check(&[], &[("a", "v1"), ("plot", "v1"), ("gone", "v1")], &[("a", "v1")]);
        check(&[("gone", "v1")], &[("gone", "v1")], &[("gone", "v1")]);
    }

    #[test]
    fn servers_that_report_for_themselves_keep_a_storage_version_from_being_deleted() {
        let stored = [entry("a", "v1"), entry("plot", "v1"), entry("gone", "v1"), entry("unread", "v1")];
        assert_eq!(own_reporters(&stored, &participants(), MAIN), ["a", "unread"]);
    }
}
