//! Requests through a front proxy: the proxy has authenticated the user, and names them in headers. The proxy identifies itself
//! with a client certificate of an authority of its own; that the certificate is of that authority is verified elsewhere.

use crate::User;
use crate::authenticate::{CertificateError, ClientCertificate};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Which front proxies are trusted, and the headers in which they name users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeaders {
    /// The common names of the certificates of proxies; empty for all of their authority.
    pub allowed_names: Vec<String>,
    /// The headers with the user's name; the first one that is there counts.
    pub username_headers: Vec<String>,
    /// The headers with the user's groups; all count.
    pub group_headers: Vec<String>,
    /// The prefixes of the headers with the user's extra fields.
    pub extra_headers_prefix: Vec<String>,
    /// The headers with the user's uid; the first one that is there counts.
    pub uid_headers: Vec<String>,
}

impl Default for RequestHeaders {
    /// The headers that kube-apiserver sends, of any proxy of the authority.
    fn default() -> Self {
        let one = |name: &str| vec![name.to_string()];
        RequestHeaders {
            allowed_names: Vec::new(),
            username_headers: one("X-Remote-User"),
            group_headers: one("X-Remote-Group"),
            extra_headers_prefix: one("X-Remote-Extra-"),
            uid_headers: one("X-Remote-Uid"),
        }
    }
}

impl RequestHeaders {
    /// The user that a front proxy names. `None` if it is no proxy that is trusted, or names nobody. The names of the headers
    /// are lower-case.
    pub fn user<'a>(
        &self,
        proxy: &ClientCertificate,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        now: Timestamp,
    ) -> Result<Option<User>, CertificateError> {
        let Some(proxy) = proxy.user_at(now)? else { return Ok(None) };
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&proxy.name) {
            return Ok(None);
        }
        let headers: Vec<(&str, String)> =
            headers.map(|(name, value)| (name, String::from_utf8_lossy(value).into_owned())).collect();
        let name = first(&headers, &self.username_headers);
        if name.is_empty() {
            return Ok(None);
        }
        let uid = first(&headers, &self.uid_headers);
        let groups = self.group_headers.iter().flat_map(|wanted| all(&headers, wanted)).collect();
        Ok(Some(User { name, uid, groups, extra: self.extra(&headers) }))
    }

    fn extra(&self, headers: &[(&str, String)]) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extra_headers_prefix {
            let prefix = prefix.to_ascii_lowercase();
            for (name, value) in headers {
                if let Some(key) = name.strip_prefix(&prefix) {
                    extra.entry(unescaped(key)).or_default().push(value.clone());
                }
            }
        }
        extra
    }

    /// Whether a header, by its lower-case name, is one in which a proxy names users.
    pub fn contains(&self, header: &str) -> bool {
        let names = [&self.username_headers, &self.group_headers, &self.uid_headers];
        names.into_iter().flatten().any(|name| name.eq_ignore_ascii_case(header))
            || self.extra_headers_prefix.iter().any(|prefix| header.starts_with(&prefix.to_ascii_lowercase()))
    }
}

/// The first value that is not empty of the first of these headers that has one.
fn first(headers: &[(&str, String)], wanted: &[String]) -> String {
    wanted.iter().flat_map(|wanted| all(headers, wanted)).find(|value| !value.is_empty()).unwrap_or_default()
}

fn all(headers: &[(&str, String)], wanted: &str) -> Vec<String> {
    let found = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
    found.map(|(_, value)| value.clone()).collect()
}

/// The key of an extra field, without percent-encoding. A key that is not encoded properly stays as it is.
fn unescaped(key: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = key.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', None) => return key.to_string(),
            (_, Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (byte, None) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_string()).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: [(&str, &str); 7] = [
        ("x-remote-user", "anna"),
        ("x-remote-user", "bert"),
        ("x-remote-group", "a"),
        ("x-remote-group", "b"),
        ("x-remote-uid", "7"),
        ("x-remote-extra-example.com%2fscopes", "read"),
        ("accept", "x"),
    ];

    fn user(config: &RequestHeaders, proxy: &str, headers: &[(&'static str, &'static str)]) -> Option<User> {
        let proxy = ClientCertificate::of(User::named(proxy));
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        config.user(&proxy, headers, Timestamp::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn the_user_is_the_one_that_the_proxy_names() {
        let found = user(&RequestHeaders::default(), "proxy", &HEADERS).unwrap();
        let extra = BTreeMap::from([("example.com/scopes".to_string(), vec!["read".to_string()])]);
        assert_eq!(found, User { name: "anna".into(), uid: "7".into(), groups: vec!["a".into(), "b".into()], extra });
        assert_eq!(user(&RequestHeaders::default(), "proxy", &[("x-remote-group", "a")]), None);
    }

    #[test]
    fn only_proxies_with_an_allowed_name_may_name_users() {
        let config = RequestHeaders { allowed_names: vec!["proxy".into()], ..RequestHeaders::default() };
        assert!(user(&config, "proxy", &HEADERS).is_some());
        assert_eq!(user(&config, "another", &HEADERS), None);
    }

    #[test]
    fn the_certificate_of_the_proxy_must_be_valid_now() {
        let expired = ClientCertificate { not_after: Timestamp::UNIX_EPOCH, ..ClientCertificate::of(User::named("p")) };
        let now = Timestamp::from_second(10).unwrap();
        let headers = HEADERS.iter().map(|(name, value)| (*name, value.as_bytes()));
        let failure = RequestHeaders::default().user(&expired, headers, now);
        assert_eq!(failure, Err(CertificateError::Expired(Timestamp::UNIX_EPOCH)));
    }

    #[test]
    fn headers_that_name_users_are_known() {
        let config = RequestHeaders::default();
        for name in ["x-remote-user", "x-remote-group", "x-remote-uid", "x-remote-extra-a"] {
            assert!(config.contains(name), "{name}");
        }
        assert!(!config.contains("accept"));
    }

    #[test]
    fn keys_of_extra_fields_are_unescaped() {
        for (key, expected) in
            [("a", "a"), ("a%2fb", "a/b"), ("a%25", "a%"), ("a%2", "a%2"), ("%zz", "%zz"), ("Ab", "ab")]
        {
            assert_eq!(unescaped(key), expected);
        }
    }
}
