//! The hosts of a run: who is there, and at which address.

use std::fmt;
use std::net::Ipv4Addr;

/// A host: one process, in a network namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Host {
    /// Where the writers, the load balancer and the observer are.
    Hub,
    /// Where the aggregated server finds the main API servers: another address of the hub, so that it can be cut off from them alone.
    Balancer,
    /// A member of etcd.
    Member(usize),
    /// An API server.
    Server(usize),
    /// A controller.
    Controller(usize),
    /// The aggregated API server.
    Aggregated,
}

/// The number of members of etcd.
pub(crate) const MEMBERS: usize = 3;
/// The number of controllers.
pub(crate) const CONTROLLERS: usize = 2;

impl Host {
    /// The last part of its address.
    pub(crate) fn number(self) -> u8 {
        let (first, number) = match self {
            Host::Hub => (1, 0),
            Host::Balancer => (2, 0),
            Host::Member(number) => (11, number),
            Host::Server(number) => (21, number),
            Host::Controller(number) => (31, number),
            Host::Aggregated => (41, 0),
        };
        first + u8::try_from(number).unwrap_or_default()
    }

    /// Its address in the network with this prefix.
    pub(crate) fn address(self, network: [u8; 3]) -> Ipv4Addr {
        let [first, second, third] = network;
        Ipv4Addr::new(first, second, third, self.number())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Hub => f.write_str("hub"),
            Host::Balancer => f.write_str("balancer"),
            Host::Aggregated => f.write_str("aggregated"),
            Host::Member(number) => write!(f, "etcd-{number}"),
            Host::Server(number) => write!(f, "server-{number}"),
            Host::Controller(number) => write!(f, "controller-{number}"),
        }
    }
}
