//! Opens a store. First a dry run of the recovery, on a copy of the files, finds out whether everything that was
//! acknowledged is there; only then are the files themselves opened. Also creates new stores, and upgrades format 1.

use crate::checksums::{check_manifests, check_tables};
use crate::config::{EmbeddedConfig, OnDamage};
use crate::directory::{Directory, Format, OpenError};
use crate::engine::{
    Background, Durability, Engine, EngineError, FIRST_REVISION, Metadata, Opened, catch_panic, explain,
};
use crate::fingerprint::Fingerprint;
use crate::journal::check_lengths;
use crate::recovery_copy::{RecoveryCopy, remove};
use crate::repair::repair;
use crate::verification::verify;
use crate::witness::{Witness, open_witness, write_witness};
use restow_store::Revision;
use std::io;

/// A store whose files are open.
pub(crate) struct OpenFiles {
    pub(crate) directory: Directory,
    pub(crate) witness: Witness,
    pub(crate) opened: Opened,
}

/// Opens the store, or creates it if the directory is empty.
pub(crate) fn open(config: &EmbeddedConfig) -> Result<OpenFiles, OpenError> {
    let mut directory = Directory::claim(&config.directory)?;
    if directory.format() == Format::None && is_unused(&directory)? {
        create(&mut directory)?;
    } else {
        match check(&directory) {
            Err(OpenError::Damaged { reason, .. }) if config.on_damage == OnDamage::AcceptLoss => {
                repair(&mut directory, &reason)?;
            }
            other => other?,
        }
    }
    if directory.format() == Format::One {
        upgrade(&mut directory)?;
    }
    let (witness, acknowledged) = open_witness(&directory)?;
    let opened = open_engine(&directory, Metadata::Fingerprint)?;
    match acknowledged.missing_in(&opened.fingerprint) {
        Some(reason) => Err(directory.damaged(reason)),
        None => Ok(OpenFiles { directory, witness, opened }),
    }
}

/// Checks, without changing any file, that everything that was acknowledged is there.
pub(crate) fn check(directory: &Directory) -> Result<(), OpenError> {
    let acknowledged = match directory.format() {
        Format::None => return Err(directory.damaged("its file FORMAT is missing")),
        Format::One => None,
        Format::Current => Some(open_witness(directory)?.1),
    };
    let metadata = if acknowledged.is_some() { Metadata::Fingerprint } else { Metadata::RevisionsOnly };
    let opened = dry_run_recovery(directory, metadata)?;
    let missing = acknowledged.and_then(|acknowledged| acknowledged.missing_in(&opened));
    missing.map_or(Ok(()), |reason| Err(directory.damaged(reason)))
}

/// Compares the engine's files with their checksums, lets the engine recover a copy of them, and verifies the result.
fn dry_run_recovery(directory: &Directory, metadata: Metadata) -> Result<Fingerprint, OpenError> {
    if !directory.engine().is_dir() {
        return Err(directory.damaged("its directory engine, with everything that was stored, is missing"));
    }
    let action = "copy the journal, for a dry run of the recovery, to";
    let copy = RecoveryCopy::of(&directory.engine(), &directory.recovery_copy());
    let copy = copy.map_err(|source| OpenError::Io { action, path: directory.recovery_copy(), source })?;
    let (path, engine) = (copy.path().to_path_buf(), directory.engine());
    let attempt = || -> Result<Fingerprint, EngineError> {
        check_tables(&check_manifests(&engine)?)?;
        check_lengths(&engine)?;
        let opened = Engine::open(&path, Background::Disabled)?.load(metadata)?;
        verify(&opened)?;
        Ok(opened.fingerprint)
    };
    catch_panic(attempt).map_err(|error| open_error(directory, error))
}

/// Whether nothing was ever stored in a directory without a format: its first start was interrupted.
fn is_unused(directory: &Directory) -> Result<bool, OpenError> {
    let unused = |fingerprint: &Fingerprint| fingerprint.keys == 0 && fingerprint.revision == FIRST_REVISION;
    let witness_is_unused = match Witness::open(&directory.witness()) {
        Ok((_, fingerprint)) => unused(&fingerprint),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !witness_is_unused || !directory.engine().exists() {
        return Ok(witness_is_unused);
    }
    match dry_run_recovery(directory, Metadata::Fingerprint) {
        Err(OpenError::Damaged { .. }) => Ok(false),
        other => Ok(unused(&other?)),
    }
}

/// Creates a store. The file FORMAT is written last.
fn create(directory: &mut Directory) -> Result<(), OpenError> {
    for remnant in [directory.new_engine(), directory.engine()] {
        remove(&remnant).map_err(|source| OpenError::Io { action: "remove", path: remnant, source })?;
    }
    let fingerprint = Fingerprint::of_new_store(FIRST_REVISION, Revision::ZERO);
    // The engine cannot open files whose creation was interrupted, so they are created under another name.
    let engine =
        Engine::open(&directory.new_engine(), Background::Enabled).map_err(|error| open_error(directory, error))?;
    write_fingerprint(directory, &engine, &fingerprint)?;
    drop(engine);
    directory.rename(&directory.new_engine(), &directory.engine())?;
    write_witness(directory, &fingerprint)?;
    directory.set_format()
}

/// Upgrades a store of format 1: adds the fingerprint and the witness.
fn upgrade(directory: &mut Directory) -> Result<(), OpenError> {
    let Opened { engine, fingerprint, .. } = open_engine(directory, Metadata::RevisionsOnly)?;
    write_fingerprint(directory, &engine, &fingerprint)?;
    drop(engine);
    write_witness(directory, &fingerprint)?;
    directory.set_format()?;
    tracing::info!(store = %directory.path().display(), "upgraded the store, with {fingerprint}, from format 1 to format 2");
    Ok(())
}

/// Writes the first fingerprint of an engine.
fn write_fingerprint(directory: &Directory, engine: &Engine, fingerprint: &Fingerprint) -> Result<(), OpenError> {
    let mut batch = engine.batch(Durability::Synced);
    batch.set_fingerprint(fingerprint);
    let failed = |error| OpenError::Engine { directory: directory.path().into(), reason: explain(&error) };
    batch.commit().map_err(failed)
}

pub(crate) fn open_engine(directory: &Directory, metadata: Metadata) -> Result<Opened, OpenError> {
    let engine = Engine::open(&directory.engine(), Background::Enabled);
    engine.and_then(|engine| engine.load(metadata)).map_err(|error| open_error(directory, error))
}

/// The error of a store whose engine failed.
fn open_error(directory: &Directory, error: EngineError) -> OpenError {
    match error {
        EngineError::Io(reason) => OpenError::Engine { directory: directory.path().into(), reason },
        EngineError::Corrupt(reason) => directory.damaged(reason),
    }
}
