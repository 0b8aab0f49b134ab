//! Compression of large responses (gzip), as kube-apiserver does.

use crate::flow_control::fair_queue;
use crate::handlers::Interrupted;
use crate::http::body::{Body, StreamBody, StreamKind};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use std::io::{self, Write};

/// The smallest response that is compressed, as in Kubernetes.
const MIN_BYTES: usize = 128 << 10;

/// Compresses a large response if the client accepts it. `accepted` is the header `Accept-Encoding`. A complete body is
/// compressed in a turn of the fair queue, a stream chunk by chunk on blocking threads.
pub(crate) async fn compress(response: Response<Body>, accepted: Option<&str>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    let fit = head.status == StatusCode::OK && !head.headers.contains_key(header::CONTENT_ENCODING);
    let worthwhile = match &body {
        Body::Whole(bytes) => bytes.len() >= MIN_BYTES,
        Body::Stream(stream) => stream.kind == StreamKind::Document,
    };
    if !fit || !worthwhile || !accepts_gzip(accepted) {
        return Response::from_parts(head, body);
    }
    let compressed = match body {
        Body::Whole(bytes) => {
            fair_queue::wait_for_turn(bytes.len()).await;
            match gzip(&bytes) {
                Ok(compressed) => Body::Whole(compressed),
                Err(_) => return Response::from_parts(head, Body::Whole(bytes)),
            }
        }
        Body::Stream(stream) => {
            Body::Stream(StreamBody { chunks: gzip_chunks(stream.chunks).boxed(), kind: stream.kind, record: None })
        }
    };
    head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(head, compressed)
}

/// Compresses the chunks of one document as they come.
fn gzip_chunks(
    parts: impl Stream<Item = Result<Bytes, Interrupted>> + Send + Unpin,
) -> impl Stream<Item = Result<Bytes, Interrupted>> + Send {
    futures::stream::unfold(Some((parts, encoder(0))), |state| async {
        let (mut parts, mut encoder) = state?;
        let part = match parts.next().await {
            Some(Err(interrupted)) => return Some((Err(interrupted), None)),
            Some(Ok(part)) => part,
            None => return Some((encoder.finish().map(Bytes::from).map_err(|_| Interrupted), None)),
        };
        let work = restow_host::run_blocking(move || {
            encoder.write_all(&part)?;
            let compressed = std::mem::take(encoder.get_mut());
            io::Result::Ok((encoder, compressed))
        });
        match work.await {
            Ok(Ok((encoder, compressed))) => Some((Ok(compressed.into()), Some((parts, encoder)))),
            _ => Some((Err(Interrupted), None)),
        }
    })
}

/// Level 1: most of the saving for a fraction of the work.
fn encoder(capacity: usize) -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::with_capacity(capacity), Compression::new(1))
}

fn gzip(bytes: &[u8]) -> io::Result<Bytes> {
    let mut encoder = encoder(bytes.len() / 8);
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.into())
}

fn accepts_gzip(header: Option<&str>) -> bool {
    header.unwrap_or_default().split(',').any(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let named = parts.next().is_some_and(|coding| coding.eq_ignore_ascii_case("gzip") || coding == "*");
        let refused = parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse::<f32>().unwrap_or(0.0) == 0.0));
        named && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn gzip_is_used_only_where_it_is_accepted() {
        for (header, expected) in [
            (Some("gzip"), true),
            (Some("deflate, gzip;q=0.5"), true),
            (Some("*"), true),
            (Some("gzip;q=0"), false),
            (Some("identity"), false),
            (None, false),
        ] {
            assert_eq!(accepts_gzip(header), expected, "{header:?}");
        }
    }

    #[tokio::test]
    async fn large_responses_are_compressed_without_loss() {
        for (size, compressed) in [(1000, false), (MIN_BYTES, true), (1 << 20, true)] {
            let sent: Vec<u8> = (0..size).map(|index| (index % 7) as u8).collect();
            let response = compress(Response::new(Body::Whole(sent.clone().into())), Some("gzip")).await;
            assert_eq!(response.headers().contains_key(header::CONTENT_ENCODING), compressed, "{size}");
            let Body::Whole(bytes) = response.into_body() else { panic!("a stream") };
            let mut read = Vec::new();
            match compressed {
                true => flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut read).unwrap(),
                false => (&*bytes).read_to_end(&mut read).unwrap(),
            };
            assert_eq!(read, sent);
        }
    }
}
