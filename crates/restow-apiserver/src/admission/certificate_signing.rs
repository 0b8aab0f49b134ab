//! The admission plugins CertificateApproval, CertificateSigning, CertificateSubjectRestriction and ClusterTrustBundleAttest:
//! who approves, signs or attests needs a permission for the signer.
//!
//! The permissions are verbs on `signers`, a resource that exists only for authorization.

use crate::admission::AdmissionCall;
use crate::admission::plugins::forbidden;
use crate::admission::rule::Operation;
use crate::error::ApiError;
use crate::resource::Origin;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::object::Object;
use restow_auth::rbac::only_gc_fields_changed;
use restow_auth::user::MASTERS;
use restow_auth::{Attributes, ResourceAttributes};
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, parse_x509_pem};

const GROUP: &str = "certificates.k8s.io";
/// The signer of client certificates that this server trusts.
const API_SERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// Refuses what the user may not do with the signer of a request or bundle.
pub(super) fn check(
    call: &AdmissionCall<'_>,
    operation: Operation,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let resource = &call.resource.group_resource;
    if call.resource.origin != Origin::Builtin || resource.group() != GROUP {
        return Ok(());
    }
    let Some(object) = object else { return Ok(()) };
    match (resource.resource(), operation, call.target.subresource.as_str(), old) {
        ("certificatesigningrequests", Operation::Create, "", _) => check_subject(call, object),
        // The signer of the stored object counts, not the one that was sent.
        ("certificatesigningrequests", Operation::Update, "approval", Some(old)) => {
            check_signer(call, old, "approve", "approve requests with")
        }
        ("certificatesigningrequests", Operation::Update, "status", Some(old)) if is_signed_anew(object, old) => {
            check_signer(call, old, "sign", "sign requests with")
        }
        ("clustertrustbundles", Operation::Create | Operation::Update, _, old) => {
            let signed = !object.text(&["spec", "signerName"]).is_empty();
            let same = old.is_some_and(|old| only_gc_fields_changed(object.as_value(), old.as_value()));
            if signed && !same { check_signer(call, object, "attest", "attest for") } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// Refuses users without this permission for the signer or for all signers of its domain.
fn check_signer(call: &AdmissionCall<'_>, object: &Object, verb: &str, doing: &str) -> Result<(), ApiError> {
    let signer = object.text(&["spec", "signerName"]);
    let domain = signer.split('/').next().unwrap_or_default();
    let allowed = |name: String| {
        let attributes = ResourceAttributes {
            verb: verb.into(),
            group: GROUP.into(),
            version: "*".into(),
            resource: "signers".into(),
            name,
            ..ResourceAttributes::default()
        };
        call.admission.access.authorize(&call.user, &Attributes::Resource(attributes)).is_ok()
    };
    if allowed(signer.to_string()) || allowed(format!("{domain}/*")) {
        return Ok(());
    }
    Err(forbidden(call, object.name(), format!("user not permitted to {doing} signerName {}", quote(signer))))
}

/// Whether a change of the status is one that only a signer may make.
fn is_signed_anew(object: &Object, old: &Object) -> bool {
    let part = |object: &Object, field: &str| {
        let value = object.at(&["status", field]).cloned().unwrap_or_default();
        if value == Value::Array(Vec::new()) || value == "" { Value::Null } else { value }
    };
    ["certificate", "conditions"].iter().any(|field| part(object, field) != part(old, field))
}

/// Refuses a request for a certificate with the group `system:masters`.
fn check_subject(call: &AdmissionCall<'_>, object: &Object) -> Result<(), ApiError> {
    if object.text(&["spec", "signerName"]) != API_SERVER_CLIENT {
        return Ok(());
    }
    let refused = |message: String| Err(forbidden(call, object.name(), message));
    match organizations(object.text(&["spec", "request"])) {
        Err(problem) => refused(format!("failed to parse CSR: {problem}")),
        Ok(groups) if groups.iter().any(|group| group == MASTERS) => {
            refused(format!("use of {API_SERVER_CLIENT} signer with {MASTERS} group is not allowed"))
        }
        Ok(_) => Ok(()),
    }
}

/// The organizations in a certificate request (in base64), which become groups.
pub(crate) fn organizations(request: &str) -> Result<Vec<String>, String> {
    let wrong_block = || "PEM block type must be CERTIFICATE REQUEST".to_string();
    let text = STANDARD.decode(request).map_err(|_| wrong_block())?;
    let (_, block) = parse_x509_pem(&text).map_err(|_| wrong_block())?;
    if block.label != "CERTIFICATE REQUEST" {
        return Err(wrong_block());
    }
    let (rest, request) =
        X509CertificationRequest::from_der(&block.contents).map_err(|_| "the request is malformed".to_string())?;
    if !rest.is_empty() {
        return Err("trailing data after the request".into());
    }
    let subject = &request.certification_request_info.subject;
    let names = subject.iter_organization().map(|name| name.as_str().map(String::from));
    names.collect::<Result<_, _>>().map_err(|_| "an organization is not a text".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair};

    fn request(organizations: &[DnValue]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ann");
        for (index, organization) in organizations.iter().enumerate() {
            // Names of one type replace each other there, so all but one get in by their number.
            let kind = if index == 0 { DnType::OrganizationName } else { DnType::CustomDnType(vec![2, 5, 4, 10]) };
            params.distinguished_name.push(kind, organization.clone());
        }
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        STANDARD.encode(pem)
    }

    #[test]
    fn every_organization_of_a_request_is_seen() {
        let utf8 = |text: &str| DnValue::Utf8String(text.into());
        assert_eq!(organizations(&request(&[])), Ok(Vec::new()));
        assert_eq!(organizations(&request(&[utf8("dev")])), Ok(vec!["dev".to_string()]));
        let both = organizations(&request(&[utf8("dev"), utf8(MASTERS)])).unwrap();
        assert!(both.iter().any(|group| group == MASTERS), "{both:?}");
        let printable = DnValue::PrintableString(MASTERS.try_into().unwrap());
        assert_eq!(organizations(&request(&[printable])), Ok(vec![MASTERS.to_string()]));
        let wide = DnValue::BmpString(MASTERS.try_into().unwrap());
        assert!(organizations(&request(&[wide])).is_err(), "what cannot be read is refused");
    }

    #[test]
    fn malformed_requests_are_refused() {
        assert!(organizations("").is_err());
        assert!(organizations("!").is_err());
        let pem = String::from_utf8(STANDARD.decode(request(&[])).unwrap()).unwrap();
        let other = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let behind = STANDARD.encode(format!("{other}{pem}"));
        assert_eq!(organizations(&behind), Err("PEM block type must be CERTIFICATE REQUEST".into()));
        assert!(organizations(&STANDARD.encode(format!("a note\n{pem}"))).is_ok());
    }
}
