//! Headers that describe the response that a client wants.
//!
//! An undecodable header is not ignored: invalid bytes are replaced, so that the value is refused like any other
//! unknown value. Headers that identify the user are not read here; authentication refuses such requests.

use http::HeaderMap;
use http::header::AsHeaderName;
use std::borrow::Cow;

/// The text of a header; of several, the first one, as in Kubernetes.
pub(crate) fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<Cow<'_, str>> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_header_with_invalid_bytes_is_not_ignored() {
        let mut headers = HeaderMap::new();
        assert_eq!(text(&headers, "accept"), None);
        headers.insert("accept", HeaderValue::from_bytes(b"application/j\xffson").unwrap());
        assert_eq!(text(&headers, "accept").as_deref(), Some("application/j\u{fffd}son"));
        headers.insert("accept", HeaderValue::from_bytes("jörg".as_bytes()).unwrap());
        assert_eq!(text(&headers, "accept").as_deref(), Some("jörg"));
    }
}
