//! Reads and finds files, with errors that name them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The only file of this name below the folder `crates` of the workspace.
pub(crate) fn find_in_crates(name: &str) -> Result<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = crates.canonicalize().with_context(|| format!("cannot find {}", crates.display()))?;
    let mut found = Vec::new();
    collect(&crates, name, &mut found)?;
    match found.as_slice() {
        [path] => Ok(path.clone()),
        [] => bail!("{} holds no file {name}; name it with an option", crates.display()),
        _ => bail!("{} holds {name} {} times; name one with an option", crates.display(), found.len()),
    }
}

fn collect(folder: &Path, name: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    let listing = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for item in listing {
        let path = item?.path();
        if path.is_dir() {
            collect(&path, name, found)?;
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
    Ok(())
}
