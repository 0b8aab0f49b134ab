//! JSON requests to an API server as any user, and responses with any code.

use crate::eventually::eventually;
use crate::objects::{Crd, object};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

/// A client of an administrator, which can impersonate others.
#[derive(Clone)]
pub struct ApiClient {
    client: kube::Client,
    user: Option<String>,
}

impl ApiClient {
    /// The administrator.
    pub fn admin(client: kube::Client) -> Self {
        ApiClient { client, user: None }
    }

    /// The same connection, as this user.
    pub fn acting_as(&self, user: &str) -> Self {
        ApiClient { user: Some(user.to_string()), ..self.clone() }
    }

    /// The kube-rs client, for streams.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Reads an object or a list.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, "application/json", Vec::new()).await
    }

    /// Creates an object.
    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::POST, path, "application/json", body.to_string().into()).await
    }

    /// Deletes an object or a collection, with these DeleteOptions.
    pub async fn delete(&self, path: &str, options: Value) -> (u16, Value) {
        self.send(Method::DELETE, path, "application/json", options.to_string().into()).await
    }

    /// Sends a patch of this kind: `json`, `merge` or `strategic-merge`.
    pub async fn patch(&self, path: &str, kind: &str, body: Vec<u8>) -> (u16, Value) {
        self.send(Method::PATCH, path, &format!("application/{kind}-patch+json"), body).await
    }

    /// Sends a request. Returns the code and the body of the response; a body that is not JSON is returned as a string.
    pub async fn send(&self, method: Method, path: &str, content_type: &str, body: Vec<u8>) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path).header("content-type", content_type);
        if let Some(user) = &self.user {
            request = request.header("impersonate-user", user);
        }
        let response = self.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).to_string());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    /// Creates a namespace, and binds a user to a ClusterRole in it.
    pub async fn create_namespace(&self, name: &str, user: &str, role: &str) {
        assert_eq!(self.post("/api/v1/namespaces", object("v1", "Namespace", name)).await.0, 201);
        let group = "rbac.authorization.k8s.io";
        let mut binding = object(&format!("{group}/v1"), "RoleBinding", "owner");
        binding["roleRef"] = json!({"apiGroup": group, "kind": "ClusterRole", "name": role});
        binding["subjects"] = json!([{"apiGroup": group, "kind": "User", "name": user}]);
        let path = format!("/apis/{group}/v1/namespaces/{name}/rolebindings");
        assert_eq!(self.post(&path, binding).await.0, 201);
        let maps = format!("/api/v1/namespaces/{name}/configmaps");
        self.acting_as(user).wait_for_code("the binding is in force", &maps, 200).await;
    }

    /// Creates a CRD and waits until its first version is served.
    pub async fn create_crd(&self, crd: &Crd) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(self.post(path, crd.manifest()).await.0, 201);
        self.wait_for_code("the custom resource is served", &crd.path(), 200).await;
    }

    /// Reads a path repeatedly until the response has this code.
    pub async fn wait_for_code(&self, condition: &str, path: &str, code: u16) {
        eventually(condition, async || self.get(path).await.0 == code).await;
    }
}
