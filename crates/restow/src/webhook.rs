//! `restow webhook`: the guard for clusters that have no ValidatingAdmissionPolicy.
//!
//! It serves the rule of `restow_rules::migrate::guard` over HTTPS, creates and renews its own certificates, and keeps the
//! ValidatingWebhookConfiguration up to date. It depends on no other controller, so there can be no dependency cycle.

mod admission_review;
mod certificates;

use crate::cluster_args::ClusterArgs;
use crate::serving;
use admission_review::ReviewHandler;
use anyhow::Context;
use certificates::{Bundle, CertificateStore};
use clap::Args;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use restow_apiserver::serving::{self as connections, ConnectionLimits, Transport};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::net::TcpListener;

/// Refuse changes of a storage version while objects are migrated, on clusters without ValidatingAdmissionPolicy.
///
/// Creates its own certificates, renews them before they expire, and registers itself. Several replicas can run.
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
    /// The Service in front of it.
    #[arg(long, value_name = "NAME", default_value = "restow-webhook")]
    service: String,
    /// The host at which API servers reach it, if there is no Service.
    #[arg(long, value_name = "HOST", conflicts_with = "service")]
    host: Option<String>,
    /// How many seconds a certificate is valid. It is renewed after two thirds of that.
    #[arg(long, value_name = "SECONDS", default_value_t = 90 * 24 * 3600, value_parser = clap::value_parser!(u64).range(3..))]
    certificate_lifetime: u64,
}

/// The TLS configuration in use, which is replaced when certificates are renewed.
type TlsConfig = Arc<RwLock<Arc<rustls::ServerConfig>>>;

const NAME: &str = "storage-version-guard.restow.dev";

pub(crate) async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let cluster = args.cluster.connect().await?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let names = args.names();
    let lifetime = Duration::from_secs(args.certificate_lifetime);
    let store = CertificateStore::new(cluster.client().clone(), &args.namespace, names, lifetime);
    let first = store.current().await?;
    let tls: TlsConfig = Arc::new(RwLock::new(first.tls()?));
    args.register(cluster.client(), address, &first).await?;
    println!("the guard is ready at https://{address}");
    let mut bundle = first;
    let transport = Transport::Tls(Arc::new({
        let tls = Arc::clone(&tls);
        move || Arc::clone(&tls.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }));
    let (limits, reviews) = (ConnectionLimits::small(), Arc::new(ReviewHandler::default()));
    let serving = connections::serve(listener, transport, limits, reviews, serving::stop_signal(), || {});
    let renewing = async {
        loop {
            tokio::time::sleep(bundle.check_again_in(lifetime)).await;
            match renew(&args, &store, address, &tls).await {
                Ok(renewed) => bundle = renewed,
                Err(error) => tracing::warn!("cannot check or renew the certificates: {error:#}"),
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = renewing => {}
    }
    Ok(())
}

async fn renew(
    args: &WebhookArgs,
    store: &CertificateStore,
    address: SocketAddr,
    tls: &TlsConfig,
) -> anyhow::Result<Bundle> {
    let bundle = store.current().await?;
    // API servers have to trust the new certificate before it is used.
    args.register(store.client(), address, &bundle).await?;
    let renewed = bundle.tls()?;
    *tls.write().unwrap_or_else(std::sync::PoisonError::into_inner) = renewed;
    Ok(bundle)
}

impl WebhookArgs {
    /// The names in the certificate.
    fn names(&self) -> Vec<String> {
        match &self.host {
            Some(host) => vec![host.clone()],
            None => {
                let service = format!("{}.{}.svc", self.service, self.namespace);
                vec![format!("{service}.cluster.local"), service]
            }
        }
    }

    /// Registers the webhook with its CA bundle.
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
