//! `restow webhook`: the guard for clusters that have no ValidatingAdmissionPolicy.
//!
//! It answers one question (`restow_agreement::migrate::guard`) over HTTPS, with certificates of its own that it renews by
//! itself, and keeps the ValidatingWebhookConfiguration in step with them. It needs no other controller for that, so that
//! none can be in a circle with it.

mod certificates;

use crate::cluster_args::ClusterArgs;
use crate::serving;
use anyhow::Context;
use certificates::{Bundle, Keeper};
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use restow_agreement::migrate::guard::refusal;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Refuse changes of a storage version while objects are migrated, on clusters without ValidatingAdmissionPolicy.
///
/// Makes certificates of its own, renews them before they expire, and registers itself. Several can run.
#[derive(Debug, Args)]
pub(crate) struct WebhookArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Where to listen. Port 0 takes any free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// The namespace of its service and of the secret with its certificates.
    #[arg(long, value_name = "NAME", default_value = "restow-system")]
    namespace: String,
    /// The service in front of it.
    #[arg(long, value_name = "NAME", default_value = "restow-webhook")]
    service: String,
    /// The host by which API servers reach it, where it is not behind a service.
    #[arg(long, value_name = "HOST", conflicts_with = "service")]
    host: Option<String>,
    /// How many seconds a certificate is valid. It is renewed after two thirds of that.
    #[arg(long, value_name = "SECONDS", default_value_t = 90 * 24 * 3600, value_parser = clap::value_parser!(u64).range(3..))]
    certificate_lifetime: u64,
}

/// What is shown to those who connect, exchanged when it is renewed.
type Shown = Arc<RwLock<TlsAcceptor>>;

const NAME: &str = "storage-version-guard.restow.dev";

pub(crate) async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let cluster = args.cluster.connect().await?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let names = args.names();
    let lifetime = Duration::from_secs(args.certificate_lifetime);
    let keeper = Keeper::new(cluster.client().clone(), &args.namespace, names, lifetime);
    let first = keeper.current().await?;
    let shown: Shown = Arc::new(RwLock::new(first.acceptor()?));
    args.register(cluster.client(), address, &first).await?;
    println!("the guard is ready at https://{address}");
    let mut bundle = first;
    let accepting = tokio::spawn(accept(listener, Arc::clone(&shown)));
    let renewing = async {
        loop {
            tokio::time::sleep(bundle.look_again_in(lifetime)).await;
            match renew(&args, &keeper, address, &shown).await {
                Ok(renewed) => bundle = renewed,
                Err(error) => tracing::warn!("cannot look after the certificates: {error:#}"),
            }
        }
    };
    tokio::select! {
        () = serving::stop_signal() => {}
        () = renewing => {}
    }
    accepting.abort();
    Ok(())
}

async fn renew(args: &WebhookArgs, keeper: &Keeper, address: SocketAddr, shown: &Shown) -> anyhow::Result<Bundle> {
    let bundle = keeper.current().await?;
    // Those who ask have to trust the new certificate before it is shown.
    args.register(keeper.client(), address, &bundle).await?;
    let acceptor = bundle.acceptor()?;
    *shown.write().unwrap_or_else(std::sync::PoisonError::into_inner) = acceptor;
    Ok(bundle)
}

impl WebhookArgs {
    /// The names that the certificate has to carry.
    fn names(&self) -> Vec<String> {
        match &self.host {
            Some(host) => vec![host.clone()],
            None => {
                let service = format!("{}.{}.svc", self.service, self.namespace);
                vec![format!("{service}.cluster.local"), service]
            }
        }
    }

    /// Makes the API servers ask us, and trust our certificates.
    async fn register(&self, client: &kube::Client, address: SocketAddr, bundle: &Bundle) -> anyhow::Result<()> {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration");
        let api = ApiResource::from_gvk_with_plural(&kind, "validatingwebhookconfigurations");
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &api);
        let mut client_config = match &self.host {
            Some(host) => json!({"url": format!("https://{host}:{}/", address.port())}),
            None => json!({"service": {"namespace": self.namespace, "name": self.service, "path": "/"}}),
        };
        client_config["caBundle"] = json!(bundle.trusted_base64());
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [{
                "name": NAME, "clientConfig": client_config, "failurePolicy": "Fail", "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
                "rules": [{
                    "apiGroups": ["apiextensions.k8s.io"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                    "resources": ["customresourcedefinitions"], "scope": "Cluster",
                }],
            }],
        });
        let object: DynamicObject = serde_json::from_value(configuration.clone())?;
        let registered = match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                api.patch(NAME, &PatchParams::default(), &Patch::Merge(&configuration)).await
            }
            other => other,
        };
        registered.context("cannot write the ValidatingWebhookConfiguration")?;
        Ok(())
    }
}

async fn accept(listener: TcpListener, shown: Shown) {
    while let Ok((connection, _)) = listener.accept().await {
        let acceptor = shown.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        tokio::spawn(async move {
            match acceptor.accept(connection).await {
                Ok(secured) => {
                    let answer = hyper::service::service_fn(answer);
                    // A client that goes away in the middle is its own affair.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(secured), answer)
                        .await;
                }
                Err(error) => tracing::debug!("a connection failed: {error}"),
            }
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let (code, text) = match serde_json::from_slice::<Value>(&body) {
        Ok(review) if review["kind"] == "AdmissionReview" => (200, review_of(&review).to_string()),
        _ => (400, "this takes AdmissionReviews and nothing else".to_owned()),
    };
    let mut response = Response::new(Full::new(bytes::Bytes::from(text)));
    *response.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or_default();
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The answer to a question about one change.
fn review_of(review: &Value) -> Value {
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if let Some(words) = refusal(&request["oldObject"], &request["object"]) {
        response["allowed"] = json!(false);
        response["status"] = json!({"code": 403, "reason": "Forbidden", "message": words});
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}
