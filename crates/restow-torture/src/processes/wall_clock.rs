//! A wall clock that is wrong, and jumps, for one process. The system's own clock stays as it is.

use super::managed_process::run;
use super::report::ProcessError;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that processes load before everything else.
pub(crate) struct ClockLibrary(PathBuf);

/// The wall clock of one process.
pub(crate) struct WallClock {
    library: Option<PathBuf>,
    shift: PathBuf,
}

impl ClockLibrary {
    /// Compiles it in this folder.
    pub(crate) fn compile(folder: &Path) -> Result<Self, ProcessError> {
        let (source, library) = (folder.join("wrong_clock.c"), folder.join("wrong_clock.so"));
        fs::write(&source, include_str!("wrong_clock.c")).map_err(ProcessError::io("write wrong_clock.c"))?;
        run(Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source))?;
        Ok(ClockLibrary(library))
    }
}

impl WallClock {
    /// A clock that is right. Without the library it stays right.
    pub(crate) fn right(folder: &Path, name: &str, library: Option<&ClockLibrary>) -> Result<Self, ProcessError> {
        let shift = folder.join(format!("{name}.clock"));
        fs::write(&shift, 0_i64.to_ne_bytes()).map_err(ProcessError::io("write the offset of a clock"))?;
        Ok(WallClock { library: library.map(|library| library.0.clone()), shift })
    }

    /// Makes it be ahead by so many seconds from now on.
    pub(crate) fn jump(&self, seconds: i64) -> Result<(), ProcessError> {
        let file = fs::OpenOptions::new().write(true).open(&self.shift);
        file.and_then(|file| file.write_all_at(&seconds.to_ne_bytes(), 0)).map_err(ProcessError::io("shift a clock"))
    }

    /// Gives a process this clock.
    pub(crate) fn set(&self, command: &mut Command) {
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library).env("RESTOW_TEST_CLOCK", &self.shift);
        }
    }
}
