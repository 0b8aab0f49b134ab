//! How long a request may take: what the server allows, or less where the client asks for less.

use crate::error::ApiError;
use std::time::Duration;

/// The time for a request, given the `timeout` of its query and what the server allows.
pub(crate) fn allowed(wanted: &str, most: Duration) -> Result<Duration, ApiError> {
    if wanted.is_empty() {
        return Ok(most);
    }
    match go_duration(wanted) {
        Some(Duration::ZERO) => Ok(most),
        Some(wanted) => Ok(wanted.min(most)),
        None => Err(ApiError::BadRequest(format!(
            "invalid timeout specified in the request URL - time: invalid duration {wanted:?}"
        ))),
    }
}

/// A request took too long.
pub(crate) fn exceeded() -> ApiError {
    ApiError::Timeout("request did not complete within the allotted timeout".into())
}

/// A duration in Go's notation, such as `1m30s` or `1.5h`. Negative ones are none that can be waited for.
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
    fn the_clients_wish_counts_where_it_is_shorter() {
        let check = |wanted: &str, expected: Option<u64>| {
            let found = allowed(wanted, Duration::from_secs(60)).ok();
            assert_eq!(found, expected.map(Duration::from_millis), "{wanted}");
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
