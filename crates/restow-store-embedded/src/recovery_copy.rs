//! A copy of the engine's files, for a dry run of its recovery.
//!
//! The engine's recovery cannot be undone: it truncates journals, and deletes tables and whole keyspaces that it takes for
//! leftovers. If a file is damaged, that makes the damage permanent. So the recovery runs on a copy first, and the files
//! themselves are opened only if nothing is missing in the copy.
//!
//! Files that the engine never changes (tables, the bulk of a store) are linked, not copied.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The directories whose files never change.
const IMMUTABLE: [&str; 2] = ["tables", "blobs"];
/// The buffer for copying a file. Buffers of zeros are not written: journals are preallocated, so the copy is sparse.
const BUFFER_BYTES: usize = 64 << 10;

/// A copy that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct RecoveryCopy {
    path: PathBuf,
}

/// How the copy gets the files that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableFiles {
    /// As symbolic links, so that the copy may be on another disk.
    Symlinked,
    /// As hard links or copies, which stay when the originals are deleted.
    Owned,
}

impl RecoveryCopy {
    /// Copies the files at `engine` to `path`; if that disk is full, to the directory for temporary files.
    pub(crate) fn of(engine: &Path, path: &Path) -> io::Result<Self> {
        let engine = engine.canonicalize()?;
        let attempt = |path: PathBuf| -> io::Result<Self> {
            remove(&path)?;
            let recovery_copy = RecoveryCopy { path };
            copy_directory(&engine, &recovery_copy.path, TableFiles::Symlinked)?;
            Ok(recovery_copy)
        };
        match attempt(path.to_path_buf()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                attempt(std::env::temp_dir().join(format!("restow-check-{}", std::process::id())))
            }
            other => other,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RecoveryCopy {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "could not remove the copy that the store was checked on");
        }
    }
}

/// Removes a directory, if it exists.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Copies a directory of the engine.
pub(crate) fn copy_directory(from: &Path, to: &Path, tables: TableFiles) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    let immutable = from.file_name().is_some_and(|name| IMMUTABLE.iter().any(|immutable| name == *immutable));
    for item in fs::read_dir(from)? {
        let item = item?;
        let (source, target) = (item.path(), to.join(item.file_name()));
        if item.file_type()?.is_dir() {
            copy_directory(&source, &target, tables)?;
        } else if immutable && tables == TableFiles::Symlinked {
            std::os::unix::fs::symlink(&source, &target)?;
        } else if !immutable || fs::hard_link(&source, &target).is_err() {
            let copy = copy_file(&source, &target)?;
            if tables == TableFiles::Owned {
                copy.sync_all()?;
            }
        }
    }
    if tables == TableFiles::Owned { File::open(to)?.sync_all() } else { Ok(()) }
}

fn copy_file(from: &Path, to: &Path) -> io::Result<File> {
    let mut source = File::open(from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut length = 0;
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        if buffer[..read].iter().any(|byte| *byte != 0) {
            target.seek(SeekFrom::Start(length))?;
            target.write_all(&buffer[..read])?;
        }
        length += read as u64;
    }
    target.set_len(length)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_equal_and_changes_to_it_do_not_reach_the_originals() {
        let parent = tempfile::tempdir().unwrap();
        let engine = parent.path().join("engine");
        fs::create_dir_all(engine.join("keyspaces/1/tables")).unwrap();
        let mut journal = vec![7; BUFFER_BYTES + 3];
        journal.resize(5 * BUFFER_BYTES + 1, 0);
        journal[3 * BUFFER_BYTES] = 9;
        fs::write(engine.join("0.jnl"), &journal).unwrap();
        fs::write(engine.join("keyspaces/1/tables/4"), "a table").unwrap();
        let path = parent.path().join("copy");
        let copy = RecoveryCopy::of(&engine, &path).unwrap();
        assert_eq!(fs::read(copy.path().join("0.jnl")).unwrap(), journal);
        assert_eq!(fs::read(copy.path().join("keyspaces/1/tables/4")).unwrap(), b"a table");
        fs::remove_file(copy.path().join("keyspaces/1/tables/4")).unwrap();
        File::options().write(true).open(copy.path().join("0.jnl")).unwrap().set_len(1).unwrap();
        drop(copy);
        assert!(!path.exists());
        assert_eq!(fs::read(engine.join("0.jnl")).unwrap(), journal);
        assert_eq!(fs::read(engine.join("keyspaces/1/tables/4")).unwrap(), b"a table");
    }
}
