//! TLS with server and client certificates.

use crate::support::{config, key};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use restow_local_etcd::{LocalEtcd, LocalEtcdOptions, LocalEtcdTls};
use restow_store::{StoreError, StoreExt};
use restow_store_etcd::{ClientIdentity, ConfigError, ConnectError, EtcdConfig, EtcdStore, TlsConfig};
use std::path::{Path, PathBuf};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn issue(authority: &Authority, names: &[&str]) -> ClientIdentity {
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    ClientIdentity { certificate: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes() }
}

fn write(directory: &Path, name: &str, pem: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, pem).unwrap();
    path
}

async fn server(server: &ClientIdentity, client_ca: Option<&Authority>) -> (LocalEtcd, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let tls = LocalEtcdTls {
        certificate: write(directory.path(), "server.pem", &server.certificate),
        key: write(directory.path(), "server.key", &server.key),
        client_ca: client_ca.map(|authority| write(directory.path(), "ca.pem", authority.pem().as_bytes())),
    };
    let etcd = LocalEtcd::start_with(LocalEtcdOptions { tls: Some(tls), ..Default::default() }).await.unwrap();
    (etcd, directory)
}

fn trusting(etcd: &LocalEtcd, authority: &Authority, identity: Option<ClientIdentity>) -> EtcdConfig {
    let tls = TlsConfig { ca: authority.pem().into_bytes(), identity, domain: None };
    EtcdConfig { tls: Some(tls), ..config(etcd.endpoint()) }
}

async fn refused(config: EtcdConfig) -> String {
    match EtcdStore::connect(config).await.unwrap_err() {
        ConnectError::Store(StoreError::Unavailable(reason)) => reason.to_lowercase(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_certificate_must_have_the_right_ca_and_name() {
    let authority = authority();
    let (etcd, _files) = server(&issue(&authority, &["127.0.0.1", "etcd.test"]), None).await;
    let store = EtcdStore::connect(trusting(&etcd, &authority, None)).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();

    let mut by_name = trusting(&etcd, &authority, None);
    by_name.tls.as_mut().unwrap().domain = Some("etcd.test".into());
    assert_eq!(EtcdStore::connect(by_name).await.unwrap().get(&key("a")).await.unwrap().unwrap().value, "1");

    let mut wrong_name = trusting(&etcd, &authority, None);
    wrong_name.tls.as_mut().unwrap().domain = Some("other.test".into());
    let reason = refused(wrong_name).await;
    assert!(reason.contains("certificate"), "{reason}");
    let reason = refused(trusting(&etcd, &self::authority(), None)).await;
    assert!(reason.contains("certificate"), "{reason}");

    let without_tls = config(etcd.endpoint());
    let error = EtcdStore::connect(without_tls).await.unwrap_err();
    assert!(matches!(error, ConnectError::Config(ConfigError::Endpoint { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_requires_client_certificates_gets_them() {
    let (authority, stranger) = (authority(), authority());
    let (etcd, _files) = server(&issue(&authority, &["127.0.0.1"]), Some(&authority)).await;
    let known = issue(&authority, &["client"]);
    let store = EtcdStore::connect(trusting(&etcd, &authority, Some(known))).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();

    let reason = refused(trusting(&etcd, &authority, None)).await;
    assert!(reason.contains("certificate") || reason.contains("alert"), "{reason}");
    let reason = refused(trusting(&etcd, &authority, Some(issue(&stranger, &["client"])))).await;
    assert!(reason.contains("certificate") || reason.contains("alert") || reason.contains("authority"), "{reason}");
}
