//! Processes that abort at a log event: how a test kills a program at an exact place in its code.
//!
//! The program logs what it has done; the test runs it in a process of its own, with a subscriber that aborts this process
//! at the event with a given field. The process is the test program itself, started again for a single test.

use std::fmt::Debug;
use std::process::Command;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// A log event, by its target and the value of one of its fields.
#[derive(Clone, Debug)]
pub struct LogEvent {
    /// The target of the event.
    pub target: &'static str,
    /// The name of the field.
    pub field: &'static str,
    /// The value of the field, as `Debug` prints it.
    pub value: String,
}

/// Aborts this process, as a crash would, as soon as any thread of it logs this event.
pub fn abort_at(event: LogEvent) {
    let subscriber = tracing_subscriber::registry().with(AbortAt(event));
    tracing::subscriber::set_global_default(subscriber).unwrap();
}

/// A command that runs one test of this test program in a process of its own. `test` is its full name, with modules.
pub fn test_in_a_process(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

struct AbortAt(LogEvent);

impl<S: Subscriber> Layer<S> for AbortAt {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == self.0.target {
            event.record(&mut AbortVisitor(&self.0));
        }
    }
}

struct AbortVisitor<'a>(&'a LogEvent);

impl Visit for AbortVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == self.0.field && format!("{value:?}") == self.0.value {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output;
    use std::os::unix::process::ExitStatusExt;

    const VARIABLE: &str = "RESTOW_TESTKIT_LOGS";
    const SIGABRT: i32 = 6;

    /// The process that the test below starts. Without the variable it does nothing.
    #[test]
    fn process_that_logs() {
        let Ok(step) = std::env::var(VARIABLE) else { return };
        abort_at(LogEvent { target: "testkit", field: "step", value: "Second".into() });
        tracing::debug!(target: "testkit", step = %step, other = "Second");
        tracing::debug!(target: "elsewhere", step = "Second");
    }

    #[test]
    fn a_process_aborts_at_the_event_and_at_no_other() {
        let run = |step: &str| output(test_in_a_process("abort::tests::process_that_logs").env(VARIABLE, step)).status;
        assert!(run("First").success());
        assert_eq!(run("Second").signal(), Some(SIGABRT));
    }
}
