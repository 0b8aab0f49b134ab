//! Free loopback ports for the members of a private cluster.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::TcpListener;

/// Below the ephemeral ports, from which outgoing connections take theirs, so that the ports of a stopped server stay free.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The three ports of a member, all on 127.0.0.1.
pub(crate) struct Ports {
    pub(crate) client: u16,
    peer: u16,
    pub(crate) metrics: u16,
}

impl Ports {
    pub(crate) fn find() -> io::Result<Self> {
        // Each listener is kept until all ports are found, so that the ports differ.
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(free_port()?);
        }
        let [client, peer, metrics] = [&held[0], &held[1], &held[2]].map(|(port, _)| *port);
        Ok(Ports { client, peer, metrics })
    }

    pub(crate) fn client_url(&self, with_tls: bool) -> String {
        format!("{}://127.0.0.1:{}", if with_tls { "https" } else { "http" }, self.client)
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }
}

fn free_port() -> io::Result<(u16, TcpListener)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..100 {
        let random = RandomState::new().build_hasher().finish();
        let port = PORTS.start + (random % u64::from(PORTS.end - PORTS.start)) as u16;
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return Ok((port, listener)),
            Err(error) => last = error,
        }
    }
    Err(last)
}
