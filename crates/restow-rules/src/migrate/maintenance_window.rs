//! Maintenance windows: the times of day at which objects may be rewritten.

use jiff::civil::Time;
use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::str::FromStr;

/// A time of day in UTC, from one minute to another: "22:00-06:00". It may span midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaintenanceWindow {
    from: Time,
    until: Time,
}

/// Not a maintenance window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a window; write the time of day in UTC from and until, as in 22:00-06:00")]
pub struct InvalidMaintenanceWindow {
    text: String,
}

/// The time until a window opens; `None` if one is open, or if there are none.
pub fn wait(windows: &[MaintenanceWindow], now: Timestamp) -> Option<SignedDuration> {
    if windows.is_empty() || windows.iter().any(|window| window.is_open(now)) {
        return None;
    }
    windows.iter().map(|window| window.opens_in(now)).min()
}

/// The time until any window opens or closes; `None` if there are none.
pub fn until_change(windows: &[MaintenanceWindow], now: Timestamp) -> Option<SignedDuration> {
    let edges = windows.iter().flat_map(|window| [window.from, window.until]);
    // The next occurrence of a time that is now is tomorrow.
    let ahead = edges.map(|edge| match ahead(edge, now) {
        SignedDuration::ZERO => SignedDuration::from_hours(24),
        ahead => ahead,
    });
    ahead.min()
}

fn ahead(time: Time, now: Timestamp) -> SignedDuration {
    let ahead = time.duration_since(time_of_day(now));
    if ahead.is_negative() { ahead + SignedDuration::from_hours(24) } else { ahead }
}

impl MaintenanceWindow {
    /// Whether objects may be rewritten at this time.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let time = time_of_day(now);
        if self.from <= self.until {
            self.from <= time && time < self.until
        } else {
            time >= self.from || time < self.until
        }
    }

    fn opens_in(&self, now: Timestamp) -> SignedDuration {
        ahead(self.from, now)
    }
}

fn time_of_day(now: Timestamp) -> Time {
    now.to_zoned(jiff::tz::TimeZone::UTC).time()
}

impl FromStr for MaintenanceWindow {
    type Err = InvalidMaintenanceWindow;

    fn from_str(text: &str) -> Result<Self, InvalidMaintenanceWindow> {
        let invalid = || InvalidMaintenanceWindow { text: text.to_owned() };
        let (from, until) = text.split_once('-').ok_or_else(invalid)?;
        let time = |part: &str| {
            let (hour, minute) = part.trim().split_once(':')?;
            Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
        };
        let window =
            MaintenanceWindow { from: time(from).ok_or_else(invalid)?, until: time(until).ok_or_else(invalid)? };
        if window.from == window.until { Err(invalid()) } else { Ok(window) }
    }
}

impl fmt::Display for MaintenanceWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, until) = (self.from, self.until);
        write!(f, "{:02}:{:02}-{:02}:{:02}", from.hour(), from.minute(), until.hour(), until.minute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-11-16T{time}:00Z").parse().unwrap()
    }

    #[test]
    fn a_window_is_open_within_it_also_past_midnight() {
        let day: MaintenanceWindow = "08:00-17:30".parse().unwrap();
        let night: MaintenanceWindow = "22:00-06:00".parse().unwrap();
        for (window, time, expected) in [
            (day, "08:00", true),
            (day, "17:29", true),
            (day, "17:30", false),
            (night, "22:00", true),
            (night, "23:00", true),
            (night, "05:59", true),
            (night, "06:00", false),
            (night, "12:00", false),
        ] {
            assert_eq!(window.is_open(at(time)), expected, "{window} at {time}");
        }
        assert_eq!(day.to_string(), "08:00-17:30");
    }

    #[test]
    fn the_next_window_is_waited_for() {
        let windows: Vec<MaintenanceWindow> = ["08:00-09:00", "22:00-23:00"].map(|text| text.parse().unwrap()).into();
        assert_eq!(wait(&windows, at("08:30")), None);
        assert_eq!(wait(&windows, at("21:00")), Some(SignedDuration::from_hours(1)));
        assert_eq!(wait(&windows, at("23:00")), Some(SignedDuration::from_hours(9)));
        assert_eq!(wait(&[], at("23:00")), None);
    }

    #[test]
    fn a_window_that_closes_is_a_change_too() {
        let windows: Vec<MaintenanceWindow> = ["08:00-09:00", "22:00-23:00"].map(|text| text.parse().unwrap()).into();
        assert_eq!(until_change(&windows, at("08:30")), Some(SignedDuration::from_mins(30)));
        assert_eq!(until_change(&windows, at("09:00")), Some(SignedDuration::from_hours(13)));
        assert_eq!(until_change(&[], at("09:00")), None);
    }

    #[test]
    fn invalid_maintenance_windows_are_refused() {
        for text in ["", "8", "08:00", "08:00-25:00", "a-b", "08:00-08:00"] {
            assert!(text.parse::<MaintenanceWindow>().is_err(), "{text:?} was accepted");
        }
    }
}
