//! How the processes of a stock control plane are started.

use super::{Cluster, Host, MEMBERS, PORT};
use crate::processes::stock::{Migrator, Patience, StockOptions};
use std::path::Path;
use std::process::Command;

/// Only what the migrator of Kubernetes needs: it reads the objects from the garbage collector's caches.
const CONTROLLERS: &str = "--controllers=storage-version-migrator-controller,garbage-collector-controller";
/// As fast as the leader election of Restow's controllers.
const LEADER_ELECTION: [&str; 3] =
    ["--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=1s"];

impl Cluster {
    /// A kube-apiserver with its defaults, but for the time limit of requests and JSON as the encoding of built-in resources, so that
    /// migrations can be read in the history.
    pub(super) fn kube_apiserver(&self, stock: &StockOptions, number: usize) -> Command {
        let host = Host::Server(number);
        let urls: Vec<String> = (0..MEMBERS).map(|number| self.member_url(number)).collect();
        // Its identity is made from its host name, so it needs one of its own.
        let mut command = self.network.command_on(host, Path::new("unshare"));
        command.args(["--uts", "--", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &host.to_string()]);
        command.arg(&stock.kube_apiserver);
        let address = self.network.address(host);
        command.args(["--bind-address", &address, "--advertise-address", &address]);
        command.args(["--secure-port", &PORT.to_string(), "--etcd-servers", &urls.join(",")]);
        command.args(["--storage-media-type", "application/json", "--authorization-mode", "RBAC"]);
        command.arg(format!("--request-timeout={}s", self.patience.request_timeout.as_secs()));
        command.args(["--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://torture"]);
        for (flag, file) in [
            ("--tls-cert-file", "server.crt"),
            ("--tls-private-key-file", "server.key"),
            ("--client-ca-file", "ca.crt"),
            ("--service-account-key-file", "server.crt"),
            ("--service-account-signing-key-file", "server.key"),
        ] {
            command.arg(flag).arg(self.pki().join(file));
        }
        command
    }

    /// A migrator, or what belongs to it. Restow's is started as everywhere else.
    pub(super) fn stock_migrator(&self, stock: &StockOptions, host: Host) -> Command {
        let mut command = match &stock.migrator {
            Migrator::Restow => return self.restow_controller(host, Some(self.patience)),
            Migrator::InTree { kube_controller_manager } => {
                let mut command = self.network.command_on(host, kube_controller_manager);
                command.arg(CONTROLLERS).args(LEADER_ELECTION).arg("--secure-port=0");
                command
            }
            Migrator::Ksvm { folder } => {
                let is_trigger = host == Host::Controller(1);
                let name = if is_trigger { "trigger" } else { "migrator" };
                let mut command = self.network.command_on(host, &folder.join(name));
                command.args(
                    (!is_trigger).then_some(["--kube-api-qps=200", "--kube-api-burst=1000"]).into_iter().flatten(),
                );
                command
            }
        };
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command
    }
}

impl Patience {
    /// Gives it to a controller.
    pub(super) fn set(self, command: &mut Command) {
        command.args(["--settling-time", &self.settling_time.as_secs().to_string()]);
    }
}
