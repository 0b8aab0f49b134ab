//! The directory of a store: who uses it, and in which format it is.

use crate::layout::FORMAT;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
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
    /// What is stored contradicts itself.
    #[error("the store in {} is damaged: {reason}; restore it from a backup", directory.display())]
    Damaged {
        /// The directory.
        directory: PathBuf,
        /// What does not fit.
        reason: String,
    },
}

/// A directory that this process, and no other, uses. Dropping it lets others in.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that is being started has a copy of it for a moment.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, path = %self.path.display(), "could not unlock the store");
        }
    }
}

impl Directory {
    /// Claims the directory, makes it where it does not exist, and checks its format.
    pub(crate) fn claim(path: &Path) -> Result<Self, OpenError> {
        match fs::create_dir(path).and_then(|()| sync_parent(path)) {
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
        check_format(path)?;
        Ok(Directory { path: path.into(), lock })
    }

    /// Where the engine keeps its files.
    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join("engine")
    }

    /// Makes the engine's files where there are none, so that they are either there as a whole, or not.
    pub(crate) fn create_engine(&self, create: impl FnOnce(&Path) -> Result<(), OpenError>) -> Result<(), OpenError> {
        let draft = self.path.join("engine.new");
        let failed = |action| {
            let path = draft.clone();
            move |source| OpenError::Io { action, path, source }
        };
        match fs::remove_dir_all(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove")(error)),
            _ => {}
        }
        if self.engine().exists() {
            return Ok(());
        }
        create(&draft)?;
        let finish = fs::rename(&draft, self.engine()).and_then(|()| File::open(&self.path)?.sync_all());
        finish.map_err(failed("finish"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
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
        if name != "LOCK" && name != "FORMAT.new" {
            return Ok(true);
        }
    }
    Ok(false)
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join("LOCK");
    let failed = |source| OpenError::Io { action: "lock", path: path.clone(), source };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
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

fn check_format(directory: &Path) -> Result<(), OpenError> {
    let path = directory.join("FORMAT");
    match fs::read(&path) {
        Ok(found) if found == FORMAT.as_bytes() => Ok(()),
        Ok(found) => Err(OpenError::UnknownFormat {
            directory: directory.into(),
            found: String::from_utf8_lossy(&found[..found.len().min(100)]).trim().to_string(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write_format(directory, &path).map_err(|source| OpenError::Io { action: "write", path, source })
        }
        Err(source) => Err(OpenError::Io { action: "read", path, source }),
    }
}

/// Writes the format so that it is either there as a whole, or not.
fn write_format(directory: &Path, path: &Path) -> io::Result<()> {
    let draft = directory.join("FORMAT.new");
    let mut file = File::create(&draft)?;
    file.write_all(FORMAT.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(directory)?.sync_all()
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
        drop(Directory::claim(&path).unwrap());
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
    fn half_of_an_engine_is_thrown_away() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::claim(&parent.path().join("store")).unwrap();
        let broken = |path: &Path| OpenError::Engine { directory: path.into(), reason: "killed".into() };
        let killed = directory.create_engine(|draft| {
            fs::create_dir(draft).unwrap();
            Err(broken(draft))
        });
        assert!(killed.is_err());
        assert!(!directory.engine().exists());
        let create = |draft: &Path| {
            fs::create_dir(draft).map_err(|source| OpenError::Io { action: "create", path: draft.into(), source })
        };
        directory.create_engine(create).unwrap();
        assert!(directory.engine().exists());
        directory.create_engine(|draft| Err(broken(draft))).unwrap();
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
