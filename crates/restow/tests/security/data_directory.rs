//! The data directory of `restow up`: file permissions, and a damaged or full disk.

use restow_testkit::{Process, Server, eventually_blocking, output, restow_binary, skip};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything below a folder that others may read, write or enter.
fn open_to_others(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mode = std::fs::symlink_metadata(folder).unwrap().mode() & 0o777;
    if mode & 0o077 != 0 {
        found.push(format!("{} {mode:o}", folder.display()));
    }
    if folder.is_dir() {
        for item in std::fs::read_dir(folder).unwrap() {
            found.extend(open_to_others(&item.unwrap().path()));
        }
    }
    found
}

/// Runs `restow up` until it is ready, with a umask of 0. Returns its log.
fn up_with_open_umask(folder: &Path) -> String {
    let log = folder.join("log");
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 000; exec \"$0\" \"$@\""])
        .arg(restow_binary())
        .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.join("data"))
        .arg("--audit-log-path")
        .arg(folder.join("data/audit.log"))
        .stderr(std::fs::File::create(&log).unwrap());
    let (server, line) = Process::spawn_and_read_line(&mut command);
    assert!(line.contains("is ready"), "{line}: {}", std::fs::read_to_string(&log).unwrap());
    assert!(server.stop().success());
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn other_users_cannot_read_the_data_directory() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let log = up_with_open_umask(folder.path());
    assert_eq!(open_to_others(&data), Vec::<String>::new());
    assert!(!log.contains("other users"), "{log}");

    // A directory of earlier versions: all users can read and write everything.
    fn open_all(path: &Path) {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        if path.is_dir() {
            std::fs::read_dir(path).unwrap().for_each(|item| open_all(&item.unwrap().path()));
        }
    }
    open_all(&data);
    let log = up_with_open_umask(folder.path());
    assert_eq!(open_to_others(&data), Vec::<String>::new());
    assert!(log.contains("other users could read the data directory"), "{log}");
}

#[test]
fn other_users_cannot_read_keys_and_symlinks_are_not_followed_when_keys_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let make = || {
        let mut command = Command::new("sh");
        output(command.args(["-c", "umask 000; exec \"$0\" pki \"$1\""]).arg(restow_binary()).arg(&keys))
    };
    assert!(make().status.success());
    assert_eq!(open_to_others(&keys), Vec::<String>::new());

    let elsewhere = folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "").unwrap();
    for draft in ["admin.new", "server.new", "kubeconfig.new"] {
        std::os::unix::fs::symlink(&elsewhere, keys.join(draft)).unwrap();
    }
    std::fs::set_permissions(keys.join("ca.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let made = make();
    assert!(made.status.success());
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "", "a key was written through a link");
    assert_eq!(open_to_others(&keys), Vec::<String>::new());
    assert!(String::from_utf8_lossy(&made.stderr).contains("the key file was readable by other users"));
}

/// The newest journal of a server's store.
fn journal(data: &Path) -> PathBuf {
    let listing = std::fs::read_dir(data.join("store/engine")).unwrap().map(|item| item.unwrap().path());
    listing.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).max().unwrap()
}

#[test]
fn a_server_with_a_damaged_store_reports_it_and_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::up(folder.path());
    for n in 0..20 {
        server.kubectl(&["create", "configmap", &format!("precious-{n}")]);
    }
    server.kill();
    let path = journal(&data);
    let mut bytes = std::fs::read(&path).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    // The tag of a frame near the end, where the engine stops reading without an error.
    let frames: Vec<usize> = (0..used).filter(|place| bytes[*place..].starts_with(b"FJL\x03\x01")).collect();
    let frame = frames[frames.len() - 8] + 4;
    bytes[frame] ^= 0x40;
    std::fs::write(&path, &bytes).unwrap();

    let up = |flags: &[&str]| {
        let mut command = Command::new(restow_binary());
        command.args(["up", "--listen", "127.0.0.1:0", "--controller=false", "--data-dir"]).arg(&data).args(flags);
        command
    };
    for _ in 0..2 {
        let refused = output(&mut up(&[]));
        let said = String::from_utf8_lossy(&refused.stderr).to_string();
        assert!(!refused.status.success());
        assert!(said.contains("is damaged") && said.contains("acknowledged"), "{said}");
        assert!(said.contains("--accept-data-loss") && said.contains("backup"), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the damage was made final");
    }

    let server = Server::up_with(folder.path(), &["--controller=false", "--accept-data-loss"]);
    let left = server.kubectl(&["get", "configmaps", "-o", "name"]);
    let left = left.lines().filter(|line| line.contains("precious")).count();
    assert!((1..20).contains(&left), "{left} of 20 are left");
    server.kubectl(&["create", "configmap", "new"]);
    assert!(server.stop().success());
    assert!(Server::up(folder.path()).stop().success(), "the loss was accepted once and for all");
}

#[test]
fn a_data_directory_without_its_engine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    assert!(Server::up(folder.path()).stop().success());
    std::fs::remove_dir_all(data.join("store/engine")).unwrap();
    let up = |flags: &[&str]| {
        let mut command = Command::new(restow_binary());
        output(command.args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data).args(flags))
    };
    for flags in [&[][..], &["--accept-data-loss"]] {
        let refused = up(flags);
        let said = String::from_utf8_lossy(&refused.stderr).to_string();
        assert!(!refused.status.success() && said.contains("engine") && said.contains("is missing"), "{said}");
    }
    assert!(!data.join("store/engine").exists());
}

/// A small disk, which is removed on drop.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "restow-test"]).arg(folder.path());
        output(&mut mount).status.success().then_some(Disk(folder))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        output(Command::new("umount").arg("-l").arg(self.0.path()));
    }
}

#[test]
fn a_full_disk_is_not_ready_and_recovers_by_itself() {
    let Some(disk) = Disk::mount("256m") else {
        skip("mounting a tmpfs needs root; run the tests as root to fill a disk");
        return;
    };
    let folder = disk.0.path();
    let server = Server::up(folder);
    let raw = |path: &str| server.try_kubectl(&["get", "--raw", path]);
    server.kubectl(&["create", "configmap", "before"]);
    let filler = folder.join("filler");
    // Write until the disk is full. The error at the end is expected.
    output(Command::new("dd").args(["if=/dev/zero", "bs=1M"]).arg(format!("of={}", filler.display())));
    eventually_blocking("the server is not ready", || !raw("/readyz").status.success());
    let said = String::from_utf8_lossy(&raw("/readyz").stderr).to_string();
    assert!(said.contains("[-]etcd-readiness failed"), "{said}");
    assert!(raw("/livez").status.success(), "a full disk is no reason to restart");
    assert!(server.kubectl(&["get", "configmaps"]).contains("before"));
    assert!(!server.try_kubectl(&["create", "configmap", "refused"]).status.success());

    std::fs::remove_file(filler).unwrap();
    eventually_blocking("the server is ready", || raw("/readyz").status.success());
    server.kubectl(&["create", "configmap", "after"]);
    let names = server.kubectl(&["get", "configmaps"]);
    assert!(names.contains("before") && names.contains("after"), "{names}");
    assert!(server.stop().success());
}
