//! The data directory: its lock, its format, the paths in it, and why a store could not be opened ([`OpenError`]).

use crate::layout::{FORMAT, FORMAT_1};
use crate::recovery_copy::remove;
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
    /// The store has a format that this version does not know.
    #[error(
        "the data directory {} has the format {found:?}, this version knows only {expected:?}; use the version of \
         restow that wrote it", directory.display(), expected = FORMAT.trim()
    )]
    UnknownFormat {
        /// The directory.
        directory: PathBuf,
        /// Its format.
        found: String,
    },
    /// The directory holds files that do not belong to a store.
    #[error("the directory {} is not empty and holds no store; choose another one", directory.display())]
    NotAStore {
        /// The directory.
        directory: PathBuf,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The storage engine could not open its files.
    #[error("cannot open the store in {}: {reason}", directory.display())]
    Engine {
        /// The directory.
        directory: PathBuf,
        /// The error of the engine.
        reason: String,
    },
    /// Stored data is missing or corrupt.
    #[error(
        "the store in {} is damaged: {reason}. Nothing was changed. Restore the whole directory from a backup; or, to accept the \
         loss of what is missing, start once with --accept-data-loss", directory.display()
    )]
    Damaged {
        /// The directory.
        directory: PathBuf,
        /// What is missing or corrupt.
        reason: String,
    },
    /// The store is damaged, and a repair is not possible either.
    #[error(
        "the store in {} is damaged and cannot be repaired: {reason}. Nothing was changed. Restore the whole directory \
         from a backup; or move it away, to start with an empty store", directory.display()
    )]
    Unrecoverable {
        /// The directory.
        directory: PathBuf,
        /// Why it cannot be repaired.
        reason: String,
    },
}

/// A data directory that this process has locked. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    lock: File,
    format: Format,
}

/// The format of a data directory. It is written last: without a format nothing was ever stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    None,
    /// The previous format.
    One,
    Current,
}

/// The files that an interrupted first start may leave behind.
const FIRST_START_FILES: [&str; 7] =
    ["LOCK", "FORMAT.new", "WITNESS", "WITNESS.new", "engine", "engine.new", "engine.check"];

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is being started inherits it for a moment.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, path = %self.path.display(), "could not unlock the store");
        }
    }
}

impl Directory {
    /// Creates the directory if it does not exist, locks it, and reads its format.
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
        restrict_permissions(path);
        Ok(Directory { path: path.into(), lock, format })
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The engine's files.
    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join("engine")
    }

    /// A new engine, until it is complete and replaces the other.
    pub(crate) fn new_engine(&self) -> PathBuf {
        self.path.join("engine.new")
    }

    /// The copy of the engine's files for a dry run of the recovery.
    pub(crate) fn recovery_copy(&self) -> PathBuf {
        self.path.join("engine.check")
    }

    /// The witness (`witness.rs`).
    pub(crate) fn witness(&self) -> PathBuf {
        self.path.join("WITNESS")
    }

    /// Exchanges two directories atomically and durably.
    pub(crate) fn exchange(&self, one: &Path, other: &Path) -> Result<(), OpenError> {
        let exchanged = rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(io::Error::from);
        let exchanged = match exchanged {
            // Not every file system can exchange atomically.
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
        exchanged.map_err(|source| OpenError::Io { action: "replace the engine by", path: one.into(), source })
    }

    /// Renames a file or directory durably.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        let renamed = fs::rename(from, to).and_then(|()| self.sync());
        renamed.map_err(|source| OpenError::Io { action: "rename", path: from.into(), source })
    }

    /// Writes the current format: the directory is complete.
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

    /// The error for a store that cannot be repaired. It names the damaged files that earlier repairs have kept.
    pub(crate) fn unrecoverable(&self, reason: impl Into<String>) -> OpenError {
        let kept = fs::read_dir(&self.path).into_iter().flatten().flatten().map(|item| item.file_name());
        let kept: Vec<_> =
            kept.filter_map(|name| name.into_string().ok()).filter(|name| is_damaged_copy(name)).collect();
        let mut reason = reason.into();
        if !kept.is_empty() {
            reason.push_str(&format!(" (damaged files of earlier repairs are in {})", kept.join(", ")));
        }
        OpenError::Unrecoverable { directory: self.path.clone(), reason }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether this is the name of a damaged engine that a repair has kept.
fn is_damaged_copy(name: &str) -> bool {
    name.starts_with("engine.damaged-")
}

/// Makes the creation of a directory durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Whether there are files that an interrupted first start does not leave behind.
fn holds_something_else(path: &Path) -> Result<bool, OpenError> {
    let failed = |source| OpenError::Io { action: "list", path: path.into(), source };
    for item in fs::read_dir(path).map_err(failed)? {
        let name = item.map_err(failed)?.file_name();
        if !FIRST_START_FILES.iter().any(|beginning| name == *beginning) && !name.to_str().is_some_and(is_damaged_copy)
        {
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
    let written = || -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    }();
    if let Err(error) = written {
        // The process id is only for error messages, so a store on a full disk can still be opened.
        tracing::warn!(%error, path = %path.display(), "could not write the process id into the lock file of the store");
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

/// Writes the format atomically.
fn write_format(draft: &Path, path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(draft)?;
    file.write_all(FORMAT.as_bytes())?;
    file.sync_all()?;
    fs::rename(draft, path)
}

/// Removes all permissions of other users. Stores of earlier versions may have them.
fn restrict_permissions(path: &Path) {
    let closed = || -> io::Result<()> {
        let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
            tracing::warn!(path = %path.display(), "other users could read the store (mode {mode:o}); now only its owner can");
        }
        Ok(())
    };
    if let Err(error) = closed() {
        tracing::warn!(%error, path = %path.display(), "could not remove the permissions of other users to read the store");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_process_can_lock_a_directory() {
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
    fn a_directory_is_locked_even_if_the_process_id_cannot_be_written() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("store");
        drop(Directory::claim(&path).unwrap());
        // A pipe can be locked but not truncated, like a file on a full disk.
        fs::remove_file(path.join("LOCK")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path.join("LOCK"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let _claimed = Directory::claim(&path).unwrap();
    }

    #[test]
    fn only_the_owner_can_read_a_directory() {
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
    fn a_directory_with_other_files_is_refused() {
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
