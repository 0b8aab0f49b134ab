//! Tests of authentication and impersonation.

use super::*;
use crate::service_account::{BoundKind, BoundObject};
use crate::user::{AUTHENTICATED, CREDENTIAL_ID};
use crate::{Attributes, ResourceAttributes};
use rcgen::{CertificateParams, DnType, KeyPair};

/// No service account exists.
struct NoServiceAccounts;

impl ServiceAccounts for NoServiceAccounts {
    fn uid_of(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn bound_object(&self, _: BoundKind, _: &str, _: &str) -> Option<BoundObject> {
        None
    }
}

fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, name) in names {
        params.distinguished_name.push(kind.clone(), *name);
    }
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

#[test]
fn common_name_is_the_user_and_organizations_are_the_groups() {
    let uid = || DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    let der = certificate(&[(DnType::OrganizationName, "dev"), (DnType::CommonName, "ann"), (uid(), "1234")]);
    let user = user_of_certificate(&der).unwrap().unwrap();
    assert_eq!(
        (user.name.as_str(), user.uid.as_str(), user.groups.as_slice()),
        ("ann", "1234", &["dev".to_string()][..])
    );
    assert!(user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
    assert_eq!(user.extra[CREDENTIAL_ID][0].len(), "X509SHA256=".len() + 64);
    assert_eq!(user_of_certificate(&certificate(&[(DnType::OrganizationName, "dev")])), Ok(None));
    assert_eq!(user_of_certificate(&der[..der.len() - 1]), Err(CertificateError::Unreadable));
    assert!(matches!(
        user_of_certificate(&certificate(&[(DnType::CommonName, "ann"), (uid(), "")])),
        Err(CertificateError::Uids(_))
    ));
}

#[test]
fn token_files_have_the_format_of_kubernetes() {
    let file = TokenFile::parse("t1,ann,1,\"dev,ops\"\r\n\nt2,bob,2\n\"t\"\"3\",eve,,one\n").unwrap();
    let user = |token| file.user_of(Secret(token)).cloned();
    let ann = user("t1").unwrap();
    assert_eq!((ann.name, ann.uid, ann.groups), ("ann".into(), "1".into(), vec!["dev".to_string(), "ops".into()]));
    assert_eq!(user("t2").unwrap().groups, Vec::<String>::new());
    assert_eq!(user("t\"3").unwrap().groups, ["one"]);
    assert_eq!(user("t"), None);
    assert_eq!(user(""), None);
    assert_eq!(format!("{file:?} {:?}", Secret("t1")), "TokenFile { tokens: 3 } Secret(…)");
}

#[test]
fn token_file_errors_have_the_line_number() {
    let check = |text: &str, line: usize, part: &str| {
        let (found, problem) = TokenFile::parse(text).unwrap_err();
        assert_eq!(found, line, "{text}");
        assert!(problem.contains(part) && !problem.contains("secret"), "{problem}");
    };
    check("a,b,c\nsecret,b\n", 2, "must have at least 3 columns (token, user name, user uid), found 2");
    check("\n\n,b,c", 3, "the token is empty");
    check("secret,,c", 1, "the user name is empty");
    check("secret,b,c\nsecret,d,e", 2, "the token occurs twice");
    check("secret,b,c,\"d", 1, "a quote is not closed");
    check("secret,b,\"c\"d", 1, "text after a closing quote");
    check("secret\"x,b,c", 1, "a quote inside a field");
}

#[test]
fn bearer_tokens_are_read_from_the_authorization_header() {
    let check = |header: &str, token: Option<&str>| assert_eq!(bearer_token(header).map(|secret| secret.0), token);
    check("Bearer abc", Some("abc"));
    check(" bearer abc ", Some("abc"));
    check("BEARER abc def", Some("abc"));
    check("Bearer  abc", None);
    check("Bearer", None);
    check("Bearer ", None);
    check("Basic abc", None);
    check("", None);
}

#[test]
fn client_certificates_are_checked_before_bearer_tokens() {
    let authenticators = Authenticators {
        token_file: Some(TokenFile::parse("t1,ann,1,dev").unwrap()),
        tokens: None,
        api_audiences: vec!["api".into()],
        anonymous: AnonymousAccess::health_and_version(),
    };
    let authenticate = |credentials: Credentials<'_>| {
        authenticators.authenticate(&credentials, &NoServiceAccounts, Timestamp::UNIX_EPOCH)
    };
    let cert = Ok(ClientCertificate::of(User::named("cert")));
    let token = Some(Secret("t1"));
    let groups = |user: User| (user.name, user.groups);
    let named = Some(Ok(User::named("named-by-a-proxy")));
    let first =
        authenticate(Credentials { certificate: Some(&cert), front_proxy: named, token, path: "/api" }).unwrap();
    assert_eq!(first.name, "named-by-a-proxy");
    let expired_proxy = Some(Err(CertificateError::Unreadable));
    let refused = authenticate(Credentials { front_proxy: expired_proxy, path: "/livez", ..Credentials::default() });
    assert_eq!(refused, Err(AuthenticationError::Certificate(CertificateError::Unreadable)), "it is not anonymous");
    let both =
        authenticate(Credentials { certificate: Some(&cert), token, path: "/api", ..Credentials::default() }).unwrap();
    assert_eq!(groups(both), ("cert".into(), vec![AUTHENTICATED.to_string()]));
    let with_token = authenticate(Credentials { token, path: "/api", ..Credentials::default() }).unwrap();
    assert_eq!(groups(with_token), ("ann".into(), vec!["dev".to_string(), AUTHENTICATED.into()]));
    assert_eq!(authenticate(Credentials { path: "/livez", ..Credentials::default() }), Ok(User::anonymous()));
    let refused = authenticate(Credentials { path: "/api", ..Credentials::default() });
    assert_eq!(refused, Err(AuthenticationError::NoCredentials));
    let wrong = authenticate(Credentials {
        token: Some(Secret("t2")),
        path: "/livez",
        certificate: None,
        ..Credentials::default()
    });
    assert_eq!(wrong, Err(AuthenticationError::Token("invalid bearer token".into())));
    let unreadable = Err(CertificateError::NotText);
    let refused = authenticate(Credentials {
        certificate: Some(&unreadable),
        token: None,
        path: "/livez",
        ..Credentials::default()
    });
    assert_eq!(refused, Err(AuthenticationError::Certificate(CertificateError::NotText)));
    let expired = Ok(ClientCertificate { not_after: Timestamp::from_second(-1).unwrap(), ..cert.clone().unwrap() });
    let refused = authenticate(Credentials {
        certificate: Some(&expired),
        token: None,
        path: "/livez",
        ..Credentials::default()
    });
    assert!(matches!(refused, Err(AuthenticationError::Certificate(CertificateError::Expired(_)))), "{refused:?}");
    let with_token =
        authenticate(Credentials { certificate: Some(&expired), token, path: "/api", ..Credentials::default() })
            .unwrap();
    assert_eq!(with_token.name, "ann");
    let unnamed = Ok(ClientCertificate { user: None, ..cert.clone().unwrap() });
    let anonymous = authenticate(Credentials {
        certificate: Some(&unnamed),
        token: None,
        path: "/livez",
        ..Credentials::default()
    });
    assert_eq!(anonymous, Ok(User::anonymous()));
    let elsewhere = authenticators.authenticate_token(
        Secret("t1"),
        Some(&["other".to_string()]),
        &NoServiceAccounts,
        Timestamp::UNIX_EPOCH,
    );
    assert!(elsewhere.is_err());
}

fn impersonate(headers: &[(&str, &str)]) -> Result<Option<Impersonation>, ImpersonationError> {
    Impersonation::from_headers(headers.iter().map(|(name, value)| (*name, value.as_bytes())))
}

/// A check as `group/resource/subresource namespace/name`.
fn shown(check: &Attributes) -> String {
    let Attributes::Resource(ResourceAttributes { verb, group, resource, subresource, namespace, name, .. }) = check
    else {
        return format!("{check:?}");
    };
    assert_eq!(verb, "impersonate");
    format!("{group}/{resource}/{subresource} {namespace}/{name}")
}

#[test]
fn impersonation_needs_permission_for_user_uid_groups_and_extra_fields() {
    let check = |headers: &[(&str, &str)], name: &str, groups: &[&str], checks: &[&str]| {
        let impersonation = impersonate(headers).unwrap().unwrap();
        assert_eq!(impersonation.user.name, name);
        assert_eq!(impersonation.user.groups, groups);
        assert_eq!(impersonation.checks.iter().map(shown).collect::<Vec<_>>(), checks);
    };
    check(&[("Impersonate-User", "ann")], "ann", &["system:authenticated"], &["/users/ /ann"]);
    check(
        &[
            ("impersonate-group", "dev"),
            ("IMPERSONATE-USER", "ann"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Uid", "7"),
        ],
        "ann",
        &["dev", "ops", "system:authenticated"],
        &["/users/ /ann", "authentication.k8s.io/uids/ /7", "/groups/ /dev", "/groups/ /ops"],
    );
    check(
        &[("Impersonate-User", "system:serviceaccount:web:ci")],
        "system:serviceaccount:web:ci",
        &["system:serviceaccounts", "system:serviceaccounts:web", "system:authenticated"],
        &["/serviceaccounts/ web/ci"],
    );
    check(
        &[("Impersonate-User", "system:serviceaccount:web:ci"), ("Impersonate-Group", "dev")],
        "system:serviceaccount:web:ci",
        &["dev", "system:authenticated"],
        &["/serviceaccounts/ web/ci", "/groups/ /dev"],
    );
    check(
        &[("Impersonate-User", "system:anonymous")],
        "system:anonymous",
        &["system:unauthenticated"],
        &["/users/ /system:anonymous"],
    );
    check(
        &[("Impersonate-User", "ann"), ("Impersonate-Group", "system:unauthenticated")],
        "ann",
        &["system:unauthenticated"],
        &["/users/ /ann", "/groups/ /system:unauthenticated"],
    );
}

#[test]
fn impersonated_extra_fields_are_unescaped() {
    let headers = [
        ("Impersonate-User", "ann"),
        ("Impersonate-Extra-Acme.com%2fProject", "some"),
        ("Impersonate-Extra-scopes", "view"),
        ("Impersonate-Extra-scopes", "development"),
        ("Impersonate-Extra-bad%zz", "x"),
    ];
    let impersonation = impersonate(&headers).unwrap().unwrap();
    let extra: Vec<_> = impersonation.user.extra.into_iter().collect();
    let expected = [("acme.com/project", vec!["some"]), ("bad%zz", vec!["x"]), ("scopes", vec!["view", "development"])];
    let expected = expected.map(|(key, values)| (key.to_string(), values.into_iter().map(String::from).collect()));
    assert_eq!(extra, expected);
    let group = "authentication.k8s.io/userextras";
    let checks: Vec<_> = impersonation.checks.iter().map(shown).skip(1).collect();
    let expected = ["acme.com/project /some", "bad%zz /x", "scopes /view", "scopes /development"];
    assert_eq!(checks, expected.map(|end| format!("{group}/{end}")));
    assert!(Impersonation::is_header("Impersonate-Extra-x") && !Impersonation::is_header("Accept"));
}

#[test]
fn impersonation_without_a_user_name_is_refused() {
    assert_eq!(impersonate(&[("Accept", "*/*"), ("Impersonat", "x")]), Ok(None));
    let message = |headers: &[(&str, &str)]| impersonate(headers).unwrap_err().to_string();
    assert_eq!(
        message(&[("Impersonate-Group", "g")]),
        r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)} without impersonating a user name"#
    );
    assert_eq!(
        message(&[("Impersonate-Uid", "1"), ("Impersonate-Extra-a", "b")]),
        r#"requested &user.DefaultInfo{Name:"", UID:"1", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"b"}}} without impersonating a user name"#
    );
}

#[test]
fn impersonation_headers_are_never_ignored() {
    let user = ("Impersonate-User", "ann".as_bytes());
    let read = |headers: &[(&str, &[u8])]| Impersonation::from_headers(headers.iter().copied());
    let name = "jörg".as_bytes();
    assert_eq!(read(&[("impersonate-user", name)]).unwrap().unwrap().user.name, "jörg");
    assert_eq!(read(&[user, ("impersonate-group", name)]).unwrap().unwrap().user.groups[0], "jörg");
    let escaped = read(&[user, ("impersonate-extra-j%C3%B6rg", b"x")]).unwrap().unwrap();
    assert_eq!(escaped.user.extra["jörg"], ["x"]);
    for header in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-a"] {
        let refused = read(&[user, (header, b"j\xf6rg")]);
        assert_eq!(refused, Err(ImpersonationError::InvalidUtf8(header.into())), "{header}");
    }
    let key = "impersonate-extra-j%f6rg";
    assert_eq!(read(&[user, (key, b"x")]), Err(ImpersonationError::InvalidUtf8(key.into())));
    let unknown = "impersonate-groups";
    assert_eq!(read(&[user, (unknown, b"x")]), Err(ImpersonationError::Unknown(unknown.into())));
    for header in ["impersonate-user", "impersonate-uid"] {
        let refused = read(&[(header, b"a"), (header, b"b")]);
        assert_eq!(refused, Err(ImpersonationError::Duplicate(header.into())));
    }
    for headers in
        [&[("impersonate-user", b"".as_slice())][..], &[("impersonate-group", b"")], &[("impersonate-uid", b"")]]
    {
        assert!(matches!(read(headers), Err(ImpersonationError::NoUser(_))), "{headers:?}");
    }
}

#[test]
fn client_certificates_expire_with_their_chain() {
    use rcgen::{BasicConstraints, IsCa, Issuer};
    let second = |second: i64| Timestamp::from_second(second).unwrap();
    let params = |name: &str, from: i64, until: i64| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = time::OffsetDateTime::from_unix_timestamp(from).unwrap();
        params.not_after = time::OffsetDateTime::from_unix_timestamp(until).unwrap();
        params
    };
    let key = || KeyPair::generate().unwrap();
    let mut between = params("between", 1_000_000_100, 1_000_000_300);
    between.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let between_key = key();
    let between_der = between.self_signed(&between_key).unwrap().der().to_vec();
    let issuer = Issuer::new(between, between_key);
    let own = params("ann", 1_000_000_200, 1_000_000_400).signed_by(&key(), &issuer).unwrap().der().to_vec();
    let unrelated = params("unrelated", 1_000_000_000, 1_000_000_001).self_signed(&key()).unwrap().der().to_vec();
    let alone = ClientCertificate::read(std::slice::from_ref(&own)).unwrap();
    assert_eq!((alone.not_before, alone.not_after), (second(1_000_000_200), second(1_000_000_400)));
    let read = ClientCertificate::read(&[own.clone(), unrelated, between_der]).unwrap();
    assert_eq!((read.not_before, read.not_after), (second(1_000_000_200), second(1_000_000_300)));
    let name = |at: i64| read.user_at(second(at)).map(|user| user.unwrap().name.clone());
    assert_eq!(name(1_000_000_199), Err(CertificateError::NotYetValid(second(1_000_000_200))));
    assert_eq!(name(1_000_000_300), Ok("ann".into()));
    assert_eq!(name(1_000_000_301), Err(CertificateError::Expired(second(1_000_000_300))));
    assert_eq!(ClientCertificate::read(&[own, vec![1]]), Err(CertificateError::Unreadable));
    assert_eq!(ClientCertificate::read(&[[0_u8; 0]; 0]), Err(CertificateError::Unreadable));
}
