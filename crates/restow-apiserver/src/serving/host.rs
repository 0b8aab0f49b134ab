//! Checks the header `Host`. Go's HTTP server, and so kube-apiserver, refuses requests in which it is missing, repeated or
//! malformed, before anything else.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Version};

/// What is wrong with the header, with Go's message.
pub(super) fn problem<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Some("too many Host headers");
    }
    match host {
        None if request.version() == Version::HTTP_11 && request.method() != hyper::Method::CONNECT => {
            Some("missing required Host header")
        }
        Some(host) if !host.as_bytes().iter().all(|byte| is_host_byte(*byte)) => Some("malformed Host header"),
        _ => None,
    }
}

/// The response to a request with such a problem.
pub(super) fn refusal(problem: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("400 Bad Request: {problem}")));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Whether a byte may occur in a host: in a name, an address, a port, or a percent-encoding.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_valid_host_header_is_required_by_http_1_1() {
        let check = |version: Version, hosts: &[&[u8]], expected: Option<&str>| {
            let mut request = Request::builder().version(version);
            for host in hosts {
                request = request.header(header::HOST, HeaderValue::from_bytes(host).unwrap());
            }
            assert_eq!(problem(&request.body(()).unwrap()), expected, "{version:?} {hosts:?}");
        };
        check(Version::HTTP_11, &[b"localhost:6443"], None);
        check(Version::HTTP_11, &[b"[::1]:6443"], None);
        check(Version::HTTP_11, &[b""], None);
        check(Version::HTTP_11, &[], Some("missing required Host header"));
        check(Version::HTTP_10, &[], None);
        check(Version::HTTP_2, &[], None);
        check(Version::HTTP_11, &[b"a", b"a"], Some("too many Host headers"));
        check(Version::HTTP_11, &[b"a/b"], Some("malformed Host header"));
        check(Version::HTTP_11, &[b"a@b"], Some("malformed Host header"));
        check(Version::HTTP_11, &[b"j\xf6rg"], Some("malformed Host header"));
    }
}
