//! Whether a migration may run: pause annotations and maintenance windows.

use crate::runner::RunControl;
use restow_rules::migrate::maintenance_window::{self, MaintenanceWindow};
use restow_rules::trigger::PAUSED_ANNOTATION;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Whether the pause annotation is set.
pub(super) fn is_paused(metadata: &kube::core::ObjectMeta) -> bool {
    let value = metadata.annotations.as_ref().and_then(|annotations| annotations.get(PAUSED_ANNOTATION));
    value.is_some_and(|value| value != "false")
}

/// The control of one attempt. It stops when the migration is paused or no window is open, because a mark must not stay on
/// the CRD for hours; the next attempt resumes there. The task ends when the receiver is dropped.
pub(super) fn within(
    windows: Vec<MaintenanceWindow>,
    mut control: watch::Receiver<RunControl>,
) -> (watch::Receiver<RunControl>, JoinHandle<()>) {
    let (sender, within) = watch::channel(effective(*control.borrow_and_update(), &windows));
    let task = restow_host::spawn(async move {
        loop {
            let command = *control.borrow_and_update();
            let now = effective(command, &windows);
            sender.send_if_modified(|sent| std::mem::replace(sent, now) != now);
            let change = maintenance_window::until_change(&windows, restow_host::now());
            let change = change.map(|change| Duration::try_from(change).unwrap_or(Duration::from_secs(1)));
            tokio::select! {
                biased;
                changed = control.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(change.unwrap_or_default()), if change.is_some() => {}
                () = sender.closed() => return,
            }
        }
    });
    (within, task)
}

fn effective(command: RunControl, windows: &[MaintenanceWindow]) -> RunControl {
    match command {
        RunControl::Run if maintenance_window::wait(windows, restow_host::now()).is_none() => RunControl::Run,
        _ => RunControl::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn a_pause_a_stop_and_a_closed_window_end_an_attempt() {
        let (sender, control) = watch::channel(RunControl::Run);
        let (mut passed, _task) = within(Vec::new(), control);
        assert_eq!(*passed.borrow(), RunControl::Run);
        sender.send_replace(RunControl::Pause);
        passed.wait_for(|command| *command == RunControl::Stop).await.unwrap();
        sender.send_replace(RunControl::Run);
        passed.wait_for(|command| *command == RunControl::Run).await.unwrap();
        sender.send_replace(RunControl::Stop);
        passed.wait_for(|command| *command == RunControl::Stop).await.unwrap();

        // A window that is twelve hours away.
        let hour = (restow_host::now().as_second() / 3600 + 12) % 24;
        let closed: MaintenanceWindow = format!("{hour:02}:00-{hour:02}:30").parse().unwrap();
        let (_sender, control) = watch::channel(RunControl::Run);
        let (passed, _task) = within(vec![closed], control);
        assert_eq!(*passed.borrow(), RunControl::Stop);
    }

    #[test]
    fn the_pause_annotation_pauses_unless_it_is_false() {
        for (annotations, expected) in [
            (json!({}), false),
            (json!({"other": "true"}), false),
            (json!({PAUSED_ANNOTATION: "true"}), true),
            (json!({PAUSED_ANNOTATION: ""}), true),
            (json!({PAUSED_ANNOTATION: "false"}), false),
        ] {
            let metadata = serde_json::from_value(json!({"annotations": annotations})).unwrap();
            assert_eq!(is_paused(&metadata), expected, "{annotations}");
        }
    }
}
