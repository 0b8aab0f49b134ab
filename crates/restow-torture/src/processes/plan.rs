//! Which faults happen when, from a seed. The same seed gives the same faults; what they hit at that moment may differ.

use super::host::{CONTROLLERS, Host, MEMBERS};
use super::network::BadLink;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::time::Duration;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// A process is killed, and started again after a while.
    Kill(Host, Duration),
    /// A process is suspended for a while.
    Pause(Host, Duration),
    /// The leader of etcd is killed, and started again after a while.
    KillLeader(Duration),
    /// The leader of etcd is suspended for a while.
    PauseLeader(Duration),
    /// A member of etcd loses its disk, and is replaced by an empty one.
    LoseMember(usize),
    /// The disk of a member of etcd is full for a while.
    FillDisk(usize, Duration),
    /// Hosts cannot reach each other for a while.
    Cut(Cut, Direction, Duration),
    /// The link of a host is bad for a while.
    Slow(Host, BadLink, Duration),
    /// The wall clock of a server or a controller is ahead by so many seconds from now on.
    Clock(Host, i64),
    /// All servers are replaced by ones of the newer release, one after the other.
    Upgrade,
    /// All servers are replaced by ones of the older release, one after the other.
    RollBack,
    /// A server is replaced by one that does not report its storage versions, for a while.
    Silence(usize, Duration),
    /// An administrator makes the other version of the CRD its storage version.
    FlipStorageVersion,
    /// An administrator deletes the identity lease of a server.
    DeleteLease(usize),
    /// An administrator deletes the CRD, and creates it again after a while.
    DeleteCrd(Duration),
    /// An administrator deletes the namespace of the writers, and creates it again after a while.
    DeleteNamespace(Duration),
    /// An administrator asks for a migration.
    AskForMigration,
    /// The aggregated server is replaced by one of the other release, which stores another version.
    ReplaceAggregated,
    /// An administrator compacts etcd, so that only the latest revision of each key is left.
    Compact,
}

/// Who cannot reach whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A server and all members of etcd.
    ServerAndStore(usize),
    /// A server and one member.
    ServerAndMember(usize, usize),
    /// A member and the others.
    MemberAndPeers(usize),
    /// The clients and a server.
    ClientsAndServer(usize),
    /// A controller and the load balancer.
    ControllerAndServers(usize),
    /// The aggregated server and the load balancer, but not its clients. Packets are lost on the way there.
    AggregatedAndServers,
}

/// Which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// All.
    Both,
    /// Only those from the first to the others.
    There,
    /// Only those from the others to the first.
    Back,
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlannedFault {
    /// Since the beginning of the faults.
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
}

/// The time between the beginnings of two upgrades or roll-backs.
const RELEASES_EVERY: Duration = Duration::from_secs(28);
/// The time between two changes of the CRD.
const FLIPS_EVERY: Duration = Duration::from_secs(9);

/// How long faults happen on stock API servers before there are few and mild ones for a while.
const BURST: Duration = Duration::from_secs(25);

/// Whether the servers of a seed vote on storage versions, instead of only reporting them.
pub(crate) fn is_voting(seed: u64) -> bool {
    seed.is_multiple_of(5)
}

/// The faults of a seed.
pub(crate) fn plan(seed: u64, duration: Duration, servers: usize) -> Vec<PlannedFault> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    let mut at = Duration::from_secs(2);
    while at < duration {
        faults.push(PlannedFault { at, fault: fault(&mut random, servers) });
        at += Duration::from_millis(random.random_range(500..4_500));
    }
    let releases = [Fault::Upgrade, Fault::RollBack].into_iter().cycle();
    add_regularly(&mut faults, &mut random, (RELEASES_EVERY, duration), releases);
    add_regularly(&mut faults, &mut random, (FLIPS_EVERY, duration), std::iter::repeat(Fault::FlipStorageVersion));
    // They come after all others, so that these stay the same.
    let mut at = Duration::from_secs(4);
    while at < duration {
        faults.push(PlannedFault { at, fault: aggregated_fault(&mut random) });
        at += Duration::from_millis(random.random_range(3_000..12_000));
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// A fault of the aggregated server.
fn aggregated_fault(random: &mut StdRng) -> Fault {
    let (host, short) = (Host::Aggregated, pause(random));
    // Longer than its lease at the main servers lasts.
    let long = Duration::from_millis(random.random_range(6_000..12_000));
    match random.random_range(0..100) {
        0..15 => Fault::Kill(host, short),
        15..25 => Fault::Pause(host, short),
        25..50 => Fault::Pause(host, long),
        50..60 => Fault::Cut(Cut::AggregatedAndServers, Direction::There, short),
        60..70 => Fault::Cut(Cut::AggregatedAndServers, Direction::There, long),
        70..80 => Fault::Slow(host, bad_link(random), short),
        80..85 => Fault::Clock(host, [-7200, -15, 15, 7200][random.random_range(0..4)]),
        _ => Fault::ReplaceAggregated,
    }
}

/// The faults of a seed on stock API servers: for a while there are many, and then few mild ones, so that a migration can end.
pub(crate) fn stock_plan(seed: u64, duration: Duration, servers: usize, calm: Duration) -> Vec<PlannedFault> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    let mut at = Duration::from_secs(2);
    while at < duration {
        let until = at + BURST.mul_f64(random.random_range(0.6..1.4));
        let flip = at + BURST.mul_f64(random.random_range(0.1..0.6));
        faults.push(PlannedFault { at: flip, fault: Fault::FlipStorageVersion });
        faults.push(PlannedFault {
            at: flip.saturating_sub(Duration::from_millis(300)),
            fault: nap(&mut random, servers),
        });
        while at < until {
            let fault = fault(&mut random, servers);
            if is_for_stock(fault) {
                faults.push(PlannedFault { at, fault });
            }
            at += Duration::from_millis(random.random_range(500..4_500));
        }
        let until = at + calm.mul_f64(random.random_range(0.8..1.2));
        while at < until {
            let fault = fault(&mut random, servers);
            if is_for_stock(fault) && is_mild(fault) {
                faults.push(PlannedFault { at, fault });
            }
            at += Duration::from_millis(random.random_range(3_000..12_000));
        }
    }
    faults.retain(|fault| fault.at < duration);
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// A server is suspended so that it does not notice a change, and wakes with requests that it answers as before.
fn nap(random: &mut StdRng, servers: usize) -> Fault {
    let server = Host::Server(random.random_range(0..servers));
    Fault::Pause(server, Duration::from_millis(random.random_range(2_000..8_000)))
}

/// Whether a migration can end nevertheless: a server that has left begins the settling time anew.
fn is_mild(fault: Fault) -> bool {
    !matches!(fault, Fault::Kill(Host::Server(_), _) | Fault::LoseMember(_) | Fault::FillDisk(..))
}

/// Whether a fault makes sense on stock API servers: nobody there empties a namespace, leases have other names, and it is open in which
/// version a server that is late writes an object whose CRD was deleted meanwhile.
fn is_for_stock(fault: Fault) -> bool {
    !matches!(
        fault,
        Fault::Upgrade
            | Fault::RollBack
            | Fault::Silence(..)
            | Fault::ReplaceAggregated
            | Fault::DeleteLease(_)
            | Fault::DeleteCrd(_)
            | Fault::DeleteNamespace(_)
    )
}

fn add_regularly(
    faults: &mut Vec<PlannedFault>,
    random: &mut StdRng,
    (every, duration): (Duration, Duration),
    what: impl Iterator<Item = Fault>,
) {
    let mut at = every / 3;
    for fault in what {
        if at >= duration {
            return;
        }
        faults.push(PlannedFault { at, fault });
        at += every.mul_f64(random.random_range(0.6..1.4));
    }
}

/// A time that is often short, and sometimes longer than any lease.
fn pause(random: &mut StdRng) -> Duration {
    Duration::from_millis(match random.random_range(0..10) {
        0..4 => random.random_range(20..1_000),
        4..8 => random.random_range(1_000..6_000),
        _ => random.random_range(6_000..14_000),
    })
}

fn fault(random: &mut StdRng, servers: usize) -> Fault {
    let (server, member) = (random.random_range(0..servers), random.random_range(0..MEMBERS));
    let controller = random.random_range(0..CONTROLLERS);
    let pause = pause(random);
    let jump = [-7200, -60, -15, 0, 15, 60, 7200][random.random_range(0..7)];
    match random.random_range(0..100) {
        0..12 => Fault::Kill(Host::Server(server), pause),
        12..14 => Fault::Silence(server, Duration::from_millis(random.random_range(4_000..25_000))),
        14..22 => Fault::Pause(Host::Server(server), pause),
        // Longer than its lease lasts: it wakes with requests under way after it was collected.
        22..30 => Fault::Pause(Host::Server(server), Duration::from_millis(random.random_range(6_000..12_000))),
        30..34 => Fault::Kill(Host::Member(member), pause),
        34..38 => Fault::Pause(Host::Member(member), pause),
        38..42 => Fault::KillLeader(pause),
        42..46 => Fault::PauseLeader(pause),
        46..48 => Fault::FillDisk(member, pause),
        48..50 => Fault::LoseMember(member),
        50..53 => Fault::Kill(Host::Controller(controller), pause),
        53..57 => Fault::Pause(Host::Controller(controller), pause),
        57..77 => Fault::Cut(cut(random, server, member, controller), direction(random), pause),
        77..87 => Fault::Slow(host(random, server, member, controller), bad_link(random), pause),
        87..91 => Fault::Clock(Host::Server(server), jump),
        91..93 => Fault::Clock(Host::Controller(controller), jump),
        93 => Fault::DeleteCrd(pause),
        94 => Fault::DeleteNamespace(pause),
        95 => Fault::AskForMigration,
        96 => Fault::Compact,
        _ => Fault::DeleteLease(server),
    }
}

fn cut(random: &mut StdRng, server: usize, member: usize, controller: usize) -> Cut {
    match random.random_range(0..10) {
        0..3 => Cut::ServerAndStore(server),
        3..5 => Cut::ServerAndMember(server, member),
        5..7 => Cut::MemberAndPeers(member),
        7..9 => Cut::ClientsAndServer(server),
        _ => Cut::ControllerAndServers(controller),
    }
}

fn direction(random: &mut StdRng) -> Direction {
    [Direction::Both, Direction::There, Direction::Back][random.random_range(0..3)]
}

fn host(random: &mut StdRng, server: usize, member: usize, controller: usize) -> Host {
    [Host::Server(server), Host::Member(member), Host::Controller(controller)][random.random_range(0..3)]
}

fn bad_link(random: &mut StdRng) -> BadLink {
    match random.random_bool(0.5) {
        true => BadLink::Delay(random.random_range(20..1_000)),
        false => BadLink::Loss(random.random_range(2..40)),
    }
}

impl Cut {
    /// The first host, and the others.
    pub(crate) fn sides(self) -> (Host, Vec<Host>) {
        let members = || (0..MEMBERS).map(Host::Member);
        match self {
            Cut::ServerAndStore(server) => (Host::Server(server), members().collect()),
            Cut::ServerAndMember(server, member) => (Host::Server(server), vec![Host::Member(member)]),
            Cut::MemberAndPeers(member) => {
                (Host::Member(member), members().filter(|other| *other != Host::Member(member)).collect())
            }
            Cut::ClientsAndServer(server) => (Host::Hub, vec![Host::Server(server)]),
            Cut::ControllerAndServers(controller) => (Host::Controller(controller), vec![Host::Hub]),
            Cut::AggregatedAndServers => (Host::Aggregated, vec![Host::Balancer]),
        }
    }

    /// From whom to whom packets are lost.
    pub(crate) fn ways(self, direction: Direction) -> Vec<(Host, Host)> {
        let (first, others) = self.sides();
        let there = others.iter().map(|other| (first, *other)).filter(|_| direction != Direction::Back);
        let back = others.iter().map(|other| (*other, first)).filter(|_| direction != Direction::There);
        there.chain(back).collect()
    }
}

impl fmt::Display for PlannedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_faults() {
        let minute = Duration::from_secs(60);
        assert_eq!(plan(7, minute, 3), plan(7, minute, 3));
        assert_ne!(plan(7, minute, 3), plan(8, minute, 3));
        assert!(plan(7, minute, 3).iter().all(|fault| fault.at < minute));
    }

    #[test]
    fn on_stock_servers_faults_come_in_bursts_and_the_storage_version_changes_in_each() {
        let (hour, calm) = (Duration::from_secs(3600), Duration::from_secs(100));
        let faults = stock_plan(7, hour, 2, calm);
        assert_eq!(faults, stock_plan(7, hour, 2, calm));
        assert!(faults.iter().all(|fault| is_for_stock(fault.fault) && fault.at < hour));
        let times = |is: fn(Fault) -> bool| faults.iter().filter(move |fault| is(fault.fault)).map(|fault| fault.at);
        assert!(times(|fault| fault == Fault::FlipStorageVersion).count() > 20);
        let kills: Vec<Duration> = times(|fault| !is_mild(fault)).collect();
        let pauses = kills.windows(2).filter(|pair| pair[1] - pair[0] > calm.mul_f64(0.7)).count();
        assert!(pauses > 15, "{pauses} times in which a migration can end");
    }

    #[test]
    fn a_one_way_cut_loses_packets_in_one_direction() {
        let (server, member) = (Host::Server(0), Host::Member(1));
        let cut = Cut::ServerAndMember(0, 1);
        assert_eq!(cut.ways(Direction::There), [(server, member)]);
        assert_eq!(cut.ways(Direction::Back), [(member, server)]);
        assert_eq!(cut.ways(Direction::Both), [(server, member), (member, server)]);
    }
}
