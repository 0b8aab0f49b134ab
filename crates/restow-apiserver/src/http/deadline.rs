//! The timeout of a request: the server's limit, or less if the client requests less.

use crate::error::ApiError;
use std::time::Duration;

/// The timeout of a request, from its `timeout` parameter and the server's limit.
pub(crate) fn allowed(requested: &str, limit: Duration) -> Result<Duration, ApiError> {
    if requested.is_empty() {
        return Ok(limit);
    }
    match go_duration(requested) {
        Some(Duration::ZERO) => Ok(limit),
        Some(requested) => Ok(requested.min(limit)),
        None => Err(ApiError::BadRequest(format!(
            "invalid timeout specified in the request URL - time: invalid duration {requested:?}"
        ))),
    }
}

/// The error for a request that took too long.
pub(crate) fn exceeded() -> ApiError {
    ApiError::Timeout("request did not complete within the allotted timeout".into())
}

/// A duration in Go's notation, such as `1m30s` or `1.5h`. Negative ones are refused.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let unit = rest[number..].find(|c: char| c.is_ascii_digit() || c == '.').map_or(rest.len(), |end| number + end);
        let seconds = match &rest[number..unit] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += rest[..number].parse::<f64>().ok()? * seconds;
        rest = &rest[unit..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_of_the_client_applies_if_it_is_shorter() {
        let check = |requested: &str, expected: Option<u64>| {
            let found = allowed(requested, Duration::from_secs(60)).ok();
            assert_eq!(found, expected.map(Duration::from_millis), "{requested}");
        };
        check("", Some(60_000));
        check("0s", Some(60_000));
        check("10s", Some(10_000));
        check("1m30s", Some(60_000));
        check("1.5s", Some(1_500));
        check("250ms", Some(250));
        check("5", None);
        check("-5s", None);
        check("soon", None);
        check("s", None);
        check("1e400h", None);
    }
}
