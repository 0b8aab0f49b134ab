//! Reading the headers that say how a client wants to be answered.
//!
//! A header is never left out because it cannot be read: bytes that are no text are replaced, so that what nobody knows stays
//! unknown, and whoever reads it refuses it as it refuses any other unknown value. Headers that say who asks are not read
//! here; `access.rs` refuses those outright.

use http::HeaderMap;
use http::header::AsHeaderName;
use std::borrow::Cow;

/// A header's text; of several, the first counts, as in Kubernetes.
pub(crate) fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<Cow<'_, str>> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_header_that_is_no_text_is_still_there() {
        let mut headers = HeaderMap::new();
        assert_eq!(text(&headers, "accept"), None);
        headers.insert("accept", HeaderValue::from_bytes(b"application/j\xffson").unwrap());
        assert_eq!(text(&headers, "accept").as_deref(), Some("application/j\u{fffd}son"));
        headers.insert("accept", HeaderValue::from_bytes("jörg".as_bytes()).unwrap());
        assert_eq!(text(&headers, "accept").as_deref(), Some("jörg"));
    }
}
