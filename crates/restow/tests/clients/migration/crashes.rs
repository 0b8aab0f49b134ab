//! The controller crashes at every step of a migration. The recorded stored versions stay true, and the next controller
//! completes the migration.

use super::{Controller, Widgets, install};
use restow_migrate::controller::{self, ControllerConfig, Metrics, ResourceFilter};
use restow_migrate::step::{MigrationStep, TARGET};
use restow_testkit::{Cluster, LogEvent, On, abort_at, test_in_a_process, wait};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::sync::watch;

/// The lease of a controller that was killed needs not expire first, if the next one has the same identity.
const IDENTITY: &str = "test";
/// The step at which the controller process aborts, and how it reaches the cluster.
const STEP_VARIABLE: &str = "RESTOW_TEST_ABORT_AT_STEP";
const KUBECONFIG_VARIABLE: &str = "RESTOW_TEST_ABORT_KUBECONFIG";
const SIGABRT: i32 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_crash_at_any_step_does_no_harm_on_the_embedded_store() {
    crash_at_every_step(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_crash_at_any_step_does_no_harm_on_etcd() {
    crash_at_every_step(On::Etcd).await;
}

async fn crash_at_every_step(on: On) {
    let cluster = Cluster::one(on).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 60).await;
    let before = widgets.contents().await;
    let flags = ["--identity", IDENTITY];
    let mut first = Controller::start(&widgets.kubeconfig, &flags);
    widgets.wait_for("v1", "at the start").await;
    first.kill();
    for (number, step) in MigrationStep::ALL.iter().enumerate() {
        let version = if number % 2 == 0 { "v2" } else { "v1" };
        widgets.store_in(version).await;
        crash_at(*step, &widgets.kubeconfig).await;
        widgets.assert_nothing_is_hidden(&format!("{step:?}")).await;
        let mut next = Controller::start(&widgets.kubeconfig, &flags);
        widgets.wait_for(version, &format!("after a crash at {step:?}")).await;
        next.kill();
        assert_eq!(widgets.contents().await, before, "{step:?}: nothing but the encoding has changed");
    }
}

/// Runs a controller in a process that aborts at this step, and waits until it has.
async fn crash_at(step: MigrationStep, kubeconfig: &Path) {
    let mut process = test_in_a_process("migration::crashes::controller_process_that_aborts_at_a_step")
        .env(STEP_VARIABLE, format!("{step:?}"))
        .env(KUBECONFIG_VARIABLE, kubeconfig)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status = tokio::task::spawn_blocking(move || wait(&mut process)).await.unwrap();
    assert_eq!(status.signal(), Some(SIGABRT), "{step:?}: the controller ended with {status}");
}

/// The process that [`crash_at`] starts: the controller, as `restow controller` runs it. It does nothing where the
/// variables are not set.
#[tokio::test(flavor = "multi_thread")]
async fn controller_process_that_aborts_at_a_step() {
    let (Ok(step), Some(kubeconfig)) = (std::env::var(STEP_VARIABLE), std::env::var_os(KUBECONFIG_VARIABLE)) else {
        return;
    };
    abort_at(LogEvent { target: TARGET, field: "step", value: step });
    let cluster = restow_migrate::cluster::Cluster::connect(Some(&PathBuf::from(kubeconfig))).await.unwrap();
    let config = ControllerConfig {
        identity: IDENTITY.to_owned(),
        resources: ResourceFilter::Custom,
        ..ControllerConfig::default()
    };
    let (_stop, stopped) = watch::channel(false);
    controller::run(cluster, config, Metrics::default(), stopped).await;
}
