//! Timestamps and durations as text and as calendar fields, in UTC or at a fixed offset.

const NANOS: i128 = 1_000_000_000;
const DAY: i64 = 86_400;

/// The fields of a point in time.
pub(crate) struct Civil {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) millisecond: i64,
    pub(crate) day_of_week: i64,
    pub(crate) day_of_year: i64,
}

/// Parses RFC 3339.
pub(crate) fn parse_timestamp(text: &str) -> Option<i128> {
    let number = |from: usize, to: usize| {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<i64>().ok()).flatten()
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let separators = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
    if !separators.iter().all(|(at, expected)| text.get(*at..at + 1) == Some(expected))
        || !matches!(text.get(10..11), Some("T" | "t"))
        || !crate::format::is_date(text.get(..10)?)
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0i128;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let kept = fraction.get(..digits.min(9)).filter(|kept| !kept.is_empty())?;
        nanos = kept.parse::<i128>().ok()? * 10i128.pow(9 - kept.len() as u32);
        rest = fraction.get(digits..)?;
    }
    let offset = if rest.eq_ignore_ascii_case("z") { 0 } else { parse_offset(rest)? };
    let seconds = days_from_civil(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset;
    Some(i128::from(seconds) * NANOS + nanos)
}

/// Parses an offset such as `+01:00` to seconds east of UTC.
pub(crate) fn parse_offset(text: &str) -> Option<i64> {
    if text.is_empty() || text == "UTC" {
        return Some(0);
    }
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let number = |part: &str| (part.len() == 2).then(|| part.parse::<u32>().ok()).flatten().map(i64::from);
    Some(sign * (number(hours)? * 3600 + number(minutes)? * 60))
}

/// Formats a time as RFC 3339 in UTC.
pub(crate) fn show_timestamp(timestamp: i128) -> String {
    let civil = civil(timestamp, 0);
    let nanos = timestamp.rem_euclid(NANOS);
    let Civil { year, month, day, hour, minute, second, .. } = civil;
    let fraction = if nanos == 0 { String::new() } else { format!(".{nanos:09}").trim_end_matches('0').to_string() };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Formats a duration in seconds, as CEL does.
pub(crate) fn show_duration(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let magnitude = nanoseconds.unsigned_abs();
    let (seconds, nanos) = (magnitude / 1_000_000_000, magnitude % 1_000_000_000);
    let fraction = if nanos == 0 { String::new() } else { format!(".{nanos:09}").trim_end_matches('0').to_string() };
    format!("{sign}{seconds}{fraction}s")
}

/// The calendar fields at an offset from UTC.
pub(crate) fn civil(timestamp: i128, offset: i64) -> Civil {
    let seconds = timestamp.div_euclid(NANOS) as i64 + offset;
    let days = seconds.div_euclid(DAY);
    let in_day = seconds.rem_euclid(DAY);
    let (year, month, day) = civil_from_days(days);
    Civil {
        year,
        month,
        day,
        hour: in_day / 3600,
        minute: in_day % 3600 / 60,
        second: in_day % 60,
        millisecond: (timestamp.rem_euclid(NANOS) / 1_000_000) as i64,
        day_of_week: (days + 4).rem_euclid(7),
        day_of_year: days - days_from_civil(year, 1, 1),
    }
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_survive_a_round_trip() {
        for text in ["1970-01-01T00:00:00Z", "2024-02-29T23:59:59.5Z", "1969-12-31T23:59:59Z", "9999-12-31T00:00:00Z"] {
            assert_eq!(show_timestamp(parse_timestamp(text).unwrap()), text);
        }
        assert_eq!(parse_timestamp("2024-01-01T01:00:00+01:00"), parse_timestamp("2024-01-01T00:00:00Z"));
        assert_eq!(parse_timestamp("2024-13-01T00:00:00Z"), None);
        assert_eq!(civil(parse_timestamp("2024-03-01T12:30:00Z").unwrap(), 0).day_of_year, 60);
        assert_eq!(civil(0, 0).day_of_week, 4);
    }
}
