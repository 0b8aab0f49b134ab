//! Finds the object that the server cannot read, and continues the list after it.
//!
//! A page with such an object cannot be listed, and not every server names the object. But a list can start at any key, and
//! whether it fails tells whether the object is at or after that key. A binary search finds the key letter by letter. This
//! relies on the format of continue tokens; with another format nothing is found.

use super::listing::{Detail, ListedObject, PageQuery, page};
use crate::discovery::StoredResource;
use crate::request::RequestError;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube::Client;
use restow_rules::migrate::response::{ResponseClass, classify_listing};
use serde::{Deserialize, Serialize};

/// An object that the server cannot read.
pub(super) struct Unreadable {
    /// Its namespace and name only.
    pub(super) object: ListedObject,
    /// The token with which the list continues after it.
    pub(super) token: String,
    /// Whether the list continues at another revision.
    pub(super) is_later: bool,
}

/// A continue token in Kubernetes' format.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Token {
    v: String,
    /// The revision of the list; -1 for the latest.
    rv: i64,
    start: String,
}

/// A character that sorts after all characters of keys.
const LAST: char = '\u{7f}';
/// The first and the last character of keys.
const LETTERS: (u8, u8) = (b' ', b'~');
/// The maximum length of a namespace and a name together.
const LONGEST_KEY: usize = 512;

/// Finds the object that makes a list of one object fail at this token. `None` if it cannot be found.
pub(super) async fn find(
    client: &Client,
    resource: &StoredResource,
    token: Option<&str>,
) -> Result<Option<Unreadable>, RequestError> {
    let latest = Token { v: "meta.k8s.io/v1".to_owned(), rv: -1, start: String::new() };
    let Some(from) = token.map_or(Some(latest), Token::decode) else { return Ok(None) };
    let mut key = String::new();
    while key.len() < LONGEST_KEY {
        let (mut low, mut high) = (LETTERS.0 - 1, LETTERS.1);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match is_at_or_behind(client, resource, &from, &key, middle).await? {
                Some(true) => low = middle,
                Some(false) => high = middle - 1,
                None => return Ok(None),
            }
        }
        if low < LETTERS.0 {
            break;
        }
        key.push(char::from(low));
    }
    let (namespace, name) = match key.split_once('/') {
        Some((namespace, name)) if resource.is_namespaced => (namespace.to_owned(), name.to_owned()),
        _ => (String::new(), key.clone()),
    };
    let is_later = from.rv < 0;
    let token = Token { start: format!("{key}\0"), ..from }.encode();
    let object = ListedObject { namespace, name, ..ListedObject::default() };
    Ok((!key.is_empty()).then_some(Unreadable { object, token, is_later }))
}

/// Whether the object's key is `key` and this character, or comes after it. `None` if the server refuses the token.
async fn is_at_or_behind(
    client: &Client,
    resource: &StoredResource,
    from: &Token,
    key: &str,
    letter: u8,
) -> Result<Option<bool>, RequestError> {
    // Servers refuse an empty part of a key, and no key has one.
    let is_at_a_part = key.is_empty() || key.ends_with('/');
    let before = if letter - 1 == b'/' && is_at_a_part { b'.' } else { letter - 1 };
    // Some servers start at the key and others after it. No key ends with this character, so both are the same.
    let start = format!("{key}{}{LAST}", char::from(before));
    if start <= from.start {
        return Ok(Some(true));
    }
    let token = Token { start, ..from.clone() }.encode();
    let query = PageQuery { namespace: "", continue_token: Some(&token), limit: 1 };
    match page(client, resource, query, Detail::Identity).await {
        Ok(_) => Ok(Some(false)),
        Err(failure) if failure.code == 500 && is_unreadable(classify_listing(&failure.response())) => Ok(Some(true)),
        Err(failure) if failure.code == 400 => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Whether a list fails because of an object in it.
pub(super) fn is_unreadable(response: ResponseClass) -> bool {
    matches!(response, ResponseClass::Refused | ResponseClass::WebhookNoResponse)
}

impl Token {
    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::json!(self).to_string())
    }
}
