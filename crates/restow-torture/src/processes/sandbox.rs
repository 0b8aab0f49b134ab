//! A sandbox of namespaces: everything that is started, mounted and connected inside vanishes with the process that entered it,
//! whatever ends it.
//!
//! The program runs itself again under `unshare`, with namespaces of its own for the network, mounts and process ids. Nothing of the
//! machine's own network is changed. Without root, a namespace for users is added where the kernel allows it.

use super::managed_process::{run, try_run};
use super::report::ProcessError;
use std::ffi::OsString;
use std::process::Command;

/// Set inside of a sandbox.
const MARK: &str = "RESTOW_TORTURE_SANDBOX";
const NAMESPACES: &[&str] = &["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
const USER_NAMESPACE: &[&str] = &["--user", "--map-root-user"];

/// Whether this process runs inside of a sandbox.
pub fn is_inside() -> bool {
    std::env::var_os(MARK).is_some()
}

/// This program with the same arguments, in a sandbox; or why this machine has none.
pub fn command() -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("the path of this program is unknown: {error}"))?;
    let mut why = String::new();
    for more in [&[][..], USER_NAMESPACE] {
        let mut flags: Vec<OsString> = NAMESPACES.iter().chain(more).map(Into::into).collect();
        let script = "mount -t tmpfs tmpfs /run && ip link add hub type bridge && nsenter --version";
        match try_run(Command::new("unshare").args(&flags).args(["--", "sh", "-c", script])) {
            Ok(output) if output.status.success() => {
                let mut command = Command::new("unshare");
                flags.push("--".into());
                command.args(flags).arg(program).args(std::env::args_os().skip(1)).env(MARK, "1");
                return Ok(command);
            }
            Ok(output) => why = String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => return Err(format!("{error}; unshare is in the package util-linux")),
        }
    }
    Err(why)
}

/// Makes a sandbox ready: named network namespaces are kept in `/run`, which is empty and private here.
pub(super) fn prepare() -> Result<(), ProcessError> {
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]))?;
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    Ok(())
}
