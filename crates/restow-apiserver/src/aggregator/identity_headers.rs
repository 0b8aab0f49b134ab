//! The headers with which this server tells the servers behind it who sends a request, and the headers of clients that are
//! not passed on.

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};
use restow_auth::User;
use std::net::IpAddr;
use thiserror::Error;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA_PREFIX: &str = "x-remote-extra-";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers that are about one connection only.
const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// A user who cannot be described in headers.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the name, a group or an extra field of the user cannot be sent in a header")]
pub(crate) struct InvalidIdentity;

/// Removes everything from the headers of a request that only concerns its client and this server: credentials,
/// impersonation, identity headers, the connection.
pub(super) fn strip(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    let private = |name: &HeaderName| {
        let name = name.as_str();
        name == "authorization" || name == "host" || name.starts_with("impersonate-") || name.starts_with("x-remote-")
    };
    let private: Vec<HeaderName> = headers.keys().filter(|name| private(name)).cloned().collect();
    for name in private {
        headers.remove(name);
    }
}

/// Removes the headers of the connection, with those that `Connection` names.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let mut named = Vec::new();
    for value in headers.get_all(header::CONNECTION) {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        named.extend(text.split(',').filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok()));
    }
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Sets the headers that describe the user.
pub(super) fn set_user(headers: &mut HeaderMap, user: &User) -> Result<(), InvalidIdentity> {
    // Who reads a header removes white space around its value, so that `admin ` would become `admin`.
    let value = |text: &str| match text.trim() == text {
        true => HeaderValue::from_bytes(text.as_bytes()).map_err(|_| InvalidIdentity),
        false => Err(InvalidIdentity),
    };
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("{EXTRA_PREFIX}{}", escaped(key));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| InvalidIdentity)?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// Adds the address of the client.
pub(super) fn add_client(headers: &mut HeaderMap, address: IpAddr) {
    let before: Vec<String> = headers
        .get_all(FORWARDED_FOR)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .collect();
    let all = before.into_iter().chain([address.to_string()]).collect::<Vec<_>>().join(", ");
    if let Ok(value) = HeaderValue::from_bytes(all.as_bytes()) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Whether a request has passed a server: every server that passes a request on adds itself to `Via`.
pub(super) fn has_passed(headers: &HeaderMap, via: &HeaderValue) -> bool {
    let texts = headers.get_all(header::VIA).iter().map(HeaderValue::as_bytes);
    texts.flat_map(|text| text.split(|byte| *byte == b',')).any(|one| one.trim_ascii() == via.as_bytes())
}

/// The key of an extra field, with percent-encoding for what a header name cannot have.
fn escaped(key: &str) -> String {
    key.bytes().fold(String::new(), |mut name, byte| {
        match byte {
            b'%' => name.push_str("%25"),
            _ if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn credentials_and_identities_of_clients_are_not_passed_on() {
        let mut found = headers(&[
            ("authorization", "Bearer x"),
            ("x-remote-user", "root"),
            ("x-remote-group", "system:masters"),
            ("x-remote-extra-scopes", "all"),
            ("x-remote-uid", "0"),
            ("impersonate-user", "root"),
            ("connection", "keep-alive, x-private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("accept", "application/json"),
        ]);
        strip(&mut found);
        assert_eq!(found, headers(&[("accept", "application/json")]));
    }

    #[test]
    fn the_user_is_described_as_kubernetes_does() {
        let mut user =
            User { name: "anna".into(), uid: "7".into(), groups: vec!["a".into(), "b".into()], ..User::default() };
        user.extra.insert("example.com/scopes%".into(), vec!["x".into(), "y".into()]);
        let mut found = HeaderMap::new();
        set_user(&mut found, &user).unwrap();
        let expected = headers(&[
            ("x-remote-user", "anna"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.com%2fscopes%25", "x"),
            ("x-remote-extra-example.com%2fscopes%25", "y"),
        ]);
        assert_eq!(found, expected);
        for odd in ["a\nb", "anna ", "\tanna", "anna\u{a0}"] {
            let odd = User { name: odd.into(), ..User::default() };
            assert_eq!(set_user(&mut HeaderMap::new(), &odd), Err(InvalidIdentity), "{odd:?}");
        }
        let odd = User { name: "anna".into(), groups: vec![" system:masters".into()], ..User::default() };
        assert_eq!(set_user(&mut HeaderMap::new(), &odd), Err(InvalidIdentity));
    }

    #[test]
    fn a_server_finds_itself_among_those_that_a_request_has_passed() {
        let own = HeaderValue::from_static("1.1 apiserver-a");
        assert!(has_passed(&headers(&[("via", "1.1 proxy"), ("via", "2.0 other , 1.1 apiserver-a")]), &own));
        assert!(!has_passed(&headers(&[("via", "1.1 apiserver-ab")]), &own));
        assert!(!has_passed(&HeaderMap::new(), &own));
    }

    #[test]
    fn the_address_of_the_client_comes_last() {
        let mut found = headers(&[("x-forwarded-for", "10.0.0.1")]);
        add_client(&mut found, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(found[FORWARDED_FOR], "10.0.0.1, 10.0.0.2");
    }
}
