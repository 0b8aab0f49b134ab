//! The request info: the resource or path and the verb of a request, from its method and path.

use crate::resource::Verb;
use std::sync::Arc;

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestTarget {
    /// A resource, an object or a subresource.
    Resource(Arc<ResourceTarget>),
    /// A non-resource path, such as `/healthz` or `/apis`.
    Path(String),
}

/// A resource, an object or a subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceTarget {
    /// The group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The namespace; empty for all namespaces, or for cluster-scoped resources.
    pub namespace: String,
    /// The resource's plural name.
    pub resource: String,
    /// The object's name; empty for the collection.
    pub name: String,
    /// The subresource and the rest of the path; empty for the object itself.
    pub subresource: String,
    /// The verb.
    pub verb: Verb,
}

/// Parses the target of a request. `watch` says whether the query requests a watch.
///
/// The path is decoded once; authorization and handlers use the result. As in Kubernetes, it is not normalized: `a//b`
/// and `a/./b` are not `a/b`.
pub(crate) fn target(method: &http::Method, path: &str, watch: bool) -> RequestTarget {
    let path = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    match resource_target(method, &path, watch) {
        Some(target) => RequestTarget::Resource(Arc::new(target)),
        None => RequestTarget::Path(path.into_owned()),
    }
}

/// The segments of a path; a segment between two slashes may be empty.
pub(crate) fn parts(path: &str) -> Vec<&str> {
    match path.trim_matches('/') {
        "" => Vec::new(),
        path => path.split('/').collect(),
    }
}

fn resource_target(method: &http::Method, path: &str, watch: bool) -> Option<ResourceTarget> {
    let parts = parts(path);
    let (group, rest) = match parts.as_slice() {
        ["api", rest @ ..] => ("", rest),
        ["apis", group, rest @ ..] => (*group, rest),
        _ => return None,
    };
    if parts.contains(&"") {
        return None;
    }
    // The deprecated form of a watch has `watch` in the path.
    let (version, rest, watching) = match rest {
        [version, "watch", rest @ ..] => (version, rest, Watching::InPath),
        [version, rest @ ..] if watch => (version, rest, Watching::InQuery),
        [version, rest @ ..] => (version, rest, Watching::No),
        [] => return None,
    };
    let (namespace, rest) = split_namespace(rest);
    let (resource, rest) = rest.split_first()?;
    let name = rest.first().copied().unwrap_or_default();
    let subresource = rest.get(1..).unwrap_or_default().join("/");
    let verb = verb(method, !name.is_empty(), watching)?;
    let [group, version, namespace, resource, name] = [group, version, namespace, resource, name].map(String::from);
    Some(ResourceTarget { group, version, namespace, resource, name, subresource, verb })
}

/// Splits `namespaces/NAME/RESOURCE…`. A namespace itself and its subresources are not split.
fn split_namespace<'a, 'b>(parts: &'b [&'a str]) -> (&'a str, &'b [&'a str]) {
    match parts {
        ["namespaces", _, "status" | "finalize", ..] => ("", parts),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (namespace, rest),
        _ => ("", parts),
    }
}

/// How a request asks for a watch.
#[derive(Clone, Copy)]
enum Watching {
    No,
    InQuery,
    InPath,
}

fn verb(method: &http::Method, named: bool, watching: Watching) -> Option<Verb> {
    Some(match (method.as_str(), named, watching) {
        ("GET" | "HEAD", _, Watching::InPath) => Verb::Watch,
        (_, _, Watching::InPath) => return None,
        // A request for one object is a get, even if the query requests a watch.
        ("GET" | "HEAD", true, _) => Verb::Get,
        ("GET" | "HEAD", false, Watching::InQuery) => Verb::Watch,
        ("GET" | "HEAD", false, Watching::No) => Verb::List,
        ("POST", ..) => Verb::Create,
        ("PUT", ..) => Verb::Update,
        ("PATCH", ..) => Verb::Patch,
        ("DELETE", true, _) => Verb::Delete,
        ("DELETE", false, _) => Verb::DeleteCollection,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, path: &str, expected: Option<(&str, &str, &str, &str, &str, &str, Verb)>) {
        let method = http::Method::from_bytes(method.as_bytes()).unwrap();
        let target = match target(&method, path, false) {
            RequestTarget::Resource(target) => Some(target),
            RequestTarget::Path(_) => None,
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
    fn paths_are_parsed_as_in_kubernetes() {
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
        check("GET", "/api/v1/watch/namespaces/a/pods/b", Some(("", "v1", "a", "pods", "b", "", Verb::Watch)));
        check("GET", "/api/v1/namespaces/a%2Fpods/", Some(("", "v1", "a", "pods", "", "", Verb::List)));
        check("GET", "/api/v1/namespaces/../pods", Some(("", "v1", "..", "pods", "", "", Verb::List)));
        check("GET", "/api/v1/pods/b/proxy/x/y", Some(("", "v1", "", "pods", "b", "proxy/x/y", Verb::Get)));
        check("GET", "/api/v1/namespaces/a/status/x", Some(("", "v1", "", "namespaces", "a", "status/x", Verb::Get)));
        for path in ["/api/v1//pods", "/api/v1/namespaces//pods", "/api//v1/pods", "/apis//v1/pods", "/api/v1/watch"] {
            check("GET", path, None);
        }
        check("DELETE", "/api/v1/watch/namespaces/a/pods/b", None);
        for path in ["/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/version"] {
            check("GET", path, None);
        }
    }

    #[test]
    fn the_watch_query_applies_only_to_lists() {
        let verb = |path: &str| match target(&http::Method::GET, path, true) {
            RequestTarget::Resource(target) => Some(target.verb),
            RequestTarget::Path(_) => None,
        };
        assert_eq!(verb("/api/v1/namespaces/a/secrets"), Some(Verb::Watch));
        assert_eq!(verb("/api/v1/namespaces/a/secrets/b"), Some(Verb::Get));
    }
}
