//! Times in the format of the Kubernetes API: RFC 3339 in UTC, with seconds or microseconds.

use jiff::Timestamp;

use crate::go_syntax::quote;

/// The precision of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    Seconds,
    Microseconds,
}

/// Reads a time. The zero time of Go, which stands for "not set", is `None`.
///
/// # Errors
/// The text is not such a time; the message is the one that Go gives.
pub(super) fn parse(text: &str, precision: Precision) -> Result<Option<Timestamp>, String> {
    let mut rest = text;
    for (element, width) in LAYOUT {
        rest = take(rest, element, width).ok_or_else(|| cannot_parse(text, precision, rest, element))?;
    }
    rest = take_fraction(rest, precision).ok_or_else(|| cannot_parse(text, precision, rest, ".000000"))?;
    let zone = take_zone(rest).ok_or_else(|| cannot_parse(text, precision, rest, "Z07:00"))?;
    if !zone.is_empty() {
        return Err(format!("parsing time {}: extra text: {}", quote(text), quote(zone)));
    }
    if let Some(field) = out_of_range(text) {
        return Err(format!("parsing time {}: {field} out of range", quote(text)));
    }
    let timestamp: Timestamp =
        text.replacen(',', ".", 1).parse().map_err(|_| format!("parsing time {}: day out of range", quote(text)))?;
    Ok((timestamp.as_second() != ZERO_TIME).then_some(timestamp))
}

/// Formats a time; `None` if the year is out of range.
pub(super) fn format(seconds: i64, nanoseconds: i32, precision: Precision) -> Option<String> {
    let written = Timestamp::new(seconds, 0).ok()?.to_string();
    let microseconds = nanoseconds / 1000;
    Some(match precision {
        Precision::Seconds => written,
        Precision::Microseconds => format!("{}.{microseconds:06}Z", written.trim_end_matches('Z')),
    })
}

/// Seconds of Go's zero time, the first of January of the year 1.
pub(super) const ZERO_TIME: i64 = -62_135_596_800;

const LAYOUT: [(&str, usize); 11] = [
    ("2006", 4),
    ("-", 0),
    ("01", 2),
    ("-", 0),
    ("02", 2),
    ("T", 0),
    ("15", 2),
    (":", 0),
    ("04", 2),
    (":", 0),
    ("05", 2),
];

/// Takes one element of the layout: so many digits, or the element itself if that is 0.
fn take<'t>(text: &'t str, element: &str, digits: usize) -> Option<&'t str> {
    if digits == 0 {
        return text.strip_prefix(element);
    }
    let taken = text.get(..digits)?;
    taken.bytes().all(|byte| byte.is_ascii_digit()).then(|| &text[digits..])
}

fn take_fraction(text: &str, precision: Precision) -> Option<&str> {
    let Some(fraction) = text.strip_prefix(['.', ',']) else {
        return (precision == Precision::Seconds).then_some(text);
    };
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
    match precision {
        Precision::Seconds if digits == 0 => Some(text),
        Precision::Seconds => Some(&fraction[digits..]),
        Precision::Microseconds => (digits == 6).then(|| &fraction[6..]),
    }
}

fn take_zone(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('Z') {
        return Some(rest);
    }
    let rest = text.strip_prefix(['+', '-'])?;
    let rest = take(rest, "07", 2)?;
    take(take(rest, ":", 0)?, "00", 2)
}

/// The first number of a well-formed time that is out of range, with its name in Go.
fn out_of_range(text: &str) -> Option<&'static str> {
    let number = |from: usize| text.get(from..from + 2).and_then(|digits| digits.parse::<u8>().ok());
    let checks: [(usize, std::ops::RangeInclusive<u8>, &'static str); 5] = [
        (5, 1..=12, "month"),
        (8, 1..=31, "day"),
        (11, 0..=23, "hour"),
        (14, 0..=59, "minute"),
        (17, 0..=59, "second"),
    ];
    checks.into_iter().find(|(from, range, _)| number(*from).is_none_or(|value| !range.contains(&value))).map(|c| c.2)
}

fn cannot_parse(text: &str, precision: Precision, rest: &str, element: &str) -> String {
    let layout = match precision {
        Precision::Seconds => "2006-01-02T15:04:05Z07:00",
        Precision::Microseconds => "2006-01-02T15:04:05.000000Z07:00",
    };
    format!("parsing time {} as {}: cannot parse {} as {}", quote(text), quote(layout), quote(rest), quote(element))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Result<Option<i64>, String> {
        parse(text, Precision::Seconds).map(|time| time.map(Timestamp::as_second))
    }

    #[test]
    fn reads_and_writes_times() {
        assert_eq!(seconds("1970-01-01T00:00:10Z"), Ok(Some(10)));
        assert_eq!(seconds("1970-01-01T01:00:10.25+01:00"), Ok(Some(10)));
        assert_eq!(seconds("0001-01-01T00:00:00Z"), Ok(None));
        assert_eq!(format(1, 0, Precision::Seconds).as_deref(), Some("1970-01-01T00:00:01Z"));
        assert_eq!(format(1, 2_999, Precision::Microseconds).as_deref(), Some("1970-01-01T00:00:01.000002Z"));
        assert_eq!(format(-62_135_596_799, 0, Precision::Seconds).as_deref(), Some("0001-01-01T00:00:01Z"));
        assert_eq!(format(i64::MAX, 0, Precision::Seconds), None);
    }

    #[test]
    fn invalid_times_are_reported_with_gos_messages() {
        let layout = "2006-01-02T15:04:05Z07:00";
        assert_eq!(
            seconds("yesterday"),
            Err(format!("parsing time \"yesterday\" as \"{layout}\": cannot parse \"yesterday\" as \"2006\""))
        );
        assert_eq!(
            seconds("2020-01-01"),
            Err(format!("parsing time \"2020-01-01\" as \"{layout}\": cannot parse \"\" as \"T\""))
        );
        assert_eq!(
            seconds("2020-13-01T00:00:00Z"),
            Err("parsing time \"2020-13-01T00:00:00Z\": month out of range".to_owned())
        );
        assert_eq!(
            seconds("2021-02-29T00:00:00Z"),
            Err("parsing time \"2021-02-29T00:00:00Z\": day out of range".to_owned())
        );
        assert!(parse("2020-01-01T00:00:00Z", Precision::Microseconds).is_err());
        assert!(parse("2020-01-01T00:00:00.123456Z", Precision::Microseconds).is_ok());
    }
}
