//! File permissions: only the owner may read what `restow` writes, whatever the umask and whoever created the folder.

use anyhow::Context;
use rustix::fs::Mode;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// The entries of a data directory that `restow` creates. Others are left alone: it may be a user's working directory.
const OURS: [&str; 3] = ["store", "pki", "kubeconfig"];

/// Sets the umask, so that only the owner can read new files, also those that libraries create.
pub(crate) fn keep_new_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Creates the data directory, or removes the permissions of other users on an existing one. They could read every Secret.
pub(crate) fn create_data_directory(folder: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| {
        format!("cannot create the data directory {}; choose another with --data-dir", folder.display())
    })?;
    let mut wider = Vec::new();
    if is_ours(folder)? {
        close(folder, &mut wider)?;
    } else {
        refuse_open_folder(folder)?;
    }
    for name in OURS {
        refuse_foreign_link(&folder.join(name), rustix::process::geteuid().as_raw())?;
        close_all(&folder.join(name), &mut wider)?;
    }
    if let Some(first) = wider.first() {
        tracing::warn!(
            count = wider.len(),
            first,
            "other users could read the data directory, or write to it; now only its owner can. Consider what was in it \
             as known to them"
        );
    }
    Ok(())
}

/// Whether a folder is for our data alone: it holds no other folders, and no other files but the owner's, such as an audit log.
/// Other users may need access to any other folder, such as `/var/lib`.
fn is_ours(folder: &Path) -> anyhow::Result<bool> {
    let owner = rustix::process::geteuid().as_raw();
    for item in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let item = item.with_context(|| format!("cannot list {}", folder.display()))?;
        let is_file = item.metadata().is_ok_and(|found| found.is_file() && found.uid() == owner);
        if !is_file && !OURS.iter().any(|name| item.file_name() == *name) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A user who may write to a folder can replace our files, unless the folder is sticky.
fn refuse_open_folder(folder: &Path) -> anyhow::Result<()> {
    let found = fs::metadata(folder).with_context(|| format!("cannot look at {}", folder.display()))?;
    anyhow::ensure!(
        found.mode() & 0o022 == 0 || found.mode() & 0o1000 != 0,
        "other users may write to {} (mode {:o}), and it holds more than our data; choose another folder with --data-dir, or \
         remove their write permission",
        folder.display(),
        found.mode() & 0o7777
    );
    Ok(())
}

/// A user who may write to the folder could redirect our keys with a symbolic link.
fn refuse_foreign_link(path: &Path, owner: u32) -> anyhow::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    anyhow::ensure!(
        !found.is_symlink() || [owner, 0].contains(&found.uid()),
        "{} is a link that another user (uid {}) has created; remove it, and check who may write there",
        path.display(),
        found.uid()
    );
    Ok(())
}

fn close_all(path: &Path, wider: &mut Vec<String>) -> anyhow::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("cannot look at {}", path.display()))?,
    };
    if found.is_symlink() {
        return Ok(());
    }
    close(path, wider)?;
    if found.is_dir() {
        for item in fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))? {
            close_all(&item?.path(), wider)?;
        }
    }
    Ok(())
}

/// Removes the permissions of other users. Records the path where there were any.
fn close(path: &Path, wider: &mut Vec<String>) -> anyhow::Result<()> {
    let mode = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, Permissions::from_mode(mode & 0o700)) {
        Ok(()) => wider.push(format!("{} (mode {:o})", path.display(), mode & 0o777)),
        // The root of a volume may have another owner; the files in it are ours, and closed.
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "other users can read this, and that cannot be changed")
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_of_earlier_times_is_closed_and_what_is_not_ours_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("data");
        let engine = folder.join("store/engine");
        fs::create_dir_all(&engine).unwrap();
        for file in [engine.join("0.jnl"), folder.join("kubeconfig"), folder.join("notes"), parent.path().join("other")]
        {
            fs::write(&file, "x").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        }
        for open in [&folder, &folder.join("store"), &engine] {
            fs::set_permissions(open, Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(parent.path().join("other"), engine.join("link")).unwrap();
        create_data_directory(&folder).unwrap();
        for closed in [&folder, &folder.join("store"), &engine] {
            assert_eq!(mode(closed), 0o700, "{}", closed.display());
        }
        assert_eq!(mode(&engine.join("0.jnl")), 0o600);
        assert_eq!(mode(&folder.join("kubeconfig")), 0o600);
        assert_eq!(mode(&folder.join("notes")), 0o644);
        assert_eq!(mode(&parent.path().join("other")), 0o644, "links are not followed");
    }

    #[test]
    fn a_folder_of_others_is_left_as_it_is_or_refused() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("notes")).unwrap();
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for (mode, accepted) in [(0o1777, true), (0o755, true), (0o775, false), (0o777, false)] {
            fs::set_permissions(parent.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(create_data_directory(parent.path()).is_ok(), accepted, "{mode:o}");
            assert_eq!(mode_of(parent.path()), mode);
        }
    }

    #[test]
    fn a_link_that_another_user_has_made_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let (link, file) = (parent.path().join("pki"), parent.path().join("kubeconfig"));
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        fs::write(&file, "x").unwrap();
        // What root has made is trusted, so its link is given away; for anybody else, the owner is another one.
        let me = rustix::process::geteuid();
        if me.is_root() {
            std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        }
        let refused = refuse_foreign_link(&link, me.as_raw() + 1).unwrap_err().to_string();
        assert!(refused.contains("is a link that another user"), "{refused}");
        let owner = fs::symlink_metadata(&link).unwrap().uid();
        refuse_foreign_link(&link, owner).unwrap();
        refuse_foreign_link(&file, me.as_raw() + 1).unwrap();
        refuse_foreign_link(&parent.path().join("nothing"), owner).unwrap();
    }

    #[test]
    fn a_new_directory_is_closed_from_the_beginning() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        create_data_directory(&folder).unwrap();
        assert_eq!((mode(&folder), mode(&parent.path().join("a"))), (0o700, 0o700));
    }
}
