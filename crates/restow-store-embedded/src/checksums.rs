//! Compares the engine's files with their checksums, before the engine opens them. The engine writes these checksums, but
//! does not check them itself.
//!
//! In each keyspace the file `current` names the manifest and has its checksum, and the manifest has those of all tables.
//! The engine trusts the lengths that it reads there: one flipped bit makes it allocate more memory than there is, which
//! aborts the process. `journal.rs` checks the journals.

use crate::engine::EngineError;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// The only kind of checksum that the engine has.
const XXH3: u8 = 0;
/// The size of a table's footer: magic bytes, version and checksum type (6), the checksum of the table of contents (16), its
/// offset (8) and its length (8).
const FOOTER: u64 = 38;
/// The buffer for reading a table.
const BUFFER_BYTES: usize = 256 << 10;

/// A table, with its checksum according to the manifest.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    checksum: u128,
}

/// Checks the manifests of all keyspaces, and returns the tables that they list. A missing keyspace is not detected here,
/// but by the fingerprint.
pub(crate) fn check_manifests(engine: &Path) -> Result<Vec<Table>, EngineError> {
    let mut tables = Vec::new();
    let keyspaces = match fs::read_dir(engine.join("keyspaces")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(tables),
        other => other.map_err(|error| EngineError::Io(error.to_string()))?,
    };
    for keyspace in keyspaces {
        let keyspace = keyspace.map_err(|error| EngineError::Io(error.to_string()))?.path();
        let Some(current) = read(&keyspace.join("current"))? else { continue };
        let unreadable = || EngineError::Corrupt(format!("{} is unreadable", keyspace.join("current").display()));
        let (number, checksum) = parse_current(&current).ok_or_else(unreadable)?;
        let path = keyspace.join(format!("v{number}"));
        let Some(manifest) = read(&path)? else {
            return Err(EngineError::Corrupt(format!(
                "{} is missing, which {}/current names",
                path.display(),
                keyspace.display()
            )));
        };
        if xxh3_128(&manifest) != checksum {
            return Err(mismatch(&path));
        }
        let listed = parse_manifest(&manifest);
        let listed = listed.ok_or_else(|| EngineError::Corrupt(format!("{} has an unknown format", path.display())))?;
        let place = |(number, checksum): (u64, u128)| Table {
            path: keyspace.join("tables").join(number.to_string()),
            checksum,
        };
        tables.extend(listed.into_iter().map(place));
    }
    Ok(tables)
}

/// Checks every byte of the tables.
pub(crate) fn check_tables(tables: &[Table]) -> Result<(), EngineError> {
    for Table { path, checksum } in tables {
        let found = digest(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => EngineError::Corrupt(format!("{} is missing", path.display())),
            _ => EngineError::Io(format!("{} cannot be read: {error}", path.display())),
        })?;
        if found != *checksum {
            return Err(mismatch(path));
        }
    }
    Ok(())
}

/// Checks the tables of contents, which the engine trusts when it opens a table. For a repair, which reads corrupt tables.
pub(crate) fn check_footers(tables: &[Table]) -> Result<(), EngineError> {
    for Table { path, .. } in tables {
        let whole = footer_is_intact(path);
        if !whole.map_err(|error| EngineError::Io(format!("{} cannot be read: {error}", path.display())))? {
            return Err(EngineError::Corrupt(format!("{} cannot be read at all", path.display())));
        }
    }
    Ok(())
}

/// Whether the table of contents at the end of a table has the checksum in the footer.
fn footer_is_intact(path: &Path) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let length = file.metadata()?.len();
    if length < FOOTER {
        return Ok(false);
    }
    let mut footer = Vec::new();
    file.seek(SeekFrom::Start(length - FOOTER))?;
    file.read_to_end(&mut footer)?;
    let mut rest = footer.get(6..).unwrap_or_default();
    let mut number = || take(&mut rest).map(u64::from_le_bytes).unwrap_or_default();
    let (low, high, position, size) = (number(), number(), number(), number());
    if position.checked_add(size).is_none_or(|end| end > length) {
        return Ok(false);
    }
    let mut contents = Vec::new();
    file.seek(SeekFrom::Start(position))?;
    file.take(size).read_to_end(&mut contents)?;
    Ok(xxh3_128(&contents) == u128::from(high) << 64 | u128::from(low))
}

fn mismatch(path: &Path) -> EngineError {
    EngineError::Corrupt(format!("{} is corrupt: its checksum differs", path.display()))
}

/// A small file; `None` if it is missing.
fn read(path: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => {
            other.map(Some).map_err(|error| EngineError::Io(format!("{} cannot be read: {error}", path.display())))
        }
    }
}

fn digest(path: &Path) -> io::Result<u128> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; BUFFER_BYTES]);
    let mut sum = Xxh3Default::new();
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sum.digest128()),
            read => sum.update(&buffer[..read]),
        }
    }
}

/// The number of a keyspace's manifest, and its checksum.
fn parse_current(mut bytes: &[u8]) -> Option<(u64, u128)> {
    let number = u64::from_le_bytes(take(&mut bytes)?);
    let checksum = u128::from_le_bytes(take(&mut bytes)?);
    (bytes == [XXH3]).then_some((number, checksum))
}

/// The numbers of the tables that a manifest lists, in levels of runs, with their checksums. The manifest's own checksum is
/// already checked.
fn parse_manifest(manifest: &[u8]) -> Option<Vec<(u64, u128)>> {
    let reader = sfa::Reader::from_reader(&mut io::Cursor::new(manifest)).ok()?;
    let section = reader.toc().section(b"tables")?;
    let from = usize::try_from(section.pos()).ok()?;
    let mut bytes = manifest.get(from..from.checked_add(usize::try_from(section.len()).ok()?)?)?;
    let mut tables = Vec::new();
    let [levels] = take(&mut bytes)?;
    for _ in 0..levels {
        let [runs] = take(&mut bytes)?;
        for _ in 0..runs {
            for _ in 0..u32::from_le_bytes(take(&mut bytes)?) {
                let number = u64::from_le_bytes(take(&mut bytes)?);
                let [XXH3] = take(&mut bytes)? else { return None };
                tables.push((number, u128::from_le_bytes(take(&mut bytes)?)));
                let _sequence: [u8; 8] = take(&mut bytes)?;
            }
        }
    }
    bytes.is_empty().then_some(tables)
}

/// Takes `N` bytes off the beginning.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Background, Durability, Engine};
    use crate::layout::Record;
    use restow_store::{Key, Revision};

    /// It also fails if a new version of the engine has file formats that this code does not know.
    #[test]
    fn a_flipped_bit_in_any_manifest_or_table_is_detected() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("engine");
        let engine = Engine::open(&path, Background::Enabled).unwrap();
        for revision in 2..6 {
            let mut batch = engine.batch(Durability::Synced);
            batch.put_version(&Key::try_from("a").unwrap(), Revision::new(revision), 0, &Record::Deleted);
            batch.commit().unwrap();
            engine.flush();
        }
        drop(engine);
        let tables = check_manifests(&path).unwrap();
        check_tables(&tables).unwrap();
        check_footers(&tables).unwrap();
        let keyspaces: Vec<_> = tables.iter().map(|table| table.path.ancestors().nth(2).unwrap()).collect();
        assert!(keyspaces.iter().any(|keyspace| *keyspace != keyspaces[0]), "one keyspace only: {keyspaces:?}");
        let manifests = keyspaces.iter().flat_map(|keyspace| {
            let (number, _) = parse_current(&fs::read(keyspace.join("current")).unwrap()).unwrap();
            [keyspace.join("current"), keyspace.join(format!("v{number}"))]
        });
        let files: Vec<PathBuf> = manifests.chain(tables.iter().map(|table| table.path.clone())).collect();
        for file in files {
            let whole = fs::read(&file).unwrap();
            for place in (0..whole.len()).step_by(1 + whole.len() / 200) {
                let mut damaged = whole.clone();
                damaged[place] ^= 0x80;
                fs::write(&file, damaged).unwrap();
                let checked = check_manifests(&path).and_then(|tables| check_tables(&tables));
                assert!(
                    matches!(checked, Err(EngineError::Corrupt(_))),
                    "byte {place} of {}: {checked:?}",
                    file.display()
                );
            }
            fs::write(&file, whole).unwrap();
        }
        check_manifests(&path).and_then(|tables| check_tables(&tables)).unwrap();
    }
}
