//! A wall clock that is wrong, and jumps, for one process. The system's own clock stays as it is.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The wall clock of one process.
pub(crate) struct WrongClock {
    library: PathBuf,
    shift: PathBuf,
}

impl WrongClock {
    /// A clock that is ahead by so many seconds, or behind. Its files are made in this folder.
    pub(crate) fn ahead(folder: &Path, name: &str, seconds: i64) -> Self {
        let library = folder.join("wrong_clock.so");
        if !library.exists() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../restow-torture/src/processes/wrong_clock.c");
            let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
            let made = made.expect("a C compiler named cc, which Rust needs too");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        let shift = folder.join(format!("{name}.clock"));
        std::fs::write(&shift, seconds.to_ne_bytes()).unwrap();
        WrongClock { library, shift }
    }

    /// Makes it be ahead by so many seconds from now on.
    pub(crate) fn jump(&self, seconds: i64) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.shift).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// The environment of a process with this clock.
    pub(crate) fn environment(&self) -> Vec<(String, PathBuf)> {
        vec![("LD_PRELOAD".into(), self.library.clone()), ("RESTOW_TEST_CLOCK".into(), self.shift.clone())]
    }
}
