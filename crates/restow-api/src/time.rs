//! Times in Kubernetes' format: RFC 3339 in UTC, with seconds (`Time`) or microseconds (`MicroTime`).

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;

/// A time in seconds: "2026-11-15T21:34:05Z". Fractions are truncated at construction, so that a value equals itself
/// after a round trip through the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Timestamp);

/// A time in microseconds: "2026-11-15T21:34:05.123456Z". Smaller fractions are truncated at construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime(Timestamp);

impl Time {
    /// The timestamp, truncated to seconds.
    pub fn new(timestamp: Timestamp) -> Self {
        Time(cut(timestamp, 1_000_000_000))
    }

    /// The timestamp.
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl MicroTime {
    /// The timestamp, truncated to microseconds.
    pub fn new(timestamp: Timestamp) -> Self {
        MicroTime(cut(timestamp, 1_000))
    }

    /// The timestamp.
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

/// The latest multiple of `unit` nanoseconds that is not after the timestamp.
fn cut(timestamp: Timestamp, unit: i128) -> Timestamp {
    let nanoseconds = timestamp.as_nanosecond();
    // This can only fail in the first second of the representable years, which is a whole second already.
    Timestamp::from_nanosecond(nanoseconds - nanoseconds.rem_euclid(unit)).unwrap_or(timestamp)
}

fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer).map(Time::new)
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer).map(MicroTime::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written<T: Serialize>(value: T) -> String {
        serde_json::to_string(&value).unwrap()
    }

    #[test]
    fn times_are_written_as_kubernetes_writes_them() {
        let timestamp: Timestamp = "2026-11-15T21:34:05.123456789Z".parse().unwrap();
        assert_eq!(written(Time::new(timestamp)), r#""2026-11-15T21:34:05Z""#);
        assert_eq!(written(MicroTime::new(timestamp)), r#""2026-11-15T21:34:05.123456Z""#);
        let whole: Timestamp = "2026-11-15T21:34:05Z".parse().unwrap();
        assert_eq!(written(MicroTime::new(whole)), r#""2026-11-15T21:34:05.000000Z""#);
    }

    #[test]
    fn any_offset_and_precision_is_read() {
        let read: Time = serde_json::from_str(r#""2026-11-15T23:34:05.9+02:00""#).unwrap();
        assert_eq!(read.to_string(), "2026-11-15T21:34:05Z");
        assert!(serde_json::from_str::<Time>(r#""yesterday""#).is_err());
    }

    #[test]
    fn times_before_1970_are_truncated_downwards() {
        let timestamp: Timestamp = "1969-12-31T23:59:58.5Z".parse().unwrap();
        assert_eq!(Time::new(timestamp).to_string(), "1969-12-31T23:59:58Z");
    }
}
