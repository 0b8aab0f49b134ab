//! Reports skipped tests. The test harness hides the output of passing tests, so `./test` collects it in a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// The file that collects the lines.
const VARIABLE: &str = "RESTOW_TEST_SKIPPED";

/// Records that the running test is skipped, and why; the caller returns. `./test` prints and counts these lines at its
/// end.
///
/// The reason says what to do so that the test can run. A test that calls this twice is counted once.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    // The harness names the thread of a test after the test.
    let test = thread.name().unwrap_or("a test");
    eprintln!("SKIPPED: {reason}");
    if let Some(path) = std::env::var_os(VARIABLE) {
        note(Path::new(&path), test, reason);
    }
}

fn note(path: &Path, test: &str, reason: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    // One write, so that lines of several tests do not mix.
    file.write_all(format!("{test}: {reason}\n").as_bytes()).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_appends_one_line() {
        let path = std::env::temp_dir().join(format!("restow-skipped-{}", std::process::id()));
        note(&path, "first", "no cluster");
        note(&path, "second", "no folder");
        let lines = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(lines, "first: no cluster\nsecond: no folder\n");
    }
}
