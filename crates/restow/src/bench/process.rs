//! What the system knows about a process.

/// The resident memory of a process in bytes; `None` where the system does not tell.
pub(crate) fn resident_bytes(process: u32) -> Option<f64> {
    memory(process, "VmRSS:")
}

/// The most resident memory that a process has ever had, in bytes; `None` where the system does not tell.
pub(crate) fn peak_bytes(process: u32) -> Option<f64> {
    memory(process, "VmHWM:")
}

fn memory(process: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024.0)
}

/// The bytes that the files below a folder take on the disk.
pub(crate) fn disk_bytes(folder: &std::path::Path) -> Option<f64> {
    use std::os::unix::fs::MetadataExt;
    let mut total = 0.0;
    for item in std::fs::read_dir(folder).ok()? {
        let item = item.ok()?;
        let metadata = item.metadata().ok()?;
        total += match metadata.is_dir() {
            true => disk_bytes(&item.path())?,
            false => (metadata.blocks() * 512) as f64,
        };
    }
    Some(total)
}
