//! Memory, CPU time and disk use of a process, from `/proc`.

/// The resident memory of a process in bytes; `None` where it is unknown.
pub(crate) fn resident_bytes(process: u32) -> Option<f64> {
    memory(process, "VmRSS:")
}

/// The peak resident memory of a process in bytes; `None` where it is unknown.
pub(crate) fn peak_bytes(process: u32) -> Option<f64> {
    memory(process, "VmHWM:")
}

fn memory(process: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024.0)
}

/// The seconds of CPU that a process has used so far, all threads together; `None` where it is unknown.
pub(crate) fn cpu_seconds(process: u32) -> Option<f64> {
    // Linux counts in hundredths of a second wherever it tells programs.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name may hold spaces, but nothing after the last bracket does.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

/// The process on this machine that listens on a TCP port; `None` where it is unknown.
pub(crate) fn listening_process(port: u16) -> Option<u32> {
    const LISTEN: &str = "0A";
    let ending = format!(":{port:04X}");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let mut rows = tables.iter().flat_map(|table| table.lines()).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() > 9 && row[1].ends_with(&ending) && row[3] == LISTEN)?;
    let socket = format!("socket:[{}]", row[9]);
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|process| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files
            .map(|file| std::fs::read_link(file.path()))
            .any(|link| link.is_ok_and(|link| link.as_os_str() == &*socket))
    })
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
