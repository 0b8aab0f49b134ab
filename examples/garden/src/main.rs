//! A custom API server, made with `restow-apiserver`: plants in two versions, with a conversion between them.
//!
//! `cargo run -p garden` starts it in the folder `garden-data`, prints what to do next, and stops with Ctrl-C. `cargo run -p garden
//! FOLDER KUBECONFIG` also reports to the cluster of that kubeconfig in which version plants are stored. After these,
//! `--stored v1` stores them in the older version, and `--requestheader-client-ca-file FILE` names the CA of the main API
//! servers that may pass requests on to it.

use restow_aggregated::MainServer;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::resource::strategy::Strategy;
use restow_apiserver::resource::{InvalidResource, Resource};
use restow_apiserver::serving::pki::{Pki, tls_config, write_private};
use restow_apiserver::{AgreementConfig, ApiServer, RequestHeaderConfig, ServerConfig};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "garden-data".into()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pki = Pki::open(&folder.join("pki"), &[address.ip()])?;
    write_private(&folder.join("kubeconfig"), &pki.kubeconfig(&address.to_string()))?;

    let store = Arc::new(EmbeddedStore::open(EmbeddedConfig::new(folder.join("store")))?);
    let registry = Registry::new([plants(&flag("--stored").unwrap_or_else(|| "v2".into()))?]);
    let mut config = ServerConfig::new(store, registry, address);
    config.agreement.identity = AgreementConfig::identity_of(&["garden", &folder.canonicalize()?.to_string_lossy()]);
    let mut client_cas = pki.ca.clone();
    if let Some(file) = flag("--requestheader-client-ca-file") {
        let ca = std::fs::read_to_string(file)?;
        client_cas.push_str(&ca);
        config.aggregator.client_ca = Some(pki.ca.clone());
        config.aggregator.request_header = Some(RequestHeaderConfig { ca, headers: Default::default() });
    }
    if let Some(main) = std::env::args().nth(2).filter(|main| !main.starts_with("--")) {
        config.agreement.upstream = Some(MainServer::connect(main.as_ref(), "garden", &config.agreement).await?);
    }
    let server = ApiServer::new(config).await?;
    server.ready().await?;
    println!("try: kubectl --kubeconfig {} get plants", folder.join("kubeconfig").display());
    let interrupted = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    restow_apiserver::serve(server.clone(), listener, tls_config(&pki.server, &client_cas)?, interrupted).await;
    server.leave().await;
    Ok(())
}

/// The value after a flag.
fn flag(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

/// Plants are served in two versions, stored in one of them, and have a status subresource.
fn plants(stored: &str) -> Result<Resource, InvalidResource> {
    Resource::builder("garden.example", "plants", "Plant")
        .served(["v2", "v1"])
        .stored(stored)
        .short_names(["pl"])
        .with_status()
        .strategy(PlantRules)
        .convert_with(convert)
        .build()
}

/// In v1 the size of a plant is one text, such as `30x40`; since v2 it is a height and a width.
fn convert(plant: &mut Object, _from: &str, to: &str) -> Result<(), String> {
    let (height, width) = size(plant).ok_or("the size cannot be read")?;
    let Some(spec) = plant.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    spec.remove("size");
    match to {
        "garden.example/v1" => spec.insert("size".into(), format!("{height}x{width}").into()),
        _ => spec.insert("size".into(), json!({"height": height, "width": width})),
    };
    Ok(())
}

/// The size of a plant of either version.
fn size(plant: &Object) -> Option<(u64, u64)> {
    match plant.at(&["spec", "size"])? {
        Value::String(text) => {
            let (height, width) = text.split_once('x')?;
            Some((height.parse().ok()?, width.parse().ok()?))
        }
        size => Some((size["height"].as_u64()?, size["width"].as_u64()?)),
    }
}

/// A plant must have a size.
struct PlantRules;

impl Strategy for PlantRules {
    fn validate_create(&self, plant: &Object) -> Vec<FieldError> {
        match size(plant) {
            Some(_) => Vec::new(),
            None => vec![FieldError::required("spec.size", "say how high and how wide the plant is")],
        }
    }

    fn validate_update(&self, plant: &Object, _old: &Object) -> Vec<FieldError> {
        self.validate_create(plant)
    }
}
