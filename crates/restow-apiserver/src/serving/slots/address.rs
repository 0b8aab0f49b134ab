//! Which addresses count as one client.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or the /64 that an IPv6 address is in: a client with one of its addresses usually has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AddressRange(IpAddr);

impl AddressRange {
    pub(super) fn of(address: IpAddr) -> Self {
        AddressRange(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let same =
            |one: &str, other: &str| AddressRange::of(one.parse().unwrap()) == AddressRange::of(other.parse().unwrap());
        assert!(same("192.0.2.1", "::ffff:192.0.2.1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
    }
}
