//! The `format` keyword: IP addresses, dates, names and others.
//!
//! Unknown formats are ignored, as in Kubernetes.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use crate::node::Kind;

/// A format that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A format of texts, by its row in [`TEXT_FORMATS`].
    Text(usize),
    /// 32-bit integers.
    Int32,
    /// 64-bit integers.
    Int64,
    /// 32-bit floats.
    Float,
    /// 64-bit floats.
    Double,
}

type Check = fn(&str) -> bool;

/// All text formats: the name without dashes, the name in messages, and the check.
const TEXT_FORMATS: &[(&str, &str, Check)] = &[
    ("bsonobjectid", "bsonobjectid", |text| text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit())),
    ("uri", "uri", is_request_uri),
    ("email", "email", is_email),
    ("hostname", "hostname", is_hostname),
    ("ipv4", "ipv4", is_ipv4),
    ("ipv6", "ipv6", |text| text.contains(':') && is_ipv6(text)),
    ("cidr", "cidr", is_cidr),
    ("mac", "mac", is_mac),
    ("uuid", "uuid", |text| is_uuid(text, None)),
    ("uuid3", "uuid3", |text| is_uuid(text, Some(b'3'))),
    ("uuid4", "uuid4", |text| is_uuid(text, Some(b'4'))),
    ("uuid5", "uuid5", |text| is_uuid(text, Some(b'5'))),
    ("isbn", "isbn", |text| is_isbn10(text) || is_isbn13(text)),
    ("isbn10", "isbn10", is_isbn10),
    ("isbn13", "isbn13", is_isbn13),
    ("creditcard", "creditcard", is_credit_card),
    ("ssn", "ssn", |text| SSN.is_match(text)),
    ("hexcolor", "hexcolor", |text| HEX_COLOR.is_match(text)),
    ("rgbcolor", "rgbcolor", |text| RGB_COLOR.is_match(text)),
    ("byte", "byte", is_base64),
    ("password", "password", |_| true),
    ("date", "date", is_date),
    ("duration", "duration", is_duration),
    ("datetime", "date-time", is_date_time),
    ("k8sshortname", "k8s-short-name", |text| text.len() <= 63 && is_short_name(text)),
    ("k8slongname", "k8s-long-name", |text| text.len() <= 253 && text.split('.').all(is_short_name)),
];

impl Format {
    /// The format of a level's `type` and `format`, if it is checked.
    pub(crate) fn find(kind: Option<Kind>, int_or_string: bool, name: &str) -> Option<Format> {
        match (int_or_string, kind) {
            (true, _) | (_, None | Some(Kind::String)) => {
                let plain = name.replace('-', "");
                TEXT_FORMATS.iter().position(|(known, _, _)| *known == plain).map(Format::Text)
            }
            (_, Some(Kind::Integer)) if name == "int32" => Some(Format::Int32),
            (_, Some(Kind::Integer)) if name == "int64" => Some(Format::Int64),
            (_, Some(Kind::Number)) if name == "float" => Some(Format::Float),
            (_, Some(Kind::Number)) if name == "double" => Some(Format::Double),
            _ => None,
        }
    }

    /// The name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Text(row) => TEXT_FORMATS.get(row).map_or("", |(_, name, _)| name),
            Format::Int32 => "int32",
            Format::Int64 => "int64",
            Format::Float => "float",
            Format::Double => "double",
        }
    }

    /// Whether a text has this format; formats of numbers accept all texts.
    pub(crate) fn admits(self, text: &str) -> bool {
        match self {
            Format::Text(row) => TEXT_FORMATS.get(row).is_none_or(|(_, _, check)| check(text)),
            _ => true,
        }
    }
}

#[allow(clippy::expect_used)]
fn fixed(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the expression is part of the program")
}

static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    fixed(concat!(
        r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|",
        r"([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
    ))
});
static SSN: LazyLock<Regex> = LazyLock::new(|| fixed(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static HEX_COLOR: LazyLock<Regex> = LazyLock::new(|| fixed("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let part = r"(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])";
    fixed(&format!(r"^rgb\(\s*{part}\s*,\s*{part}\s*,\s*{part}\s*\)$"))
});
static DURATION: LazyLock<Regex> = LazyLock::new(|| fixed(r"([0-9]+)\s*([A-Za-zµ]+)"));
static EMAIL: LazyLock<Regex> =
    LazyLock::new(|| fixed(r#"^(?:[^<>@"]*|"[^"]*"\s*)<?([^\s<>@",;:\\\[\]()]+)@([^\s<>@",;:\\()]+)>?$"#));
static CREDIT_CARD: LazyLock<Regex> = LazyLock::new(|| {
    fixed(concat!(
        r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|(222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}|",
        r"6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11}|",
        r"6[27][0-9]{14})$"
    ))
});

fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|byte| byte <= 0x20 || byte == 0x7f) || !percent_is_sound(text) {
        return false;
    }
    if text.starts_with('/') || text == "*" {
        return true;
    }
    match text.split_once(':') {
        Some((scheme, rest)) => {
            let sound = scheme.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
                && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
            let port_is_sound = rest.strip_prefix("//").is_none_or(|rest| {
                let host = rest.split(['/', '?']).next().unwrap_or_default();
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
                let after_address = host.rsplit_once(']').map_or(host, |(_, port)| port);
                after_address.split_once(':').is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
            });
            sound && port_is_sound
        }
        None => false,
    }
}

fn percent_is_sound(text: &str) -> bool {
    let path = text.split(['?', '#']).next().unwrap_or_default();
    path.split('%').skip(1).all(|part| part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

fn is_email(text: &str) -> bool {
    let text = text.trim();
    text.contains('<') == text.contains('>') && EMAIL.is_match(text) && !text.contains("..")
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && HOSTNAME.is_match(text)
}

/// Leading zeros are accepted, as in Kubernetes.
fn is_ipv4(text: &str) -> bool {
    parse_ipv4_sloppily(text).is_some() || (text.contains('.') && text.contains(':') && is_ipv6(text))
}

fn parse_ipv4_sloppily(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *octet = part
            .trim_start_matches('0')
            .parse()
            .or_else(
                |error| if part.contains('0') && part.trim_start_matches('0').is_empty() { Ok(0) } else { Err(error) },
            )
            .ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    if bits.is_empty() || bits.len() > 3 || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let bits: u32 = bits.parse().unwrap_or(u32::MAX);
    if parse_ipv4_sloppily(address).is_some() { bits <= 32 } else { is_ipv6(address) && bits <= 128 }
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, width: usize| part.len() == width && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (separator, width, counts) in [(':', 2, [6, 8, 20]), ('-', 2, [6, 8, 20]), ('.', 4, [3, 4, 10])] {
        let parts: Vec<&str> = text.split(separator).collect();
        if counts.contains(&parts.len()) && parts.iter().all(|part| hex(part, width)) {
            return true;
        }
    }
    false
}

fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let mut rest = text;
    for (group, width) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        let Some(part) = rest.get(..width) else { return false };
        if !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        let first = part.bytes().next().unwrap_or_default().to_ascii_lowercase();
        let variant_is_checked = matches!(version, Some(b'4' | b'5'));
        if (group == 2 && version.is_some_and(|version| version != first))
            || (group == 3 && variant_is_checked && !b"89ab".contains(&first))
        {
            return false;
        }
        rest = rest.get(width..).unwrap_or_default();
        if group < 4 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
    }
    rest.is_empty()
}

fn isbn_digits(text: &str) -> String {
    text.chars().filter(|character| !character.is_whitespace() && *character != '-').collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = isbn_digits(text);
    let last_is_sound = |(place, byte): (usize, u8)| byte.is_ascii_digit() || (place == 9 && byte == b'X');
    digits.len() == 10
        && digits.bytes().enumerate().all(last_is_sound)
        && digits
            .bytes()
            .zip(1u32..)
            .map(|(byte, weight)| weight * if byte == b'X' { 10 } else { u32::from(byte - b'0') })
            .sum::<u32>()
            .is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = isbn_digits(text);
    digits.len() == 13
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits
            .bytes()
            .enumerate()
            .map(|(place, byte)| u32::from(byte - b'0') * if place % 2 == 0 { 1 } else { 3 })
            .sum::<u32>()
            .is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(place, byte)| {
            let doubled = u32::from(byte - b'0') * if place % 2 == 1 { 2 } else { 1 };
            if doubled >= 10 { doubled % 10 + 1 } else { doubled }
        })
        .sum();
    CREDIT_CARD.is_match(&digits) && sum.is_multiple_of(10)
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && padding <= 2
        && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte))
}

pub(crate) fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| text.get(range).and_then(|part| part.parse::<u32>().ok());
    if bytes.len() != 10 || bytes.get(4) != Some(&b'-') || bytes.get(7) != Some(&b'-') {
        return false;
    }
    let (Some(year), Some(month), Some(day)) = (digits(0..4), digits(5..7), digits(8..10)) else { return false };
    if text.contains('+') {
        return false;
    }
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let Some((date, time)) = lower.split_once('t') else { return false };
    if !is_date(date) || time.len() < 9 {
        return false;
    }
    let pair = |range: std::ops::Range<usize>, limit: u32| {
        time.get(range).is_some_and(|part| {
            part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u32>().is_ok_and(|number| number <= limit)
        })
    };
    let clock = pair(0..2, 23)
        && pair(3..5, 59)
        && pair(6..8, 59)
        && time.get(2..3) == Some(":")
        && time.get(5..6) == Some(":");
    let mut rest = time.get(8..).unwrap_or_default();
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return false;
        }
        rest = fraction.get(digits..).unwrap_or_default();
    }
    let offset = rest == "z"
        || (rest.len() == 6
            && rest.starts_with(['+', '-'])
            && rest.get(3..4) == Some(":")
            && [1..3, 4..6]
                .into_iter()
                .all(|part| rest.get(part).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))));
    clock && offset
}

fn is_duration(text: &str) -> bool {
    parse_duration(text).is_some()
}

/// Go's durations, and those with words for units such as `3 days`, in nanoseconds. Other text is ignored, as in
/// Kubernetes.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    if let Some(nanoseconds) = restow_apimachinery::go_syntax::parse_duration(text) {
        return Some(nanoseconds);
    }
    // The last name of a unit matches all words that begin with it.
    const UNITS: &[(&[&str], i64)] = &[
        (&["ns", "nano"], 1),
        (&["us", "µs", "micro"], 1_000),
        (&["ms", "milli"], 1_000_000),
        (&["s", "sec"], 1_000_000_000),
        (&["m", "min"], 60_000_000_000),
        (&["h", "hr", "hour"], 3_600_000_000_000),
        (&["d", "day"], 86_400_000_000_000),
        (&["w", "wk", "week"], 604_800_000_000_000),
    ];
    let mut total = None;
    for found in DURATION.captures_iter(text) {
        let count: i64 = found.get(1)?.as_str().parse().ok()?;
        let unit = found.get(2)?.as_str().to_lowercase();
        let matches =
            |names: &&[&str]| names.contains(&unit.as_str()) || names.last().is_some_and(|last| unit.starts_with(last));
        if let Some((_, nanoseconds)) = UNITS.iter().find(|(names, _)| matches(names)) {
            total = Some(total.unwrap_or(0i64).wrapping_add(count.wrapping_mul(*nanoseconds)));
        }
    }
    total
}

fn is_short_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !text.is_empty()
        && text.bytes().all(|byte| inside(byte) || byte == b'-')
        && text.bytes().next().is_some_and(inside)
        && text.bytes().next_back().is_some_and(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_and_refuse_texts() {
        let cases = [
            ("ipv4", "10.0.0.1", true),
            ("ipv4", "010.000.0.1", true),
            ("ipv4", "10.0.0.256", false),
            ("ipv6", "::1", true),
            ("ipv6", "1.2.3.4", false),
            ("cidr", "10.0.0.0/8", true),
            ("cidr", "10.0.0.0/33", false),
            ("date-time", "2024-02-29T12:00:00Z", true),
            ("date-time", "2023-02-29T12:00:00Z", false),
            ("date-time", "2024-02-29 12:00:00Z", false),
            ("date", "2024-01-31", true),
            ("duration", "1h30m", true),
            ("duration", "3 days", true),
            ("duration", "soon", false),
            ("uuid", "2d1b9d3e-6a0f-4c47-9e1d-6d0fb7f5ee8a", true),
            ("uuid", "2d1b9d3e", false),
            ("hostname", "example.com", true),
            ("hostname", "exa_mple", false),
            ("uri", "https://example.com:8080/a?b=c", true),
            ("uri", "example", false),
            ("email", "a@b.example", true),
            ("email", "nobody", false),
            ("byte", "aGVsbG8=", true),
            ("byte", "aGVsbG8", false),
            ("mac", "01:23:45:67:89:ab", true),
            ("isbn", "978-0321751041", true),
            ("creditcard", "4111-1111-1111-1111", true),
            ("k8s-short-name", "abc-1", true),
            ("k8s-short-name", "Abc", false),
        ];
        for (format, text, expected) in cases {
            let found = Format::find(Some(Kind::String), false, format).unwrap();
            assert_eq!(found.admits(text), expected, "{format} {text}");
        }
        assert_eq!(Format::find(Some(Kind::String), false, "frobnicated"), None);
        assert_eq!(Format::find(Some(Kind::Integer), false, "int-or-string"), None);
    }
}
