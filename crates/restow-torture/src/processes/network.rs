//! The network between the hosts: a bridge, a namespace and a link for each host, and the faults on them.
//!
//! A one-way cut needs nothing but `ip`: the host that sends gets a permanent neighbour entry with a hardware address that nobody has, so
//! that its packets to that one address are lost without a trace. Delay needs `tc` and its `tbf`: a link so slow that packets queue up.
//! Loss needs `nft`: a rule at both ends of the link drops packets at random when they arrive.

use super::host::Host;
use super::managed_process::{run, try_run};
use super::report::ProcessError;
use super::sandbox;
use std::collections::BTreeMap;
use std::process::Command;

/// A hardware address that no host has.
const NOBODY: &str = "02:ff:ff:ff:ff:fe";
const NETWORK: [u8; 3] = [10, 231, 7];

/// How a link is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadLink {
    /// Packets are late, by about so many milliseconds.
    Delay(u32),
    /// So many of a hundred packets are lost.
    Loss(u32),
}

/// Which links can be made bad on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BadLinks {
    delay: bool,
    loss: bool,
}

/// The network.
pub(crate) struct Network {
    prefix: [u8; 3],
    has_namespaces: bool,
    bad_links: BadLinks,
    /// How many faults cut the way from one host to another.
    cuts: BTreeMap<(Host, Host), usize>,
}

impl Network {
    /// Builds the network. What this machine cannot do is added to `left_out`.
    pub(crate) fn build(hosts: &[Host], left_out: &mut Vec<String>) -> Result<Self, ProcessError> {
        if !sandbox::is_inside() {
            left_out.push("partitions, delay, loss and full disks: they need network and mount namespaces".to_owned());
            // Every address of 127.0.0.0/8 is this machine; two runs at the same time use others.
            let third = u8::try_from(std::process::id() % 250).unwrap_or_default();
            let (prefix, bad_links) = ([127, 231, third], BadLinks::default());
            return Ok(Network { prefix, has_namespaces: false, bad_links, cuts: BTreeMap::new() });
        }
        let mut network = Network {
            prefix: NETWORK,
            has_namespaces: true,
            bad_links: BadLinks { delay: true, loss: true },
            cuts: BTreeMap::new(),
        };
        ip(&["link", "add", "hub", "type", "bridge"])?;
        for host in [Host::Hub, Host::Balancer] {
            ip(&["address", "add", &format!("{}/24", host.address(NETWORK)), "dev", "hub"])?;
        }
        ip(&["link", "set", "hub", "up"])?;
        for host in hosts {
            network.connect(*host)?;
        }
        if let Some(host) = hosts.first() {
            network.bad_links = BadLinks {
                delay: network.make_bad(*host, BadLink::Delay(10)),
                loss: network.make_bad(*host, BadLink::Loss(1)),
            };
            network.make_good(*host);
        }
        if !network.bad_links.delay {
            left_out.push("slow links: they need tc (iproute2) and a kernel with tbf".to_owned());
        }
        if !network.bad_links.loss {
            left_out
                .push("random loss of packets: it needs nft (nftables) and a kernel with its netdev tables".to_owned());
        }
        Ok(network)
    }

    fn connect(&self, host: Host) -> Result<(), ProcessError> {
        let (namespace, link) = (host.to_string(), format!("v{}", host.number()));
        let address = format!("{}/24", self.address(host));
        ip(&["netns", "add", &namespace])?;
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
        ip(&["link", "set", &link, "master", "hub", "up"])?;
        ip(&["-n", &namespace, "address", "add", &address, "dev", "eth0"])?;
        ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
        ip(&["-n", &namespace, "link", "set", "lo", "up"])
    }

    /// The address of a host, as text.
    pub(crate) fn address(&self, host: Host) -> String {
        host.address(self.prefix).to_string()
    }

    /// A command that runs on a host.
    pub(crate) fn command_on(&self, host: Host, program: &std::path::Path) -> Command {
        if !self.has_namespaces || host == Host::Hub {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{host}")).arg("--").arg(program);
        command
    }

    /// Cuts the way from one host to another. Packets in the other direction still arrive. Returns whether it could.
    pub(crate) fn cut(&mut self, from: Host, to: Host) -> Result<bool, ProcessError> {
        if !self.has_namespaces {
            return Ok(false);
        }
        let count = self.cuts.entry((from, to)).or_default();
        *count += 1;
        if *count == 1 {
            let address = to.address(self.prefix).to_string();
            neighbour(from, &["replace", &address, "lladdr", NOBODY, "nud", "permanent"])?;
        }
        Ok(true)
    }

    /// Ends one fault that cut the way from one host to another.
    pub(crate) fn mend(&mut self, from: Host, to: Host) -> Result<(), ProcessError> {
        let Some(count) = self.cuts.get_mut(&(from, to)) else { return Ok(()) };
        *count -= 1;
        if *count == 0 {
            self.cuts.remove(&(from, to));
            neighbour(from, &["delete", &to.address(self.prefix).to_string()])?;
        }
        Ok(())
    }

    /// Makes the link of a host bad. Returns whether it could.
    pub(crate) fn make_bad(&self, host: Host, how: BadLink) -> bool {
        match how {
            BadLink::Delay(millis) if self.bad_links.delay => delay(host, millis),
            BadLink::Loss(percent) if self.bad_links.loss => ends_of(host).iter().all(|end| end.lose(percent)),
            BadLink::Delay(_) | BadLink::Loss(_) => false,
        }
    }

    /// Makes the link of a host good again.
    pub(crate) fn make_good(&self, host: Host) {
        // There may be nothing to delete.
        if self.bad_links.delay {
            let _ = try_run(&mut tc(host, "delete"));
        }
        if self.bad_links.loss {
            ends_of(host).iter().for_each(LinkEnd::lose_nothing);
        }
    }
}

/// One end of the link of a host.
struct LinkEnd {
    namespace: Option<String>,
    device: String,
}

/// The end on the host, where packets for it arrive, and the end at the bridge.
fn ends_of(host: Host) -> [LinkEnd; 2] {
    [
        LinkEnd { namespace: Some(host.to_string()), device: "eth0".to_owned() },
        LinkEnd { namespace: None, device: format!("v{}", host.number()) },
    ]
}

impl LinkEnd {
    fn nft(&self, script: &str) -> bool {
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{namespace}")).args(["--", "nft"]);
                command
            }
            None => Command::new("nft"),
        };
        try_run(command.arg(script)).is_ok_and(|output| output.status.success())
    }

    /// Loses so many of a hundred packets that arrive. Returns whether it could.
    fn lose(&self, percent: u32) -> bool {
        let device = &self.device;
        self.nft(&format!(
            "table netdev loss-{device}; delete table netdev loss-{device}; table netdev loss-{device} {{ chain arriving {{ \
             type filter hook ingress device \"{device}\" priority 0; numgen random mod 100 < {percent} drop; }}; }}"
        ))
    }

    fn lose_nothing(&self) {
        self.nft(&format!("delete table netdev loss-{}", self.device));
    }
}

/// A queue of so many milliseconds, which is nearly always full.
fn delay(host: Host, millis: u32) -> bool {
    let mut command = tc(host, "replace");
    command.args(["tbf", "rate", "256kbit", "burst", "4kb", "latency", &format!("{millis}ms")]);
    try_run(&mut command).is_ok_and(|output| output.status.success())
}

fn tc(host: Host, verb: &str) -> Command {
    let mut command = Command::new("tc");
    command.args(["-n", &host.to_string(), "qdisc", verb, "dev", "eth0", "root"]);
    command
}

fn ip(arguments: &[&str]) -> Result<(), ProcessError> {
    run(Command::new("ip").args(arguments)).map(drop)
}

/// Changes the neighbour table of a host.
fn neighbour(host: Host, words: &[&str]) -> Result<(), ProcessError> {
    let mut command = Command::new("ip");
    let device = match host {
        Host::Hub | Host::Balancer => "hub",
        _ => {
            command.args(["-n", &host.to_string()]);
            "eth0"
        }
    };
    run(command.arg("neighbour").args(words).args(["dev", device])).map(drop)
}
