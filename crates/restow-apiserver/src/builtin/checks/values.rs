//! Checks of single values.

use restow_apimachinery::names::{self, NameRule};
use restow_tables::checks::TextForm;
use serde_json::Value;
use std::net::IpAddr;

/// The check of a text, by the form that it must have.
pub(in crate::builtin) fn text_problems(form: TextForm) -> fn(&str) -> Vec<String> {
    match form {
        TextForm::Label => |text| NameRule::Label.check(text),
        TextForm::Subdomain => |text| NameRule::Subdomain.check(text),
        TextForm::ServiceLabel => |text| NameRule::ServiceLabel.check(text),
        TextForm::PathSegment => |text| NameRule::PathSegment.check(text),
        TextForm::Qualified => names::qualified_name_problems,
        TextForm::LabelValue => names::label_value_problems,
        TextForm::ConfigKey => names::config_key_problems,
        TextForm::PortName => port_name,
        TextForm::Host => host,
        TextForm::Ip => {
            |text| problem(ip(text).is_none(), "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        }
        TextForm::Cidr => {
            |text| problem(!is_cidr(text), "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
        }
        TextForm::Absolute => |text| problem(!text.starts_with('/'), "must be an absolute path"),
        TextForm::DomainPath => {
            |text| problem(!is_domain_path(text), "must be a domain-prefixed path (such as \"acme.io/foo\")")
        }
    }
}

fn problem(is_there: bool, detail: &str) -> Vec<String> {
    if is_there { vec![detail.to_string()] } else { Vec::new() }
}

/// The message for a number outside of its bounds.
pub(in crate::builtin) fn bounds(low: Option<i64>, high: Option<i64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!("must be between {low} and {high}, inclusive"),
        (Some(low), None) => format!("must be greater than or equal to {low}"),
        (None, Some(high)) => format!("must be less than or equal to {high}"),
        (None, None) => String::new(),
    }
}

/// The errors of a port number or port name, each with the value to show.
pub(in crate::builtin) fn port(value: &Value) -> Vec<(Value, String)> {
    if let Some(name) = value.as_str() {
        return port_name(name).into_iter().map(|problem| (name.into(), problem)).collect();
    }
    let number = value.as_i64().unwrap_or_default();
    let outside = !(1..=65535).contains(&number);
    problem(outside, &bounds(Some(1), Some(65535))).into_iter().map(|problem| (number.into(), problem)).collect()
}

fn port_name(name: &str) -> Vec<String> {
    let is_letter = |letter: char| letter.is_ascii_lowercase();
    let known = |letter: char| is_letter(letter) || letter.is_ascii_digit() || letter == '-';
    let mut problems = problem(name.len() > 15, "must be no more than 15 characters");
    let odd = name.is_empty() || !name.chars().all(known);
    problems.extend(problem(odd, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"));
    problems.extend(problem(!name.contains(is_letter), "must contain at least one letter (a-z)"));
    problems.extend(problem(name.contains("--"), "must not contain consecutive hyphens"));
    let edge = name.starts_with('-') || name.ends_with('-');
    problems.extend(problem(edge, "must not begin or end with a hyphen"));
    problems
}

/// The error of a number or percentage.
pub(in crate::builtin) fn share(value: &Value, up_to_whole: bool) -> Option<String> {
    let Some(text) = value.as_str() else {
        return (value.as_i64().unwrap_or_default() < 0).then(|| bounds(Some(0), None));
    };
    let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty());
    let Some(digits) = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit())) else {
        return Some(
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used \
             for validation is '[0-9]+%')"
                .into(),
        );
    };
    let too_much = up_to_whole && digits.parse::<u64>().is_ok_and(|share| share > 100);
    too_much.then(|| "must not be greater than 100%".into())
}

/// Parses an IP address. Leading zeros are accepted.
fn ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    let plain = text.split('.').map(|part| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0",
        rest => rest,
    });
    plain.collect::<Vec<_>>().join(".").parse().ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let bits = match ip(address) {
        Some(IpAddr::V4(_)) => 32,
        Some(IpAddr::V6(_)) => 128,
        None => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= bits)
}

/// A host name whose first part may be a wildcard.
fn host(name: &str) -> Vec<String> {
    match name.strip_prefix("*.") {
        Some(rest) if NameRule::Subdomain.check(rest).is_empty() => Vec::new(),
        Some(_) => vec![
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of \
             lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', \
             regex used for validation is \
             '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        ],
        None => NameRule::Subdomain.check(name),
    }
}

fn is_domain_path(text: &str) -> bool {
    text.split_once('/').is_some_and(|(domain, path)| NameRule::Subdomain.check(domain).is_empty() && !path.is_empty())
}
