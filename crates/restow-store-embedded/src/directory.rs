//! The directory of a store: who uses it, in which format it is, and what lies where in it.

use crate::layout::{FORMAT, FORMAT_1};
use crate::rehearsal::remove;
use rustix::fs::{CWD, RenameFlags};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a store could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the store open.
    #[error(
        "the data directory {} is in use by another process{}; stop it first, or choose another directory",
        directory.display(), process.as_ref().map(|id| format!(" (process {id})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The id of that process, where it is known.
        process: Option<String>,
    },
    /// The directory holds a store of a format that this version does not know.
    #[error(
        "the data directory {} has the format {found:?}, this version knows only {expected:?}; use the version of \
         restow that wrote it", directory.display(), expected = FORMAT.trim()
    )]
    UnknownFormat {
        /// The directory.
        directory: PathBuf,
        /// What it says about itself.
        found: String,
    },
    /// The directory holds something else.
    #[error("the directory {} is not empty and holds no store; choose another one", directory.display())]
    NotAStore {
        /// The directory.
        directory: PathBuf,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The engine could not open its files.
    #[error("cannot open the store in {}: {reason}", directory.display())]
    Engine {
        /// The directory.
        directory: PathBuf,
        /// What the engine said.
        reason: String,
    },
    /// What was stored is not there, or is not what was stored.
    #[error(
        "the store in {} is damaged: {reason}. Nothing was changed. Restore the whole directory from a backup; or, to lose \
         what is missing, start once with --accept-data-loss", directory.display()
    )]
    Damaged {
        /// The directory.
        directory: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// The store is damaged, and what is left of it cannot be read.
    #[error(
        "the store in {} is damaged, and what is left of it cannot be read: {reason}. Nothing was changed. Restore the whole \
         directory from a backup; or move it away, to begin with an empty store", directory.display()
    )]
    Lost {
        /// The directory.
        directory: PathBuf,
        /// What stands in the way.
        reason: String,
    },
}

/// A directory that this process, and no other, uses. Dropping it lets others in.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    lock: File,
    format: Format,
}

/// The format that a directory says it has. It says so last when it is made: without a format nothing was ever stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    None,
    /// The one before.
    One,
    Current,
}

/// What an interrupted first start may leave behind.
const BEGINNINGS: [&str; 7] = ["LOCK", "FORMAT.new", "WITNESS", "WITNESS.new", "engine", "engine.new", "engine.check"];

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that is being started has a copy of it for a moment.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, path = %self.path.display(), "could not unlock the store");
        }
    }
}

impl Directory {
    /// Claims the directory, makes it where it does not exist, and reads its format.
    pub(crate) fn claim(path: &Path) -> Result<Self, OpenError> {
        match DirBuilder::new().mode(0o700).create(path).and_then(|()| sync_parent(path)) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(OpenError::Io { action: "create the data directory", path: path.into(), source });
            }
            _ => {}
        }
        let foreign = !path.join("FORMAT").exists() && holds_something_else(path)?;
        if foreign {
            return Err(OpenError::NotAStore { directory: path.into() });
        }
        let lock = lock(path)?;
        let format = read_format(path)?;
        close_to_others(path);
        Ok(Directory { path: path.into(), lock, format })
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Where the engine keeps its files.
    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join("engine")
    }

    /// Where the engine's files are made, so that they are there as a whole, or not.
    pub(crate) fn draft(&self) -> PathBuf {
        self.path.join("engine.new")
    }

    /// Where the recovery of the engine's files is tried.
    pub(crate) fn rehearsal(&self) -> PathBuf {
        self.path.join("engine.check")
    }

    /// Where it is said what was acknowledged.
    pub(crate) fn witness(&self) -> PathBuf {
        self.path.join("WITNESS")
    }

    /// Lets two folders in the directory change places, for good.
    pub(crate) fn exchange(&self, one: &Path, other: &Path) -> Result<(), OpenError> {
        let exchanged = rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(io::Error::from);
        let exchanged = match exchanged {
            // Not every file system can do this at once.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                let between = self.path.join("engine.check");
                remove(&between)
                    .and_then(|()| fs::rename(other, &between))
                    .and_then(|()| fs::rename(one, other))
                    .and_then(|()| fs::rename(&between, one))
            }
            exchanged => exchanged,
        };
        let exchanged = exchanged.and_then(|()| self.sync());
        exchanged.map_err(|source| OpenError::Io { action: "put in its place", path: one.into(), source })
    }

    /// Renames something in the directory, for good.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        let renamed = fs::rename(from, to).and_then(|()| self.sync());
        renamed.map_err(|source| OpenError::Io { action: "finish", path: from.into(), source })
    }

    /// Writes down that the directory is complete, and in the current format.
    pub(crate) fn set_format(&mut self) -> Result<(), OpenError> {
        let path = self.path.join("FORMAT");
        let written = write_format(&self.path.join("FORMAT.new"), &path).and_then(|()| self.sync());
        written.map_err(|source| OpenError::Io { action: "write", path, source })?;
        self.format = Format::Current;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    pub(crate) fn damaged(&self, reason: impl Into<String>) -> OpenError {
        OpenError::Damaged { directory: self.path.clone(), reason: reason.into() }
    }

    /// What is left cannot be read. Damaged files that an earlier start has put aside are named.
    pub(crate) fn lost(&self, reason: impl Into<String>) -> OpenError {
        let aside = fs::read_dir(&self.path).into_iter().flatten().flatten().map(|item| item.file_name());
        let aside: Vec<_> = aside.filter_map(|name| name.into_string().ok()).filter(|name| is_aside(name)).collect();
        let mut reason = reason.into();
        if !aside.is_empty() {
            reason.push_str(&format!(" ({} in it has earlier damaged files)", aside.join(", ")));
        }
        OpenError::Lost { directory: self.path.clone(), reason }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether this is what was put aside of a damaged store.
fn is_aside(name: &str) -> bool {
    name.starts_with("engine.damaged-")
}

/// Makes a new directory outlive a crash of the system.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Anything but what an interrupted first start leaves behind.
fn holds_something_else(path: &Path) -> Result<bool, OpenError> {
    let failed = |source| OpenError::Io { action: "list", path: path.into(), source };
    for item in fs::read_dir(path).map_err(failed)? {
        let name = item.map_err(failed)?.file_name();
        if !BEGINNINGS.iter().any(|beginning| name == *beginning) && !name.to_str().is_some_and(is_aside) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join("LOCK");
    let failed = |source| OpenError::Io { action: "lock", path: path.clone(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            let known = file.read_to_string(&mut process).is_ok() && !process.trim().is_empty();
            let process = known.then(|| process.trim().to_string());
            return Err(OpenError::InUse { directory: directory.into(), process });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    let note = || -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    }();
    if let Err(error) = note {
        // The process id is for people only; the lock is what counts. A full disk can still be read from.
        tracing::warn!(%error, path = %path.display(), "could not note which process uses the store");
    }
    Ok(file)
}

fn read_format(directory: &Path) -> Result<Format, OpenError> {
    let path = directory.join("FORMAT");
    match fs::read(&path) {
        Ok(found) if found == FORMAT.as_bytes() => Ok(Format::Current),
        Ok(found) if found == FORMAT_1.as_bytes() => Ok(Format::One),
        Ok(found) => Err(OpenError::UnknownFormat {
            directory: directory.into(),
            found: String::from_utf8_lossy(&found[..found.len().min(100)]).trim().to_string(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Format::None),
        Err(source) => Err(OpenError::Io { action: "read", path, source }),
    }
}

/// Writes the format so that it is either there as a whole, or not.
fn write_format(draft: &Path, path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(draft)?;
    file.write_all(FORMAT.as_bytes())?;
    file.sync_all()?;
    fs::rename(draft, path)
}

/// Lets only the owner in, whatever the modes of the files within are. A store that was made earlier may be open to all.
fn close_to_others(path: &Path) {
    let closed = || -> io::Result<()> {
        let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
            tracing::warn!(path = %path.display(), "other users could read the store (mode {mode:o}); now only its owner can");
        }
        Ok(())
    };
    if let Err(error) = closed() {
        tracing::warn!(%error, path = %path.display(), "other users can read the store, and that cannot be changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_used_by_one_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("store");
        let first = Directory::claim(&path).unwrap();
        let error = Directory::claim(&path).unwrap_err();
        assert!(matches!(&error, OpenError::InUse { process: Some(id), .. } if *id == std::process::id().to_string()));
        assert!(error.to_string().contains("in use by another process"), "{error}");
        let inherited = first.lock.try_clone().unwrap();
        drop(first);
        drop(Directory::claim(&path).unwrap());
        drop(inherited);
    }

    #[test]
    fn an_unknown_format_is_refused_and_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("store");
        Directory::claim(&path).unwrap().set_format().unwrap();
        assert_eq!(Directory::claim(&path).unwrap().format(), Format::Current);
        fs::write(path.join("FORMAT"), "restow-embedded-store 99\n").unwrap();
        assert!(
            matches!(Directory::claim(&path), Err(OpenError::UnknownFormat { found, .. }) if found.ends_with("99"))
        );
        assert_eq!(fs::read_to_string(path.join("FORMAT")).unwrap(), "restow-embedded-store 99\n");
    }

    #[test]
    fn a_directory_is_claimed_though_nothing_can_be_noted_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("store");
        drop(Directory::claim(&path).unwrap());
        // A pipe can be locked and not be cut, much as a file on a full disk.
        fs::remove_file(path.join("LOCK")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path.join("LOCK"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let _claimed = Directory::claim(&path).unwrap();
    }

    #[test]
    fn only_the_owner_may_look_into_a_directory() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("store");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        drop(Directory::claim(&path).unwrap());
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("LOCK")), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        drop(Directory::claim(&path).unwrap());
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn somebody_elses_directory_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("photo.jpg"), "x").unwrap();
        assert!(matches!(Directory::claim(parent.path()), Err(OpenError::NotAStore { .. })));
        assert!(!parent.path().join("FORMAT").exists());
        assert!(matches!(
            Directory::claim(&parent.path().join("a/b")),
            Err(OpenError::Io { action: "create the data directory", .. })
        ));
    }
}
