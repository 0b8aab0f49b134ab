//! What a request is about, read off its method and path.

use crate::resource::Verb;
use std::sync::Arc;

/// A request's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A resource, or something in it.
    Resource(Arc<ResourceTarget>),
    /// Anything else, such as `/healthz` or `/apis`.
    Path(String),
}

/// A resource, or something in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceTarget {
    /// The group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The namespace; empty for all, or for resources without.
    pub namespace: String,
    /// The resource's plural name.
    pub resource: String,
    /// The object's name; empty for the collection.
    pub name: String,
    /// The subresource and whatever follows it; empty for the object itself.
    pub subresource: String,
    /// What is to be done.
    pub verb: Verb,
}

/// Reads a request's target. `watch` tells whether the query asks for a watch.
pub(crate) fn target(method: &http::Method, path: &str, watch: bool) -> Target {
    match resource_target(method, path, watch) {
        Some(target) => Target::Resource(Arc::new(target)),
        None => Target::Path(path.to_string()),
    }
}

fn resource_target(method: &http::Method, path: &str, watch: bool) -> Option<ResourceTarget> {
    let mut parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
    let start = match parts.first()?.as_str() {
        "api" => 1,
        "apis" => 2,
        _ => return None,
    };
    if parts.len() <= start + 1 {
        return None;
    }
    let mut rest = parts.split_off(start);
    let group = if start == 2 { parts.swap_remove(1) } else { String::new() };
    let version = rest.remove(0);
    // The old way to watch puts the word in the path.
    let watch_path = rest.first().is_some_and(|part| part == "watch");
    if watch_path {
        rest.remove(0);
    }
    let (namespace, rest) = split_namespace(rest)?;
    let mut rest = rest.into_iter();
    let resource = rest.next()?;
    let name = rest.next().unwrap_or_default();
    let subresource = rest.collect::<Vec<_>>().join("/");
    let verb = verb(method, !name.is_empty(), watch || watch_path)?;
    Some(ResourceTarget { group, version, namespace, resource, name, subresource, verb })
}

/// Splits `namespaces/NAME/RESOURCE…`. A namespace itself, and what lies beneath it, is a resource of its own.
fn split_namespace(mut parts: Vec<String>) -> Option<(String, Vec<String>)> {
    let in_namespace = parts.first()? == "namespaces"
        && parts.len() > 2
        && !(parts.len() == 3 && matches!(parts[2].as_str(), "status" | "finalize"));
    if !in_namespace {
        return Some((String::new(), parts));
    }
    let rest = parts.split_off(2);
    Some((parts.swap_remove(1), rest))
}

fn verb(method: &http::Method, named: bool, watch: bool) -> Option<Verb> {
    Some(match (method.as_str(), named) {
        ("GET" | "HEAD", _) if watch => Verb::Watch,
        ("GET" | "HEAD", true) => Verb::Get,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", _) => Verb::Create,
        ("PUT", _) => Verb::Update,
        ("PATCH", _) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return None,
    })
}

fn decode(part: &str) -> String {
    percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, path: &str, expected: Option<(&str, &str, &str, &str, &str, &str, Verb)>) {
        let method = http::Method::from_bytes(method.as_bytes()).unwrap();
        let target = match target(&method, path, false) {
            Target::Resource(target) => Some(target),
            Target::Path(_) => None,
        };
        let found = target.as_ref().map(|t| {
            (
                t.group.as_str(),
                t.version.as_str(),
                t.namespace.as_str(),
                t.resource.as_str(),
                t.name.as_str(),
                t.subresource.as_str(),
                t.verb,
            )
        });
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn paths_are_read_as_kubernetes_reads_them() {
        check("GET", "/api/v1/pods", Some(("", "v1", "", "pods", "", "", Verb::List)));
        check("GET", "/api/v1/namespaces/a/pods/b", Some(("", "v1", "a", "pods", "b", "", Verb::Get)));
        check("PUT", "/api/v1/namespaces/a/pods/b/status", Some(("", "v1", "a", "pods", "b", "status", Verb::Update)));
        check("GET", "/api/v1/namespaces/a", Some(("", "v1", "", "namespaces", "a", "", Verb::Get)));
        check(
            "PUT",
            "/api/v1/namespaces/a/finalize",
            Some(("", "v1", "", "namespaces", "a", "finalize", Verb::Update)),
        );
        check(
            "POST",
            "/apis/apps/v1/namespaces/a/deployments",
            Some(("apps", "v1", "a", "deployments", "", "", Verb::Create)),
        );
        check(
            "DELETE",
            "/apis/apps/v1/deployments",
            Some(("apps", "v1", "", "deployments", "", "", Verb::DeleteCollection)),
        );
        check("GET", "/api/v1/watch/namespaces/a/pods", Some(("", "v1", "a", "pods", "", "", Verb::Watch)));
        check(
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            Some(("rbac.authorization.k8s.io", "v1", "", "clusterroles", "system:node", "", Verb::Get)),
        );
        for path in ["/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/version"] {
            check("GET", path, None);
        }
    }
}
