//! Requests that cost the server much work and need few rights.

use super::{NAMESPACE, send};
use http::Method;
use std::fmt::Write;
use std::sync::Arc;

/// About how large a hostile body is: a little less than the largest that is read.
const BODY: usize = 2_700_000;
/// About how large a hostile selector is: a little less than the head of a request may be.
const SELECTOR: usize = 55_000;

/// One hostile request.
pub(super) struct Attack {
    pub(super) what: &'static str,
    method: Method,
    path: String,
    body: Option<(&'static str, String)>,
    /// Whether the server refuses it after that work.
    refused: bool,
}

impl Attack {
    /// Sends it as this user.
    pub(super) async fn send(&self, client: &kube::Client, user: &str) -> anyhow::Result<()> {
        let answer = send(client, self.method.clone(), &self.path, self.body.clone(), Some(user)).await;
        match answer {
            Err(error) if self.refused && error.to_string().starts_with('4') => Ok(()),
            answer => answer.map(|_| ()),
        }
    }
}

/// All hostile requests, for a collection of so many objects.
pub(super) fn all(objects: u64) -> Vec<Arc<Attack>> {
    let map = |number: u64| format!("/api/v1/namespaces/{NAMESPACE}/configmaps/map-{:06}", number % objects);
    let patch = |what, path: String, kind, body| Attack {
        what,
        method: Method::PATCH,
        path,
        body: Some((kind, body)),
        refused: true,
    };
    let list = |what, query: String| Attack {
        what,
        method: Method::GET,
        path: format!("/api/v1/namespaces/{NAMESPACE}/configmaps?{query}"),
        body: None,
        refused: false,
    };
    let texts = |make: &dyn Fn(usize) -> String, size: usize| {
        let mut text = String::with_capacity(size + 64);
        let mut number = 0;
        while text.len() < size {
            let separator = if number == 0 { "" } else { "," };
            // Writing into memory cannot fail.
            let _ = write!(text, "{separator}{}", make(number));
            number += 1;
        }
        text
    };
    let finalizers = texts(&|number| format!("\"a/{number}\""), BODY);
    let data = texts(&|number| format!("\"k{number}\":\"\""), 1_000_000);
    let operations = texts(&|number| format!(r#"{{"op":"add","path":"/data/k{number}","value":""}}"#), 400_000);
    let doubling = texts(&|number| format!(r#"{{"op":"copy","from":"/data","path":"/data/c{number}"}}"#), 2_000);
    let strategic = "application/strategic-merge-patch+json";
    let values = texts(&|number| format!("v{number}"), SELECTOR);
    let absent = texts(&|number| format!("!k{number}"), SELECTOR / 2);
    let unequal = texts(&|number| format!("metadata.name!=m{number}"), SELECTOR / 2);
    let encode = |text: &str| text.replace(',', "%2C").replace('!', "%21").replace('=', "%3D");
    let attacks = vec![
        patch(
            "a strategic merge patch",
            map(1),
            strategic,
            format!(r#"{{"metadata":{{"finalizers":[{finalizers}]}}}}"#),
        ),
        patch("a merge patch", map(2), "application/merge-patch+json", format!(r#"{{"data":{{{data}}}}}"#)),
        patch("a JSON patch of many operations", map(3), "application/json-patch+json", format!("[{operations}]")),
        patch("a JSON patch that copies", map(4), "application/json-patch+json", format!("[{doubling}]")),
        patch(
            "an apply",
            format!("{}?fieldManager=x", map(5)),
            "application/apply-patch+yaml",
            format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","data":{{{data}}}}}"#),
        ),
        list("a label selector of one long set", format!("labelSelector=number%20in%20({values})")),
        list("a label selector of many labels", format!("labelSelector={}", encode(&absent))),
        list("a field selector", format!("fieldSelector={}", encode(&unequal))),
    ];
    attacks.into_iter().map(Arc::new).collect()
}
