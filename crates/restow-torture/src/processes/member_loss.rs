//! A member of etcd loses its disk: the cluster removes it, and takes an empty one in its place.

use super::managed_process::run;
use super::report::ProcessError;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long it is tried to remove the member before its disk is touched.
const REMOVES_WITHIN: Duration = Duration::from_secs(15);
/// How long it is tried to add the empty one. Other members may be away meanwhile.
const ADDS_WITHIN: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(500);

/// A member that does not run, and is about to be replaced.
pub(crate) struct MemberLoss {
    /// Its name in the cluster.
    pub(crate) name: String,
    /// Its URL for the other members.
    pub(crate) peer_url: String,
    /// The URLs of the other members for clients.
    pub(crate) others: Vec<String>,
    /// Its data.
    pub(crate) data: PathBuf,
}

/// What became of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// The others did not let it go, so that it keeps its disk.
    Kept,
    /// An empty one may join.
    Joins,
}

/// Whether this machine can do it.
pub(crate) fn is_possible() -> bool {
    run(Command::new("etcdctl").arg("version")).is_ok()
}

impl MemberLoss {
    /// Removes it from the cluster, loses its disk, and adds it as a new one.
    pub(crate) fn replace(&self) -> Result<Replacement, ProcessError> {
        if try_until(REMOVES_WITHIN, || self.remove()).is_err() {
            return Ok(Replacement::Kept);
        }
        clear(&self.data).map_err(ProcessError::io("clear the disk of a member of etcd"))?;
        try_until(ADDS_WITHIN, || self.add())?;
        Ok(Replacement::Joins)
    }

    fn etcdctl(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--command-timeout", "3s", "--endpoints", &self.others.join(",")]);
        command
    }

    fn members(&self) -> Result<Vec<Value>, ProcessError> {
        let listed = run(self.etcdctl().args(["member", "list", "--write-out", "json"]))?;
        let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
        Ok(listed["members"].as_array().cloned().unwrap_or_default())
    }

    fn is_this(&self, member: &Value) -> bool {
        member["peerURLs"].as_array().is_some_and(|urls| urls.iter().any(|url| *url == *self.peer_url))
    }

    fn remove(&self) -> Result<(), ProcessError> {
        let members = self.members()?;
        // An earlier try may have been carried out although it got no answer.
        let Some(id) = members.iter().find(|member| self.is_this(member)).and_then(|member| member["ID"].as_u64())
        else {
            return Ok(());
        };
        run(self.etcdctl().args(["member", "remove", &format!("{id:x}")])).map(drop)
    }

    fn add(&self) -> Result<(), ProcessError> {
        if self.members()?.iter().any(|member| self.is_this(member)) {
            return Ok(());
        }
        run(self.etcdctl().args(["member", "add", &self.name, "--peer-urls", &self.peer_url])).map(drop)
    }
}

fn try_until(within: Duration, try_once: impl Fn() -> Result<(), ProcessError>) -> Result<(), ProcessError> {
    let began = Instant::now();
    loop {
        match try_once() {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > within => return Err(error),
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

fn clear(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
