//! A small disk of its own for a process, which can be filled: a tmpfs in the mount namespace of the sandbox.

use super::managed_process::run;
use super::report::ProcessError;
use super::sandbox;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for a process's data.
pub(crate) struct Disk {
    path: PathBuf,
    mounted: bool,
}

impl Disk {
    /// A disk of so many megabytes. Outside of a sandbox it is a folder of the machine's disk, which is never filled.
    pub(crate) fn mount(path: PathBuf, megabytes: u32) -> Result<Self, ProcessError> {
        fs::create_dir_all(&path).map_err(ProcessError::io("create a folder for data"))?;
        let mounted = sandbox::is_inside();
        if mounted {
            let size = format!("size={megabytes}m,mode=0700");
            run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path))?;
        }
        Ok(Disk { path, mounted })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }

    /// Takes all that is free. Returns whether it could.
    pub(crate) fn fill(&self) -> bool {
        if !self.mounted {
            return false;
        }
        let chunk = vec![0_u8; 1 << 16];
        if let Ok(mut file) = File::create(self.ballast()) {
            // It ends when the disk is full.
            while file.write_all(&chunk).is_ok() {}
        }
        true
    }

    /// Gives it back.
    pub(crate) fn free(&self) {
        // There is none if it was not filled.
        let _ = fs::remove_file(self.ballast());
    }
}
