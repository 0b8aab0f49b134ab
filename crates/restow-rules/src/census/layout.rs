//! The key layout: which keys belong to which resource, and which keys are not objects.
//!
//! Encrypted and unreadable values can be assigned by their keys only.

use super::{Encoding, KindTarget};

/// Stands for all folders beyond the limit of a census.
pub const FURTHER_FOLDERS: &str = "(further folders)";

/// Folders of kube-apiserver that are not named after their resource.
const SPECIAL_FOLDERS: &[(&str, &str)] = &[
    ("/controllers", "replicationcontrollers"),
    ("/ingress", "ingresses.networking.k8s.io"),
    ("/minions", "nodes"),
    ("/services/endpoints", "endpoints"),
    ("/services/specs", "services"),
];

/// First parts of keys that are followed by one more part before the names: Restow's groups without a dot, and folders with
/// subfolders.
const WITH_SUBFOLDERS: &[&str] = &["core", "apps", "autoscaling", "batch", "policy", "services", "ranges", "restow"];

/// Records of API servers that exist in one version only: allocated ranges of addresses and ports, and the addresses of the
/// API servers.
const OWN_FOLDERS: &[&str] = &["/ranges", "/masterleases", "/peerserverleases"];

/// Restow's own records. No resource is stored there: a group of custom resources has a dot in its name.
const RESTOW_FOLDER: &str = "/restow";

/// The key and value that kine, an SQL database behind kube-apiserver, has for etcd's health check.
const HEALTH: (&str, &[u8]) = ("/health", br#"{"health":"true"}"#);

/// The folder of a key: that of its resource, if it is the key of an object.
pub(super) fn folder_of(key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    let mut parts = key.split('/').filter(|part| !part.is_empty());
    let first = parts.next().unwrap_or_default();
    match parts.next() {
        Some(second) if first.contains('.') || WITH_SUBFOLDERS.contains(&first) => format!("/{first}/{second}"),
        _ => format!("/{first}"),
    }
}

/// Whether a value that is not an object is a known record of API servers.
pub(super) fn is_own_record(folder: &str, value: &[u8]) -> bool {
    is_in(folder, RESTOW_FOLDER) || (folder, value) == HEALTH
}

/// Whether objects in this folder, encrypted or not, are records of API servers.
pub(super) fn is_of_servers_alone(folder: &str) -> bool {
    OWN_FOLDERS.iter().any(|own| is_in(folder, own))
}

/// Whether this is a record of kube-apiserver that has one version only.
pub(super) fn is_range(folder: &str, group: &str, kind: &str, encoding: &Encoding) -> bool {
    let (Encoding::Json { version } | Encoding::Protobuf { version }) = encoding else { return false };
    is_in(folder, "/ranges") && (group, kind, version.as_str()) == ("", "RangeAllocation", "v1")
}

fn is_in(folder: &str, parent: &str) -> bool {
    folder.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The resource whose objects are stored in this folder, in the layout of kube-apiserver or of Restow; `None` if unknown.
pub fn resource_of_folder<'t>(folder: &str, targets: &'t [KindTarget]) -> Option<&'t KindTarget> {
    if let Some((_, special)) = SPECIAL_FOLDERS.iter().find(|(special, _)| *special == folder) {
        return targets.iter().find(|target| target.resource == *special);
    }
    let (first, second) = match folder.strip_prefix('/')?.split_once('/') {
        Some((first, second)) => (first, Some(second)),
        None => (folder.strip_prefix('/')?, None),
    };
    match second {
        Some(plural) => {
            let group = if first == "core" { "" } else { first };
            targets.iter().find(|target| resource_is(target, plural, group))
        }
        // kube-apiserver omits the group in the keys of built-in resources.
        None => {
            let mut named = targets.iter().filter(|target| target.plural() == first && target.defined.is_none());
            let one = named.next()?;
            named.all(|other| other.resource == one.resource).then_some(one)
        }
    }
}

/// The folders of a resource: in the layout of Restow, and in that of kube-apiserver.
pub fn folders_of_resource(target: &KindTarget) -> Vec<String> {
    let (plural, group) = target.resource.split_once('.').unwrap_or((&target.resource, ""));
    let with_group = format!("/{}/{plural}", if group.is_empty() { "core" } else { group });
    let special = SPECIAL_FOLDERS.iter().find(|(_, resource)| *resource == target.resource);
    let stock = match (special, &target.defined) {
        (Some((folder, _)), _) => Some(folder.to_string()),
        (None, None) => Some(format!("/{plural}")),
        (None, Some(_)) => None,
    };
    std::iter::once(with_group).chain(stock).collect()
}

fn resource_is(target: &KindTarget, plural: &str, group: &str) -> bool {
    match target.resource.split_once('.') {
        Some((name, of)) => (name, of) == (plural, group),
        None => target.resource == plural && group.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_in_the_folder_of_their_resource() {
        for (key, folder) in [
            ("/secrets/default/a", "/secrets"),
            ("/core/secrets/default/a", "/core/secrets"),
            ("/apps/deployments/default/a", "/apps/deployments"),
            ("/deployments/default/a", "/deployments"),
            ("/services/specs/default/a", "/services/specs"),
            ("/example.com/widgets/default/a", "/example.com/widgets"),
            ("/ranges/serviceips", "/ranges/serviceips"),
            ("/foreign", "/foreign"),
            ("foreign", "/foreign"),
            ("//core//secrets/a", "/core/secrets"),
            ("/", "/"),
        ] {
            assert_eq!(folder_of(key.as_bytes()), folder, "{key}");
        }
    }

    fn target(resource: &str, is_custom: bool) -> KindTarget {
        let group = resource.split_once('.').map(|(_, group)| group).unwrap_or_default();
        KindTarget {
            group: group.into(),
            kind: "Any".into(),
            resource: resource.into(),
            in_force: Err("unknown".into()),
            candidates: Vec::new(),
            defined: is_custom.then(Vec::new),
        }
    }

    #[test]
    fn folders_belong_to_resources_in_both_layouts() {
        let targets = [
            target("secrets", false),
            target("endpoints", false),
            target("ingresses.networking.k8s.io", false),
            target("deployments.apps", false),
            target("widgets.example.com", true),
            target("secrets.example.com", true),
            target("twins.a.k8s.io", false),
            target("twins.b.k8s.io", false),
        ];
        let named = |folder: &str| resource_of_folder(folder, &targets).map(|target| target.resource.as_str());
        for (folder, expected) in [
            ("/secrets", Some("secrets")),
            ("/core/secrets", Some("secrets")),
            ("/example.com/secrets", Some("secrets.example.com")),
            ("/services/endpoints", Some("endpoints")),
            ("/ingress", Some("ingresses.networking.k8s.io")),
            ("/deployments", Some("deployments.apps")),
            ("/apps/deployments", Some("deployments.apps")),
            ("/example.com/widgets", Some("widgets.example.com")),
            // A custom resource is never kept without its group, and what two are called is neither of them.
            ("/widgets", None),
            ("/twins", None),
            ("/a.k8s.io/twins", Some("twins.a.k8s.io")),
            ("/foreign", None),
            ("/", None),
            (FURTHER_FOLDERS, None),
        ] {
            assert_eq!(named(folder), expected, "{folder}");
        }
        assert_eq!(folders_of_resource(&targets[0]), ["/core/secrets", "/secrets"]);
        assert_eq!(folders_of_resource(&targets[1]), ["/core/endpoints", "/services/endpoints"]);
        assert_eq!(folders_of_resource(&targets[4]), ["/example.com/widgets"]);
        for target in targets.iter().filter(|target| target.plural() != "twins") {
            for folder in folders_of_resource(target) {
                assert_eq!(named(&folder), Some(target.resource.as_str()), "{folder}");
                assert_eq!(folder_of(format!("{folder}/a/b").as_bytes()), folder);
            }
        }
    }

    #[test]
    fn only_records_that_are_known_by_name_are_taken_for_such() {
        assert!(is_own_record("/restow/leaders", b"anything"));
        assert!(is_own_record("/health", br#"{"health":"true"}"#));
        for (folder, value) in
            [("/restowed", &b"x"[..]), ("/health", b"x"), ("/ranges/serviceips", b"x"), ("/secrets", b"")]
        {
            assert!(!is_own_record(folder, value), "{folder}");
        }
        let protobuf = |version: &str| Encoding::Protobuf { version: version.into() };
        assert!(is_range("/ranges/serviceips", "", "RangeAllocation", &protobuf("v1")));
        assert!(!is_range("/ranges/serviceips", "", "RangeAllocation", &protobuf("v2")));
        assert!(!is_range("/secrets", "", "RangeAllocation", &protobuf("v1")));
        assert!(is_of_servers_alone("/masterleases") && !is_of_servers_alone("/masterleasesx"));
    }
}
