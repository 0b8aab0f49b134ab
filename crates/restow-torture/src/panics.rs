//! Panics of simulated tasks, which tokio would swallow.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// What panicked in the simulation of this thread; `None` outside of one.
    static PANIC: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs a simulation, and records what panics in it.
pub(crate) fn recorded<T>(simulation: impl FnOnce() -> T) -> T {
    record_panics();
    PANIC.set(Some(Vec::new()));
    let result = simulation();
    PANIC.set(None);
    result
}

/// What has panicked so far.
pub(crate) fn panics() -> Vec<String> {
    PANIC.with_borrow(|panics| panics.clone().unwrap_or_default())
}

fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let taken = PANIC.with_borrow_mut(|panics| match panics {
                Some(panics) => {
                    panics.push(panic.to_string());
                    true
                }
                None => false,
            });
            if !taken {
                before(panic);
            }
        }));
    });
}
