//! The flags about API servers behind this one, and front proxies before it.

use crate::pki::{Pki, read_pem};
use anyhow::Context;
use clap::Args;
use restow_apiserver::serving::pki::{CertificateAndKey, FRONT_PROXY_CLIENT, tls_config};
use restow_apiserver::{AggregatorConfig, ProxyClientCertificate, RequestHeaderConfig};
use restow_auth::authenticate::RequestHeaders;
use std::path::PathBuf;
use std::sync::Arc;

/// The flags about aggregated API servers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Aggregated API servers")]
pub(crate) struct AggregatorArgs {
    /// The client certificate with which this server passes requests on to the API servers behind APIServices. They believe the
    /// user in the headers of a request only if this certificate is of the CA in --requestheader-client-ca-file.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    proxy_client_cert_file: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    proxy_client_key_file: Option<PathBuf>,
    /// The CA of front proxies. A client with a certificate of this CA may name any user in headers, so it must not be the CA
    /// of users, and issue certificates for proxies only. It is published, with the following flags, in the ConfigMap
    /// extension-apiserver-authentication in kube-system, for the API servers behind this one.
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// The common names of the certificates of front proxies; none for every certificate of the CA, which must then be
    /// another one than that of users.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    /// The headers in which front proxies send the name of the user; the first that is there counts.
    #[arg(long, value_name = "HEADER,…", value_delimiter = ',', default_value = "X-Remote-User")]
    requestheader_username_headers: Vec<String>,
    /// The headers in which front proxies send the groups of the user.
    #[arg(long, value_name = "HEADER,…", value_delimiter = ',', default_value = "X-Remote-Group")]
    requestheader_group_headers: Vec<String>,
    /// The prefixes of the headers in which front proxies send extra fields of the user.
    #[arg(long, value_name = "PREFIX,…", value_delimiter = ',', default_value = "X-Remote-Extra-")]
    requestheader_extra_headers_prefix: Vec<String>,
    /// The headers in which front proxies send the uid of the user; the first that is there counts.
    #[arg(long, value_name = "HEADER,…", value_delimiter = ',', default_value = "X-Remote-Uid")]
    requestheader_uid_headers: Vec<String>,
}

impl AggregatorArgs {
    /// The configuration of a server whose users have certificates of this CA.
    pub(crate) fn config(&self, client_ca: String) -> anyhow::Result<AggregatorConfig> {
        let ca = self.requestheader_client_ca_file.as_deref().map(read_pem).transpose()?;
        let request_header = ca.map(|ca| RequestHeaderConfig { ca, headers: self.headers() });
        let proxy_client_certificate = match (&self.proxy_client_cert_file, &self.proxy_client_key_file) {
            (Some(certificate), Some(key)) => {
                let identity = ProxyClientCertificate { certificate: read_pem(certificate)?, key: read_pem(key)? };
                identity.check().with_context(|| format!("cannot use {}", certificate.display()))?;
                Some(identity)
            }
            _ => None,
        };
        let config = AggregatorConfig { proxy_client_certificate, client_ca: Some(client_ca), request_header };
        config.check()?;
        Ok(config)
    }

    /// The same for a server that has certificates of its own; they are used where the flags name none.
    pub(crate) fn config_with(&self, pki: &Pki) -> anyhow::Result<AggregatorConfig> {
        let mut config = self.config(pki.ca.clone())?;
        config.proxy_client_certificate.get_or_insert_with(|| ProxyClientCertificate {
            certificate: pki.front_proxy_client.certificate.clone(),
            key: pki.front_proxy_client.key.clone(),
        });
        config.request_header.get_or_insert_with(|| {
            let mut headers = self.headers();
            if headers.allowed_names.is_empty() {
                headers.allowed_names.push(FRONT_PROXY_CLIENT.into());
            }
            RequestHeaderConfig { ca: pki.front_proxy_ca.clone(), headers }
        });
        Ok(config)
    }

    fn headers(&self) -> RequestHeaders {
        RequestHeaders {
            allowed_names: self.requestheader_allowed_names.clone(),
            username_headers: self.requestheader_username_headers.clone(),
            group_headers: self.requestheader_group_headers.clone(),
            extra_headers_prefix: self.requestheader_extra_headers_prefix.clone(),
            uid_headers: self.requestheader_uid_headers.clone(),
        }
    }
}

/// TLS with this certificate, for users and for front proxies.
pub(crate) fn tls(
    identity: &CertificateAndKey,
    config: &AggregatorConfig,
) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let users = config.client_ca.as_deref().unwrap_or_default();
    let proxies = config.request_header.as_ref().map_or("", |trusted| &trusted.ca);
    Ok(tls_config(identity, &format!("{users}\n{proxies}"))?)
}
