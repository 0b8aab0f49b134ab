//! Attributes of a request that authorization depends on.

use crate::User;
use restow_apimachinery::go_syntax::quote;

/// The attributes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// A request for API objects.
    Resource(ResourceAttributes),
    /// A request for a nonResourceURL, such as `/healthz`.
    Path {
        /// The HTTP method in lower case.
        verb: String,
        /// The path.
        path: String,
    },
}

/// The attributes of a request for API objects. An empty string means that the request does not name this part.
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
    /// The namespace; empty at the cluster scope.
    pub namespace: String,
    /// The object's name; empty for requests on collections.
    pub name: String,
}

impl Attributes {
    /// A request for a nonResourceURL.
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

    /// The namespace; empty at the cluster scope and for nonResourceURLs.
    pub fn namespace(&self) -> &str {
        match self {
            Attributes::Resource(resource) => &resource.namespace,
            Attributes::Path { .. } => "",
        }
    }

    /// The message of a 403 response, as in Kubernetes: the user, the request, and the authorizer's reason if it has one.
    pub fn forbidden_message(&self, user: &User, reason: &str) -> String {
        let message = escape_html(&self.refusal(user));
        if reason.is_empty() { message } else { format!("{message}: {reason}") }
    }

    fn refusal(&self, user: &User) -> String {
        let user = quote(&user.name);
        match self {
            Attributes::Path { verb, path } => format!("User {user} cannot {verb} path {}", quote(path)),
            Attributes::Resource(attributes) => {
                let scope = match attributes.namespace.as_str() {
                    "" => "at the cluster scope".to_string(),
                    namespace => format!("in the namespace {}", quote(namespace)),
                };
                let (resource, group) = (quote(&attributes.combined_resource()), quote(&attributes.group));
                format!("User {user} cannot {} resource {resource} in API group {group} {scope}", attributes.verb)
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

/// Escapes HTML: the names come from the request, and a browser must not render them as markup.
fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_messages_are_those_of_kubernetes() {
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
