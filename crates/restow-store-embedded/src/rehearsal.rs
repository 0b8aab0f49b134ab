//! A copy of the engine's files on which its recovery can be tried.
//!
//! The engine's recovery is not to be undone: it cuts journals, and deletes tables and whole keyspaces that it takes for
//! remnants. Where a file is damaged, that makes the damage final. So it is tried on a copy first, and the files
//! themselves are opened only when nothing was missing in the copy.
//!
//! What the engine never changes once it is written (tables, the bulk of a store) is not copied, but linked to.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The directories of files that do not change.
const UNCHANGING: [&str; 2] = ["tables", "blobs"];
/// The piece in which files are copied. What is all zero is not written: journals are long before they are full.
const PIECE: usize = 64 << 10;

/// A copy that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    path: PathBuf,
}

/// How the copy has the files that do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// By symbolic links, so that it may lie on another disk.
    Linked,
    /// As files of its own, which need no room where the file system can link.
    Owned,
}

impl Rehearsal {
    /// Copies the files at `engine` to `path`; in a full disk's stead, to the directory for temporary files.
    pub(crate) fn of(engine: &Path, path: &Path) -> io::Result<Self> {
        let engine = engine.canonicalize()?;
        let attempt = |path: PathBuf| -> io::Result<Self> {
            remove(&path)?;
            let rehearsal = Rehearsal { path };
            copy_directory(&engine, &rehearsal.path, Tables::Linked)?;
            Ok(rehearsal)
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

impl Drop for Rehearsal {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "could not remove a copy that was made to check the store");
        }
    }
}

/// Removes a directory, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Copies a directory of the engine.
pub(crate) fn copy_directory(from: &Path, to: &Path, tables: Tables) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    let unchanging = from.file_name().is_some_and(|name| UNCHANGING.iter().any(|unchanging| name == *unchanging));
    for item in fs::read_dir(from)? {
        let item = item?;
        let (source, target) = (item.path(), to.join(item.file_name()));
        if item.file_type()?.is_dir() {
            copy_directory(&source, &target, tables)?;
        } else if unchanging && tables == Tables::Linked {
            std::os::unix::fs::symlink(&source, &target)?;
        } else if !unchanging || fs::hard_link(&source, &target).is_err() {
            let copy = copy_file(&source, &target)?;
            if tables == Tables::Owned {
                copy.sync_all()?;
            }
        }
    }
    if tables == Tables::Owned { File::open(to)?.sync_all() } else { Ok(()) }
}

fn copy_file(from: &Path, to: &Path) -> io::Result<File> {
    let mut source = File::open(from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let mut piece = vec![0; PIECE];
    let mut length = 0;
    loop {
        let read = source.read(&mut piece)?;
        if read == 0 {
            break;
        }
        if piece[..read].iter().any(|byte| *byte != 0) {
            target.seek(SeekFrom::Start(length))?;
            target.write_all(&piece[..read])?;
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
    fn a_copy_is_equal_and_nothing_that_is_done_to_it_reaches_the_files() {
        let parent = tempfile::tempdir().unwrap();
        let engine = parent.path().join("engine");
        fs::create_dir_all(engine.join("keyspaces/1/tables")).unwrap();
        let mut journal = vec![7; PIECE + 3];
        journal.resize(5 * PIECE + 1, 0);
        journal[3 * PIECE] = 9;
        fs::write(engine.join("0.jnl"), &journal).unwrap();
        fs::write(engine.join("keyspaces/1/tables/4"), "a table").unwrap();
        let path = parent.path().join("copy");
        let copy = Rehearsal::of(&engine, &path).unwrap();
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
