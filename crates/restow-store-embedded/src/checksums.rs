//! Compares the engine's files with the checksums that it writes, but does not compare itself, before it opens them.
//!
//! In each keyspace the file `current` names the manifest and has its checksum, and the manifest has those of all tables.
//! The engine believes the lengths that it reads there: one flipped bit makes it ask for more memory than there is, and
//! that ends the process. The journals have their own checks (`journal.rs`).

use crate::engine::Failure;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// The only kind of checksum that the engine has.
const XXH3: u8 = 0;
/// The bytes of the trailer of a table: a mark, version and kind of checksum (6), the checksum of the table of contents (16),
/// where that begins (8), and how long it is (8).
const TRAILER: u64 = 38;
/// How much of a table is read at once.
const PIECE: usize = 256 << 10;

/// A table, and the checksum that its keyspace's manifest has of it.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    checksum: u128,
}

/// Checks the manifests of all keyspaces; returns the tables that they list. What is missing altogether is left to those
/// who know what should be there.
pub(crate) fn check_manifests(engine: &Path) -> Result<Vec<Table>, Failure> {
    let mut tables = Vec::new();
    let keyspaces = match fs::read_dir(engine.join("keyspaces")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(tables),
        other => other.map_err(|error| Failure::Disk(error.to_string()))?,
    };
    for keyspace in keyspaces {
        let keyspace = keyspace.map_err(|error| Failure::Disk(error.to_string()))?.path();
        let Some(current) = read(&keyspace.join("current"))? else { continue };
        let unreadable = || Failure::Damage(format!("{} is unreadable", keyspace.join("current").display()));
        let (number, checksum) = parse_current(&current).ok_or_else(unreadable)?;
        let path = keyspace.join(format!("v{number}"));
        let Some(manifest) = read(&path)? else {
            return Err(Failure::Damage(format!(
                "{} is missing, which {}/current names",
                path.display(),
                keyspace.display()
            )));
        };
        if xxh3_128(&manifest) != checksum {
            return Err(mismatch(&path));
        }
        let listed = parse_manifest(&manifest);
        let listed = listed.ok_or_else(|| Failure::Damage(format!("{} has an unknown format", path.display())))?;
        let place = |(number, checksum): (u64, u128)| Table {
            path: keyspace.join("tables").join(number.to_string()),
            checksum,
        };
        tables.extend(listed.into_iter().map(place));
    }
    Ok(tables)
}

/// Checks every byte of the tables.
pub(crate) fn check_tables(tables: &[Table]) -> Result<(), Failure> {
    for Table { path, checksum } in tables {
        let found = digest(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::Damage(format!("{} is missing", path.display())),
            _ => Failure::Disk(format!("{} cannot be read: {error}", path.display())),
        })?;
        if found != *checksum {
            return Err(mismatch(path));
        }
    }
    Ok(())
}

/// Checks what the engine believes unseen when it opens a table: where its parts lie. For whoever reads damaged tables.
pub(crate) fn check_outlines(tables: &[Table]) -> Result<(), Failure> {
    for Table { path, .. } in tables {
        let whole = outline_is_whole(path);
        if !whole.map_err(|error| Failure::Disk(format!("{} cannot be read: {error}", path.display())))? {
            return Err(Failure::Damage(format!("{} cannot be read at all", path.display())));
        }
    }
    Ok(())
}

/// Whether the table of contents at the end of a file has the checksum that the trailer behind it says.
fn outline_is_whole(path: &Path) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let length = file.metadata()?.len();
    if length < TRAILER {
        return Ok(false);
    }
    let mut trailer = Vec::new();
    file.seek(SeekFrom::Start(length - TRAILER))?;
    file.read_to_end(&mut trailer)?;
    let mut rest = trailer.get(6..).unwrap_or_default();
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

fn mismatch(path: &Path) -> Failure {
    Failure::Damage(format!("{} is not what was written: its checksum differs", path.display()))
}

/// A small file; `None` if it is missing.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(|error| Failure::Disk(format!("{} cannot be read: {error}", path.display()))),
    }
}

fn digest(path: &Path) -> io::Result<u128> {
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE]);
    let mut sum = Xxh3Default::new();
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(sum.digest128()),
            read => sum.update(&piece[..read]),
        }
    }
}

/// The number of a keyspace's manifest, and its checksum.
fn parse_current(mut bytes: &[u8]) -> Option<(u64, u128)> {
    let number = u64::from_le_bytes(take(&mut bytes)?);
    let checksum = u128::from_le_bytes(take(&mut bytes)?);
    (bytes == [XXH3]).then_some((number, checksum))
}

/// The numbers of the tables that a manifest lists, in levels of runs, with their checksums. The manifest is known to be
/// whole.
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

/// Takes so many bytes off the beginning.
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

    /// Fails, too, when a new version of the engine has other formats than this code knows.
    #[test]
    fn every_byte_of_manifests_and_tables_counts() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("engine");
        let engine = Engine::open(&path, Background::Works).unwrap();
        for revision in 2..6 {
            let mut batch = engine.batch(Durability::Synced);
            batch.put_version(&Key::try_from("a").unwrap(), Revision::new(revision), 0, &Record::Deleted);
            batch.commit().unwrap();
            engine.settle();
        }
        drop(engine);
        let tables = check_manifests(&path).unwrap();
        check_tables(&tables).unwrap();
        check_outlines(&tables).unwrap();
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
                assert!(matches!(checked, Err(Failure::Damage(_))), "byte {place} of {}: {checked:?}", file.display());
            }
            fs::write(&file, whole).unwrap();
        }
        check_manifests(&path).and_then(|tables| check_tables(&tables)).unwrap();
    }
}
