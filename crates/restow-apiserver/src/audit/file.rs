//! A log file that is rotated by size.

use super::AuditConfig;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Appends to a file. Each write goes into one file as a whole.
pub(super) struct RotatedFile {
    config: AuditConfig,
    file: File,
    size: u64,
}

impl RotatedFile {
    pub(super) fn open(config: AuditConfig) -> io::Result<Self> {
        // The log names users and objects: only its owner may read it.
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&config.path)?;
        let found = file.metadata()?;
        if found.is_file() && found.permissions().mode() & 0o077 != 0 {
            restrict_permissions(&file, &config.path);
        }
        let size = found.len();
        Ok(RotatedFile { config, file, size })
    }

    /// Renames the file to one with the current time in its name, and opens a new one.
    fn rotate(&mut self) -> io::Result<()> {
        let (start, end) = self.name_parts();
        let now = restow_host::now().as_nanosecond();
        std::fs::rename(&self.config.path, self.config.path.with_file_name(format!("{start}{now}{end}")))?;
        *self = RotatedFile::open(self.config.clone())?;
        self.remove_oldest()
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut old = self.rotated_files()?;
        // Times in names are of equal length, so their order is the order of time.
        old.sort();
        let surplus = old.len().saturating_sub(self.config.max_backups);
        old.iter().take(surplus).try_for_each(std::fs::remove_file)
    }

    fn rotated_files(&self) -> io::Result<Vec<PathBuf>> {
        let (start, end) = self.name_parts();
        let folder = match self.config.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => std::path::Path::new("."),
        };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let time = name.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
            if time.is_some_and(|time| !time.is_empty() && time.bytes().all(|byte| byte.is_ascii_digit())) {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// The prefix and suffix of the names of rotated files.
    fn name_parts(&self) -> (String, String) {
        let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        let start = text(self.config.path.file_stem()).unwrap_or_default();
        let end = text(self.config.path.extension()).map(|end| format!(".{end}")).unwrap_or_default();
        (format!("{start}-"), end)
    }
}

/// Restricts an existing log to its owner; if that fails, it is written nevertheless, with a warning.
fn restrict_permissions(file: &File, path: &Path) {
    match file.set_permissions(Permissions::from_mode(0o600)) {
        Ok(()) => {
            tracing::warn!(path = %path.display(), "the audit log was readable by other users; restricted to its owner")
        }
        Err(error) => tracing::warn!(%error, path = %path.display(), "the audit log is readable by other users"),
    }
}

impl Write for RotatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.size > 0 && self.size + bytes.len() as u64 > self.config.max_bytes {
            self.rotate()?;
        }
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_rotated_and_only_the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let other = folder.path().join("audit-of-others.log");
        std::fs::write(&other, "kept").unwrap();
        let mut file = RotatedFile::open(AuditConfig { path: path.clone(), max_bytes: 10, max_backups: 2 }).unwrap();
        for line in ["one 1\n", "two 2\n", "three\n", "four4\n", "five5\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "five5\n");
        let mut rotated = file.rotated_files().unwrap();
        rotated.sort();
        let texts: Vec<String> = rotated.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert_eq!(texts, ["three\n", "four4\n"]);
        assert!(other.exists());
    }
}
