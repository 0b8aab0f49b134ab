//! IP addresses and CIDRs. IPv4-mapped IPv6 addresses, zones and leading zeros are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{FunctionResult, NONE, Opaque};
use crate::cel::eval::EvalError;
use crate::cel::value::Val;

pub(super) fn parse_address(text: &str) -> Result<IpAddr, String> {
    if text.contains('%') {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        Ok(address) => Ok(address),
        Err(_) => Err(format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        )),
    }
}

pub(super) fn parse_network(text: &str) -> Result<(IpAddr, u8), String> {
    let fault =
        || format!("network address parse error during conversion from string: netip.ParsePrefix({text:?}): no '/'");
    let (address, bits) = text.split_once('/').ok_or_else(fault)?;
    let address = parse_address(address).map_err(|_| fault())?;
    let plain = bits == "0" || (!bits.starts_with('0') && bits.bytes().all(|byte| byte.is_ascii_digit()));
    let most = if address.is_ipv4() { 32 } else { 128 };
    match bits.parse::<u8>() {
        Ok(bits) if plain && bits <= most => Ok((address, bits)),
        _ => Err(fault()),
    }
}

pub(super) fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
        }
    }
}

pub(super) fn of_address<'a>(arguments: &[Val<'a>], result: impl Fn(&IpAddr) -> Val<'a>) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(opaque)] => match opaque.as_ref() {
            Opaque::Address(address) => Ok(result(address)),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}

pub(super) fn of_network<'a>(arguments: &[Val<'a>], result: impl Fn(IpAddr, u8) -> Val<'a>) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(opaque)] => match opaque.as_ref() {
            Opaque::Network { address, bits } => Ok(result(*address, *bits)),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}

fn network_of(value: &Val<'_>) -> Result<(IpAddr, u8), EvalError> {
    match value {
        Val::Text(text) => parse_network(text.as_str()).map_err(EvalError::failed),
        Val::Opaque(opaque) => match opaque.as_ref() {
            Opaque::Network { address, bits } => Ok((*address, *bits)),
            Opaque::Address(address) => Ok((*address, if address.is_ipv4() { 32 } else { 128 })),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}

pub(super) fn contains_address<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let [outer, inner] = arguments else { return Err(NONE) };
    let inner = match inner {
        Val::Text(text) => parse_address(text.as_str()).map_err(EvalError::failed)?,
        other => network_of(other)?.0,
    };
    let (address, bits) = network_of(outer)?;
    Ok(Val::Bool(address.is_ipv4() == inner.is_ipv4() && mask(inner, bits) == mask(address, bits)))
}

pub(super) fn contains_network<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let [outer, inner] = arguments else { return Err(NONE) };
    let ((outer, outer_bits), (inner, inner_bits)) = (network_of(outer)?, network_of(inner)?);
    let contains = outer.is_ipv4() == inner.is_ipv4()
        && outer_bits <= inner_bits
        && mask(inner, outer_bits) == mask(outer, outer_bits);
    Ok(Val::Bool(contains))
}

pub(super) fn is_link_local_multicast(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(address) => address.segments().first().is_some_and(|first| first & 0xff0f == 0xff02),
    }
}

pub(super) fn is_link_local_unicast(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.segments().first().is_some_and(|first| first & 0xffc0 == 0xfe80),
    }
}

pub(super) fn is_global_unicast(address: &IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !broadcast
        && !address.is_unspecified()
        && !address.is_loopback()
        && !address.is_multicast()
        && !is_link_local_unicast(address)
}
