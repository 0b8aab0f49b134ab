//! A copy of the sources in which some files are changed, for builds with bugs.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What is copied.
const COPIED: &[&str] = &[".cargo", "Cargo.lock", "Cargo.toml", "crates", "deploy", "examples"];

/// Copies the sources, with other texts for these files, whose paths begin at the root of the repository. A file of the
/// copy that is already as it should be is not written, so that nothing is compiled without need.
pub(crate) fn write(root: &Path, copy: &Path, changed: &BTreeMap<PathBuf, String>) -> Result<()> {
    for name in COPIED {
        copy_below(root, copy, Path::new(name), changed)?;
    }
    Ok(())
}

fn copy_below(root: &Path, copy: &Path, name: &Path, changed: &BTreeMap<PathBuf, String>) -> Result<()> {
    let from = root.join(name);
    if from.is_dir() {
        for entry in fs::read_dir(&from)? {
            copy_below(root, copy, &name.join(entry?.file_name()), changed)?;
        }
        return Ok(());
    }
    let bytes = match changed.get(name) {
        Some(text) => text.clone().into_bytes(),
        None => fs::read(&from)?,
    };
    let to = copy.join(name);
    if fs::read(&to).ok().as_ref() != Some(&bytes) {
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::write(to, bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_changed_texts_and_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let (root, copy) = (folder.path().join("root"), folder.path().join("copy"));
        for name in [".cargo", "crates", "deploy", "examples"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["Cargo.lock", "Cargo.toml", "crates/a.rs", "crates/b.rs"] {
            fs::write(root.join(name), name).unwrap();
        }
        let changed = BTreeMap::from([(PathBuf::from("crates/a.rs"), "changed".to_owned())]);
        write(&root, &copy, &changed).unwrap();
        let written = |name: &str| fs::metadata(copy.join(name)).unwrap().modified().unwrap();
        let before = (written("crates/a.rs"), written("crates/b.rs"));
        write(&root, &copy, &changed).unwrap();
        assert_eq!((written("crates/a.rs"), written("crates/b.rs")), before);
        assert_eq!(fs::read_to_string(copy.join("crates/a.rs")).unwrap(), "changed");
        assert_eq!(fs::read_to_string(copy.join("crates/b.rs")).unwrap(), "crates/b.rs");
    }
}
