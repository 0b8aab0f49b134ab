//! A conversion webhook for the benchmark, which changes the version of each object and nothing else.

use crate::pki::Pki;
use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running webhook, which ends when this is dropped.
pub(super) struct Converter {
    pub(super) url: String,
    pub(super) ca_bundle: String,
    listening: JoinHandle<()>,
}

impl Drop for Converter {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Converter {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let pki = Pki::open(folder.path(), &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?;
        let acceptor = tokio_rustls::TlsAcceptor::from(pki.tls()?);
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen for a webhook")?;
        let url = format!("https://{}/convert", listener.local_addr()?);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // A connection ends when the server under test closes it.
                    let _ = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
                });
            }
        });
        let ca_bundle = STANDARD.encode(&pki.ca);
        Ok(Converter { url, ca_bundle, listening })
    }
}

async fn answer(request: Request<hyper::body::Incoming>) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
    let mut review: Value = serde_json::from_slice(&body)?;
    let mut request = review["request"].take();
    let mut objects = request["objects"].take();
    for object in objects.as_array_mut().into_iter().flatten() {
        object["apiVersion"] = request["desiredAPIVersion"].clone();
    }
    let answer = json!({
        "kind": "ConversionReview", "apiVersion": review["apiVersion"],
        "response": {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects},
    });
    Ok(Response::new(Full::new(answer.to_string().into())))
}
