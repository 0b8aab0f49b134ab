//! What a migration is told: by whoever can stop and pause it, and by the maintenance windows.

use crate::runner::Order;
use jiff::Timestamp;
use restow_rules::migrate::window::{self, Window};
use restow_rules::trigger::PAUSED_ANNOTATION;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Whether annotations say that something is paused.
pub(super) fn is_paused(metadata: &kube::core::ObjectMeta) -> bool {
    let value = metadata.annotations.as_ref().and_then(|annotations| annotations.get(PAUSED_ANNOTATION));
    value.is_some_and(|value| value != "false")
}

/// What one attempt is told: it ends when it is paused or when no window is open, rather than to leave its mark on the
/// definition for hours; another attempt goes on from there. The task ends with the receiver of the orders.
pub(super) fn within(
    windows: Vec<Window>,
    mut orders: watch::Receiver<Order>,
) -> (watch::Receiver<Order>, JoinHandle<()>) {
    let (sender, within) = watch::channel(effective(*orders.borrow_and_update(), &windows));
    let task = tokio::spawn(async move {
        loop {
            let order = *orders.borrow_and_update();
            let now = effective(order, &windows);
            sender.send_if_modified(|sent| std::mem::replace(sent, now) != now);
            let change = window::until_change(&windows, Timestamp::now());
            let change = change.map(|change| Duration::try_from(change).unwrap_or(Duration::from_secs(1)));
            tokio::select! {
                changed = orders.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(change.unwrap_or_default()), if change.is_some() => {}
                () = sender.closed() => return,
            }
        }
    });
    (within, task)
}

fn effective(order: Order, windows: &[Window]) -> Order {
    match order {
        Order::Run if window::wait(windows, Timestamp::now()).is_none() => Order::Run,
        _ => Order::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_a_stop_and_a_closed_window_end_an_attempt() {
        let (sender, orders) = watch::channel(Order::Run);
        let (mut passed, _task) = within(Vec::new(), orders);
        assert_eq!(*passed.borrow(), Order::Run);
        sender.send_replace(Order::Pause);
        passed.wait_for(|order| *order == Order::Stop).await.unwrap();
        sender.send_replace(Order::Run);
        passed.wait_for(|order| *order == Order::Run).await.unwrap();
        sender.send_replace(Order::Stop);
        passed.wait_for(|order| *order == Order::Stop).await.unwrap();

        // A window that is twelve hours away.
        let hour = (Timestamp::now().as_second() / 3600 + 12) % 24;
        let closed: Window = format!("{hour:02}:00-{hour:02}:30").parse().unwrap();
        let (_sender, orders) = watch::channel(Order::Run);
        let (passed, _task) = within(vec![closed], orders);
        assert_eq!(*passed.borrow(), Order::Stop);
    }
}
