//! What someone asks to do, as far as permission depends on it.

use crate::User;
use restow_apimachinery::go_syntax::quote;

/// What someone asks to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// Something with API objects.
    Resource(ResourceAttributes),
    /// Something with a path that is not of the API's objects, such as `/healthz`.
    Path {
        /// The HTTP method in lower case.
        verb: String,
        /// The path.
        path: String,
    },
}

/// What someone asks to do with API objects. Empty texts mean: none, or all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAttributes {
    /// The verb: `get`, `deletecollection`.
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The version in that group.
    pub version: String,
    /// The resource: `pods`.
    pub resource: String,
    /// The subresource: `status`.
    pub subresource: String,
    /// The namespace; empty for cluster-wide requests.
    pub namespace: String,
    /// The object's name; empty for whole collections.
    pub name: String,
}

impl Attributes {
    /// A request for a path.
    pub fn path(verb: impl Into<String>, path: impl Into<String>) -> Self {
        Attributes::Path { verb: verb.into(), path: path.into() }
    }

    /// The verb.
    pub fn verb(&self) -> &str {
        match self {
            Attributes::Resource(resource) => &resource.verb,
            Attributes::Path { verb, .. } => verb,
        }
    }

    /// The namespace; empty for cluster-wide requests and paths.
    pub fn namespace(&self) -> &str {
        match self {
            Attributes::Resource(resource) => &resource.namespace,
            Attributes::Path { .. } => "",
        }
    }

    /// What a refusal says, in Kubernetes' words: who cannot do what, and the authorizer's reason if there is one.
    pub fn forbidden_message(&self, user: &User, reason: &str) -> String {
        let message = without_markup(&self.refusal(user));
        if reason.is_empty() { message } else { format!("{message}: {reason}") }
    }

    fn refusal(&self, user: &User) -> String {
        let user = quote(&user.name);
        match self {
            Attributes::Path { verb, path } => format!("User {user} cannot {verb} path {}", quote(path)),
            Attributes::Resource(asked) => {
                let scope = match asked.namespace.as_str() {
                    "" => "at the cluster scope".to_string(),
                    namespace => format!("in the namespace {}", quote(namespace)),
                };
                let (resource, group) = (quote(&asked.combined_resource()), quote(&asked.group));
                format!("User {user} cannot {} resource {resource} in API group {group} {scope}", asked.verb)
            }
        }
    }
}

impl ResourceAttributes {
    /// The resource, with a slash and the subresource if there is one.
    pub fn combined_resource(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

impl From<ResourceAttributes> for Attributes {
    fn from(resource: ResourceAttributes) -> Self {
        Attributes::Resource(resource)
    }
}

/// Names come from the request; an answer that a browser shows must not turn them into a page.
fn without_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_those_of_kubernetes() {
        let check = |attributes: Attributes, reason: &str, expected: &str| {
            assert_eq!(attributes.forbidden_message(&User::named("ann"), reason), expected);
        };
        let pods = ResourceAttributes { verb: "list".into(), resource: "pods".into(), ..Default::default() };
        check(
            pods.clone().into(),
            "",
            r#"User "ann" cannot list resource "pods" in API group "" at the cluster scope"#,
        );
        let scale = ResourceAttributes {
            group: "apps".into(),
            subresource: "scale".into(),
            namespace: "web".into(),
            resource: "deployments".into(),
            ..pods
        };
        check(
            scale.into(),
            "because",
            r#"User "ann" cannot list resource "deployments/scale" in API group "apps" in the namespace "web": because"#,
        );
        check(Attributes::path("get", "/<b>"), "", r#"User "ann" cannot get path "/&lt;b&gt;""#);
    }
}
