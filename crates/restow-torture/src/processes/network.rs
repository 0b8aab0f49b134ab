//! The network between the hosts: a bridge, a namespace and a link for each host, and the faults on them.
//!
//! A one-way cut needs nothing but `ip`: the host that sends gets a permanent neighbour entry with a hardware address that nobody has, so
//! that its packets to that one address are lost without a trace. Delay and loss need the traffic control of the kernel: `netem`, or
//! `tbf`, a link so slow that packets queue up and are dropped.

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

/// How links are made bad on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrafficControl {
    Netem,
    Tbf,
    Nothing,
}

/// The network.
pub(crate) struct Network {
    prefix: [u8; 3],
    has_namespaces: bool,
    traffic_control: TrafficControl,
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
            let (prefix, traffic_control) = ([127, 231, third], TrafficControl::Nothing);
            return Ok(Network { prefix, has_namespaces: false, traffic_control, cuts: BTreeMap::new() });
        }
        let mut network = Network {
            prefix: NETWORK,
            has_namespaces: true,
            traffic_control: TrafficControl::Nothing,
            cuts: BTreeMap::new(),
        };
        let hub = format!("{}/24", Host::Hub.address(NETWORK));
        ip(&["link", "add", "hub", "type", "bridge"])?;
        ip(&["address", "add", &hub, "dev", "hub"])?;
        ip(&["link", "set", "hub", "up"])?;
        for host in hosts {
            network.connect(*host)?;
        }
        network.traffic_control =
            hosts.first().map_or(TrafficControl::Nothing, |host| network.find_traffic_control(*host));
        match network.traffic_control {
            TrafficControl::Netem => {}
            TrafficControl::Tbf => left_out.push(
                "random delay and loss of packets: this kernel has no netem; links are made slow with tbf instead, so that \
                 packets queue up and are dropped"
                    .to_owned(),
            ),
            TrafficControl::Nothing => {
                left_out.push("delay and loss of packets: they need tc (iproute2) and a kernel with netem or tbf".to_owned());
            }
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

    fn find_traffic_control(&self, host: Host) -> TrafficControl {
        for kind in [TrafficControl::Netem, TrafficControl::Tbf] {
            let tried = self.set_traffic_control(kind, host, BadLink::Delay(10));
            self.clear_traffic_control(host);
            if tried {
                return kind;
            }
        }
        TrafficControl::Nothing
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
        self.set_traffic_control(self.traffic_control, host, how)
    }

    /// Makes the link of a host good again.
    pub(crate) fn make_good(&self, host: Host) {
        if self.traffic_control != TrafficControl::Nothing {
            self.clear_traffic_control(host);
        }
    }

    fn set_traffic_control(&self, kind: TrafficControl, host: Host, how: BadLink) -> bool {
        let (millis, percent) = match how {
            BadLink::Delay(millis) => (format!("{millis}ms"), "0%".to_owned()),
            BadLink::Loss(percent) => ("1ms".to_owned(), format!("{percent}%")),
        };
        let words: Vec<&str> = match (kind, how) {
            (TrafficControl::Nothing, _) => return false,
            (TrafficControl::Netem, _) => vec!["netem", "delay", &millis, &millis, "loss", &percent],
            // A queue of this many milliseconds, which is nearly always full.
            (TrafficControl::Tbf, BadLink::Delay(_)) => {
                vec!["tbf", "rate", "256kbit", "burst", "4kb", "latency", &millis]
            }
            // Hardly any queue: what does not fit is dropped.
            (TrafficControl::Tbf, BadLink::Loss(_)) => vec!["tbf", "rate", "512kbit", "burst", "4kb", "latency", "5ms"],
        };
        let namespace = host.to_string();
        let tried =
            try_run(Command::new("tc").args(["-n", &namespace, "qdisc", "replace", "dev", "eth0", "root"]).args(words));
        tried.is_ok_and(|output| output.status.success())
    }

    fn clear_traffic_control(&self, host: Host) {
        // There is nothing to delete if it was not set.
        let _ = try_run(Command::new("tc").args(["-n", &host.to_string(), "qdisc", "delete", "dev", "eth0", "root"]));
    }
}

fn ip(arguments: &[&str]) -> Result<(), ProcessError> {
    run(Command::new("ip").args(arguments)).map(drop)
}

/// Changes the neighbour table of a host.
fn neighbour(host: Host, words: &[&str]) -> Result<(), ProcessError> {
    let mut command = Command::new("ip");
    let device = match host {
        Host::Hub => "hub",
        _ => {
            command.args(["-n", &host.to_string()]);
            "eth0"
        }
    };
    run(command.arg("neighbour").args(words).args(["dev", device])).map(drop)
}
