//! Requests as they are sent, and answers as they come, as whoever it may be.

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

/// An administrator's client, which can act as others.
#[derive(Clone)]
pub(crate) struct Asker {
    client: kube::Client,
    user: Option<String>,
}

impl Asker {
    /// The administrator.
    pub(crate) fn admin(client: kube::Client) -> Self {
        Asker { client, user: None }
    }

    /// The same connection, as this user.
    pub(crate) fn acting_as(&self, user: &str) -> Self {
        Asker { user: Some(user.to_string()), ..self.clone() }
    }

    /// The client itself, for what is not answered at once.
    pub(crate) fn client(&self) -> &kube::Client {
        &self.client
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(Method::GET, path, "application/json", Vec::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.ask(Method::POST, path, "application/json", body.to_string().into()).await
    }

    pub(crate) async fn delete(&self, path: &str, options: Value) -> (u16, Value) {
        self.ask(Method::DELETE, path, "application/json", options.to_string().into()).await
    }

    /// Sends a patch of this kind: `json`, `merge` or `strategic-merge`.
    pub(crate) async fn patch(&self, path: &str, kind: &str, body: Vec<u8>) -> (u16, Value) {
        self.ask(Method::PATCH, path, &format!("application/{kind}-patch+json"), body).await
    }

    /// The code and the body, which is text where it is no JSON.
    pub(crate) async fn ask(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path).header("content-type", kind);
        if let Some(user) = &self.user {
            request = request.header("impersonate-user", user);
        }
        let answer = self.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).to_string());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    /// Makes a namespace, and lets a user do everything in it that a ClusterRole allows.
    pub(crate) async fn make_namespace(&self, name: &str, user: &str, role: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        assert_eq!(self.post("/api/v1/namespaces", namespace).await.0, 201);
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "owner"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        });
        let path = format!("/apis/{group}/v1/namespaces/{name}/rolebindings");
        assert_eq!(self.post(&path, binding).await.0, 201);
        let maps = format!("/api/v1/namespaces/{name}/configmaps");
        self.acting_as(user).until("the binding is in force", &maps, |code, _| code == 200).await;
    }

    /// Defines a resource `things.example.com` that takes whatever is sent, and waits until it is served.
    pub(crate) async fn define_things(&self) {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema}}},
                }],
            },
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(self.post(path, definition).await.0, 201);
        self.until("things are served", "/apis/example.com/v1/things", |code, _| code == 200).await;
    }

    /// Asks until the answer is as wanted.
    pub(crate) async fn until(&self, what: &str, path: &str, wanted: impl Fn(u16, &Value) -> bool) {
        let begun = std::time::Instant::now();
        loop {
            let (code, body) = self.get(path).await;
            if wanted(code, &body) {
                return;
            }
            assert!(begun.elapsed().as_secs() < 180, "still not so after three minutes: {what}: {code} {body}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}
