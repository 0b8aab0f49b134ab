//! Kubernetes' types in expressions: URLs, IP addresses, quantities, versions and named formats.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use restow_apimachinery::types::Amount;

use super::eval::EvalError;
use super::functions::Native;
use super::value::Val;

pub(crate) mod authorizer;
mod format;
mod net;
mod quantity;
mod semver;
mod url;

use authorizer::{AuthorizationCheck, AuthorizationDecision};
pub(crate) use semver::Semver;
pub(crate) use url::Url;

/// A value of one of these types.
#[derive(Debug, PartialEq)]
pub(crate) enum Opaque {
    Url(Url),
    Address(IpAddr),
    Network { address: IpAddr, bits: u8 },
    Quantity(Amount),
    Semver(Semver),
    Format(&'static str),
    Authorizer(AuthorizationCheck),
    Check(AuthorizationCheck),
    Decision(AuthorizationDecision),
}

/// The type of `authorizer`.
pub(crate) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
/// The type of `authorizer.requestResource`.
pub(crate) const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";

const NONE: EvalError = EvalError::NoSuchOverload;

type FunctionResult<'a> = Result<Val<'a>, EvalError>;

impl Opaque {
    /// The name of the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Opaque::Url(_) => "kubernetes.URL",
            Opaque::Address(_) => "net.IP",
            Opaque::Network { .. } => "net.CIDR",
            Opaque::Quantity(_) => "kubernetes.Quantity",
            Opaque::Semver(_) => "kubernetes.Semver",
            Opaque::Format(_) => "kubernetes.NamedFormat",
            Opaque::Authorizer(_) => AUTHORIZER,
            Opaque::Check(AuthorizationCheck { path: Some(_), .. }) => "kubernetes.authorization.PathCheck",
            Opaque::Check(check) if check.resource.is_empty() => "kubernetes.authorization.GroupCheck",
            Opaque::Check(_) => RESOURCE_CHECK,
            Opaque::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// The order of two values of the same type, if there is one.
    pub(crate) fn compare(&self, other: &Opaque) -> Option<Ordering> {
        match (self, other) {
            (Opaque::Quantity(left), Opaque::Quantity(right)) => Some(left.cmp(right)),
            (Opaque::Semver(left), Opaque::Semver(right)) => Some(left.compare(right)),
            _ => None,
        }
    }
}

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opaque::Url(url) => write!(f, "{}", url.text),
            Opaque::Address(address) => write!(f, "{address}"),
            Opaque::Network { address, bits } => write!(f, "{address}/{bits}"),
            Opaque::Quantity(amount) => write!(f, "{}", quantity::show(*amount)),
            Opaque::Semver(version) => write!(f, "{version}"),
            Opaque::Format(name) => write!(f, "{name}"),
            Opaque::Authorizer(_) | Opaque::Check(_) | Opaque::Decision(_) => write!(f, "{}", self.type_name()),
        }
    }
}

fn opaque<'a>(value: Opaque) -> Val<'a> {
    Val::Opaque(Rc::new(value))
}

/// The functions of these types.
pub(crate) const TABLE: &[(&str, Native)] = &[
    ("url", |a| parsed(a, |text| Url::parse(text).map(Opaque::Url))),
    ("isURL", |a| test(a, |text| Url::parse(text).is_ok())),
    ("getScheme", |a| url::part(a, |url| url.scheme.clone())),
    ("getHost", |a| url::part(a, |url| url.host.clone())),
    ("getHostname", |a| url::part(a, Url::hostname)),
    ("getPort", |a| url::part(a, Url::port)),
    ("getEscapedPath", |a| url::part(a, |url| url.path.clone())),
    ("getQuery", url::query),
    ("ip", |a| parsed(a, |text| net::parse_address(text).map(Opaque::Address))),
    ("isIP", |a| test(a, |text| net::parse_address(text).is_ok())),
    ("ip.isCanonical", |a| match a {
        [Val::Text(text)] => {
            let address = net::parse_address(text.as_str()).map_err(EvalError::failed)?;
            Ok(Val::Bool(address.to_string() == text.as_str()))
        }
        _ => Err(NONE),
    }),
    ("jsonpatch.escapeKey", |a| match a {
        [Val::Text(text)] => Ok(Val::text(text.as_str().replace('~', "~0").replace('/', "~1"))),
        _ => Err(NONE),
    }),
    ("family", |a| net::of_address(a, |address| Val::Int(if address.is_ipv4() { 4 } else { 6 }))),
    ("isUnspecified", |a| net::of_address(a, |address| Val::Bool(address.is_unspecified()))),
    ("isLoopback", |a| net::of_address(a, |address| Val::Bool(address.is_loopback()))),
    ("isLinkLocalMulticast", |a| net::of_address(a, |address| Val::Bool(net::is_link_local_multicast(address)))),
    ("isLinkLocalUnicast", |a| net::of_address(a, |address| Val::Bool(net::is_link_local_unicast(address)))),
    ("isGlobalUnicast", |a| net::of_address(a, |address| Val::Bool(net::is_global_unicast(address)))),
    ("cidr", |a| parsed(a, |text| net::parse_network(text).map(|(address, bits)| Opaque::Network { address, bits }))),
    ("isCIDR", |a| test(a, |text| net::parse_network(text).is_ok())),
    ("containsIP", net::contains_address),
    ("containsCIDR", net::contains_network),
    ("prefixLength", |a| net::of_network(a, |_, bits| Val::Int(i64::from(bits)))),
    ("masked", |a| {
        net::of_network(a, |address, bits| opaque(Opaque::Network { address: net::mask(address, bits), bits }))
    }),
    ("quantity", |a| parsed(a, quantity::parse)),
    ("isQuantity", |a| test(a, |text| quantity::parse(text).is_ok())),
    ("sign", |a| quantity::of(a, |amount| Ok(Val::Int(quantity::sign(amount))))),
    ("isInteger", |a| quantity::of(a, |amount| Ok(Val::Bool(quantity::as_integer(amount).is_some())))),
    ("asInteger", |a| {
        quantity::of(a, |amount| {
            let words = "cannot convert value to integer";
            quantity::as_integer(amount).map(Val::Int).ok_or_else(|| EvalError::failed(words))
        })
    }),
    ("asApproximateFloat", |a| quantity::of(a, |amount| Ok(Val::Double(quantity::as_float(amount))))),
    ("add", |a| quantity::combine(a, false)),
    ("sub", |a| quantity::combine(a, true)),
    ("isLessThan", |a| compare(a, |order| Val::Bool(order.is_lt()))),
    ("isGreaterThan", |a| compare(a, |order| Val::Bool(order.is_gt()))),
    ("compareTo", |a| compare(a, |order| Val::Int(order as i64))),
    ("semver", |a| semver::parsed(a, |version| Ok(opaque(Opaque::Semver(version?))))),
    ("isSemver", |a| semver::parsed(a, |version| Ok(Val::Bool(version.is_ok())))),
    ("major", |a| semver::part(a, |version| version.major)),
    ("minor", |a| semver::part(a, |version| version.minor)),
    ("patch", |a| semver::part(a, |version| version.patch)),
    ("format.named", |a| match a {
        [Val::Text(name)] => {
            Ok(format::named(name.as_str()).map_or(Val::Optional(None), |name| Val::some(opaque(Opaque::Format(name)))))
        }
        _ => Err(NONE),
    }),
    ("format.dns1123Label", |_| Ok(opaque(Opaque::Format("dns1123Label")))),
    ("format.dns1123Subdomain", |_| Ok(opaque(Opaque::Format("dns1123Subdomain")))),
    ("format.dns1035Label", |_| Ok(opaque(Opaque::Format("dns1035Label")))),
    ("format.qualifiedName", |_| Ok(opaque(Opaque::Format("qualifiedName")))),
    ("format.dns1123LabelPrefix", |_| Ok(opaque(Opaque::Format("dns1123LabelPrefix")))),
    ("format.dns1123SubdomainPrefix", |_| Ok(opaque(Opaque::Format("dns1123SubdomainPrefix")))),
    ("format.dns1035LabelPrefix", |_| Ok(opaque(Opaque::Format("dns1035LabelPrefix")))),
    ("format.labelValue", |_| Ok(opaque(Opaque::Format("labelValue")))),
    ("format.uri", |_| Ok(opaque(Opaque::Format("uri")))),
    ("format.uuid", |_| Ok(opaque(Opaque::Format("uuid")))),
    ("format.byte", |_| Ok(opaque(Opaque::Format("byte")))),
    ("format.date", |_| Ok(opaque(Opaque::Format("date")))),
    ("format.datetime", |_| Ok(opaque(Opaque::Format("datetime")))),
    ("validate", format::validate),
    ("path", |a| authorizer::set(a, |check, path| check.path = Some(path))),
    ("group", |a| authorizer::set(a, |check, group| check.group = group)),
    ("resource", |a| authorizer::set(a, |check, resource| check.resource = resource)),
    ("subresource", |a| authorizer::set(a, |check, subresource| check.subresource = subresource)),
    ("namespace", |a| authorizer::set(a, |check, namespace| check.namespace = namespace)),
    ("name", |a| authorizer::set(a, |check, name| check.name = name)),
    ("serviceAccount", authorizer::service_account),
    // The evaluation calls the authorizer; without one, the function does not exist.
    ("check", |_| Err(NONE)),
    ("allowed", |a| authorizer::of_decision(a, |decision| Val::Bool(decision.allowed))),
    ("reason", |a| authorizer::of_decision(a, |decision| Val::text(decision.reason.as_str()))),
    ("errored", |a| authorizer::of_decision(a, |_| Val::Bool(false))),
    ("error", |a| authorizer::of_decision(a, |_| Val::text(""))),
];

/// The address of a network, `cidr.ip()`.
pub(crate) fn cidr_address<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    net::of_network(arguments, |address, _| opaque(Opaque::Address(address)))
}

fn parsed<'a>(arguments: &[Val<'a>], parse: impl Fn(&str) -> Result<Opaque, String>) -> FunctionResult<'a> {
    match arguments {
        [Val::Text(text)] => parse(text.as_str()).map(opaque).map_err(EvalError::failed),
        _ => Err(NONE),
    }
}

fn test<'a>(arguments: &[Val<'a>], holds: impl Fn(&str) -> bool) -> FunctionResult<'a> {
    if let [Val::Text(text)] = arguments { Ok(Val::Bool(holds(text.as_str()))) } else { Err(NONE) }
}

fn compare<'a>(arguments: &[Val<'a>], result: impl Fn(Ordering) -> Val<'a>) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(left), Val::Opaque(right)] => left.compare(right).map(result).ok_or(NONE),
        _ => Err(NONE),
    }
}

/// Standard base64 with padding.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let body = text.trim_end_matches('=');
    if text.len() - body.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(body.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0u32);
    for byte in body.bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(out)
}
