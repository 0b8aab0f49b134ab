//! URLs with a scheme and a host, or with a path only.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{FunctionResult, NONE, Opaque};
use crate::cel::collection::Entries;
use crate::cel::value::Val;

/// The parts of a URL, as written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) text: String,
    pub(crate) scheme: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) query: String,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Url, String> {
        let fault = |why: &str| format!("URL parse error during conversion from string: parse {text:?}: {why}");
        if text.is_empty() {
            return Err(fault("empty url"));
        }
        if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
            return Err(fault("net/url: invalid control character in URL"));
        }
        let (body, _) = text.split_once('#').unwrap_or((text, ""));
        let (body, query) = body.split_once('?').unwrap_or((body, ""));
        let (scheme, rest) = match body.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            _ => (String::new(), body),
        };
        if scheme.is_empty() && !rest.starts_with('/') {
            return Err(fault("invalid URI for request"));
        }
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => match rest.find('/') {
                Some(slash) => rest.split_at(slash),
                None => (rest, ""),
            },
            None => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let port = host.rsplit_once(']').map_or(host, |(_, port)| port);
        if host.contains([' ', '<', '>', '"']) {
            return Err(fault("invalid character in host name"));
        }
        if port.split_once(':').is_some_and(|(_, port)| !port.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(fault("invalid port after host"));
        }
        let path = path.replace(' ', "%20");
        Ok(Url { text: text.to_string(), scheme, host: host.to_string(), path, query: query.to_string() })
    }

    pub(super) fn hostname(&self) -> String {
        match self.host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address.to_string(),
            None => self.host.split(':').next().unwrap_or_default().to_string(),
        }
    }

    pub(super) fn port(&self) -> String {
        let after = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, after)| after);
        after.split_once(':').map_or(String::new(), |(_, port)| port.to_string())
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn url_of<'v>(value: &'v Val<'_>) -> Option<&'v Url> {
    match value {
        Val::Opaque(opaque) => match opaque.as_ref() {
            Opaque::Url(url) => Some(url),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn part<'a>(arguments: &[Val<'a>], get: impl Fn(&Url) -> String) -> FunctionResult<'a> {
    if let [value] = arguments { url_of(value).map(|url| Val::text(get(url))).ok_or(NONE) } else { Err(NONE) }
}

pub(super) fn query<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let [value] = arguments else { return Err(NONE) };
    let url = url_of(value).ok_or(NONE)?;
    let mut found: BTreeMap<String, Vec<Val<'a>>> = BTreeMap::new();
    for pair in url.query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name), Val::text(decode(value)));
        found.entry(name).or_default().push(value);
    }
    let mut entries = Entries::default();
    for (name, values) in found {
        entries.insert(Val::text(name), Val::list(values)?)?;
    }
    Ok(Val::Map(Rc::new(entries)))
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digits: Vec<u8> = bytes.by_ref().take(2).collect();
                let code = std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                out.extend(code);
            }
            plain => out.push(plain),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
