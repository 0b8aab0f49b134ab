//! The objects of the benchmark and their requests, as bytes: parsing and writing JSON is not measured.

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;

/// About how large an object is.
pub(super) const BYTES: usize = 2048;

/// The config maps of one namespace on a server.
pub(in crate::bench) struct Collection {
    client: kube::Client,
    namespace: &'static str,
}

/// The format of a list.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Whole,
    MetadataOnly,
    /// What `kubectl get` shows.
    Table,
    /// What Go's typed clients request.
    Protobuf,
}

impl Form {
    fn accept(self) -> &'static str {
        match self {
            Form::Whole => "application/json",
            Form::MetadataOnly => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Form::Table => "application/json;as=Table;g=meta.k8s.io;v=v1",
            Form::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

impl Collection {
    /// The collection in a new namespace.
    pub(in crate::bench) async fn prepare(client: kube::Client, namespace: &'static str) -> anyhow::Result<Self> {
        let collection = Collection { client, namespace };
        let body = format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{namespace}"}}}}"#);
        let made = collection.send(Method::POST, "/api/v1/namespaces", Some(("application/json", body))).await;
        made.context("cannot make the namespace of the benchmark; is one left over from an earlier run?")?;
        Ok(collection)
    }

    /// Removes everything again.
    pub(super) async fn remove(&self) -> anyhow::Result<()> {
        self.send(Method::DELETE, &format!("/api/v1/namespaces/{}", self.namespace), None).await.map(|_| ())
    }

    pub(in crate::bench) async fn create(&self, name: &str) -> anyhow::Result<()> {
        self.send(Method::POST, &self.path(""), Some(("application/json", object(name)))).await.map(|_| ())
    }

    pub(super) async fn get(&self, name: &str) -> anyhow::Result<()> {
        self.send(Method::GET, &self.path(name), None).await.map(|_| ())
    }

    /// Changes one field by a merge patch.
    pub(in crate::bench) async fn update(&self, name: &str, number: u64) -> anyhow::Result<()> {
        let patch = format!(r#"{{"data":{{"number":"{number}"}}}}"#);
        self.send(Method::PATCH, &self.path(name), Some(("application/merge-patch+json", patch))).await.map(|_| ())
    }

    /// Lists all objects in pages of this size, or whole; the bytes that came.
    pub(super) async fn list(&self, limit: Option<u64>, form: Form) -> anyhow::Result<usize> {
        let mut token = String::new();
        let mut size = 0;
        loop {
            let limit = limit.map(|limit| format!("limit={limit}")).unwrap_or_default();
            let from = if token.is_empty() { String::new() } else { format!("&continue={token}") };
            let path = format!("{}?{limit}{from}", self.path(""));
            let request = Request::get(path).header(http::header::ACCEPT, form.accept()).body(Body::empty())?;
            let page = self.answer(request).await?;
            size += page.len();
            match field(&page, "continue") {
                Some(next) => token = next,
                None => return Ok(size),
            }
        }
    }

    /// Opens a watch that begins now; what comes is one line for each event.
    pub(super) async fn watch(&self) -> anyhow::Result<Body> {
        let page = self.send(Method::GET, &format!("{}?limit=1", self.path("")), None).await?;
        let version = field(&page, "resourceVersion").context("a list has no resource version")?;
        let path = format!("{}?watch=1&resourceVersion={version}", self.path(""));
        let request = Request::get(path).header(http::header::ACCEPT, "application/json").body(Body::empty())?;
        let response = self.client.send(request).await?;
        anyhow::ensure!(response.status().is_success(), "a watch was refused with {}", response.status());
        Ok(response.into_body())
    }

    fn path(&self, name: &str) -> String {
        let collection = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
        if name.is_empty() { collection } else { format!("{collection}/{name}") }
    }

    async fn send(&self, method: Method, path: &str, body: Option<(&str, String)>) -> anyhow::Result<Bytes> {
        let mut request = Request::builder().method(method).uri(path);
        let body = match body {
            Some((media, text)) => {
                request = request.header(http::header::CONTENT_TYPE, media);
                Body::from(text.into_bytes())
            }
            None => Body::empty(),
        };
        self.answer(request.header(http::header::ACCEPT, "application/json").body(body)?).await
    }

    async fn answer(&self, request: Request<Body>) -> anyhow::Result<Bytes> {
        let what = format!("{} {}", request.method(), request.uri());
        let response = self.client.send(request).await.with_context(|| what.clone())?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(status.is_success(), "{what} was answered with {status}: {}", String::from_utf8_lossy(&bytes));
        Ok(bytes)
    }
}

/// A text in the metadata at the head of a list, found without parsing the list.
fn field(page: &[u8], name: &str) -> Option<String> {
    let field = format!("\"{name}\":\"");
    let head = &page[..page.len().min(1024)];
    let start = head.windows(field.len()).position(|window| window == field.as_bytes())? + field.len();
    let length = head[start..].iter().position(|byte| *byte == b'"')?;
    let text = String::from_utf8(head[start..start + length].to_vec()).ok()?;
    (!text.is_empty()).then_some(text)
}

/// A ConfigMap whose data compresses about as well as real ones.
fn object(name: &str) -> String {
    let mut text = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"app":"bench"}}}},"data":{{"number":"0""#
    );
    let mut state =
        name.bytes().fold(0x9e37_79b9_7f4a_7c15_u64, |state, byte| state.rotate_left(9) ^ u64::from(byte)) | 1;
    let mut field = 0;
    while text.len() < BYTES - 40 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!(r#","field-{field}":"{state:016x}""#));
        field += 1;
    }
    text.push_str("}}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_of_the_size_that_is_told() {
        let text = object("name");
        assert!(text.len().abs_diff(BYTES) < 50, "{}", text.len());
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }

    #[test]
    fn texts_are_found_in_the_metadata() {
        let page = br#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"1","continue":"abc"},"items":[]}"#;
        assert_eq!(field(page, "continue").as_deref(), Some("abc"));
        assert_eq!(field(br#"{"metadata":{"continue":""}}"#, "continue"), None);
        assert_eq!(field(br#"{"metadata":{}}"#, "continue"), None);
    }
}
