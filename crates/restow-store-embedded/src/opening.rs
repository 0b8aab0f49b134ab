//! Opening a store: first it is found out whether all that was acknowledged is there, then it is touched.

use crate::account::Account;
use crate::checksums::{check_manifests, check_tables};
use crate::config::{EmbeddedConfig, OnDamage};
use crate::directory::{Directory, Format, OpenError};
use crate::engine::{
    Background, Durability, Engine, FIRST_REVISION, Failure, Opened, Recorded, explain, without_panic,
};
use crate::inspection::inspect;
use crate::journal::check_lengths;
use crate::rehearsal::{Rehearsal, remove};
use crate::salvage::salvage;
use crate::witness::Witness;
use restow_store::Revision;
use std::io;

/// A store whose files are open.
pub(crate) struct OpenFiles {
    pub(crate) directory: Directory,
    pub(crate) witness: Witness,
    pub(crate) opened: Opened,
}

/// Opens the store, or makes a new one where there is none.
pub(crate) fn open(config: &EmbeddedConfig) -> Result<OpenFiles, OpenError> {
    let mut directory = Directory::claim(&config.directory)?;
    if directory.format() == Format::None && is_unused(&directory)? {
        begin(&mut directory)?;
    } else {
        match check(&directory) {
            Err(OpenError::Damaged { reason, .. }) if config.on_damage == OnDamage::AcceptLoss => {
                salvage(&mut directory, &reason)?;
            }
            other => other?,
        }
    }
    if directory.format() == Format::One {
        upgrade(&mut directory)?;
    }
    let (witness, acknowledged) = open_witness(&directory)?;
    let opened = open_engine(&directory, Recorded::Account)?;
    match acknowledged.missing_in(&opened.account) {
        Some(reason) => Err(directory.damaged(reason)),
        None => Ok(OpenFiles { directory, witness, opened }),
    }
}

/// Finds out, without changing anything, whether all that was acknowledged is there.
pub(crate) fn check(directory: &Directory) -> Result<(), OpenError> {
    let acknowledged = match directory.format() {
        Format::None => return Err(directory.damaged("its file FORMAT is missing")),
        Format::One => None,
        Format::Current => Some(open_witness(directory)?.1),
    };
    let recorded = if acknowledged.is_some() { Recorded::Account } else { Recorded::Numbers };
    let opened = rehearse(directory, recorded)?;
    let missing = acknowledged.and_then(|acknowledged| acknowledged.missing_in(&opened));
    missing.map_or(Ok(()), |reason| Err(directory.damaged(reason)))
}

/// Compares the engine's files with their checksums, has it recover a copy of them, and inspects what comes of it.
fn rehearse(directory: &Directory, recorded: Recorded) -> Result<Account, OpenError> {
    if !directory.engine().is_dir() {
        return Err(directory.damaged("its folder engine, which has all that was stored, is missing"));
    }
    let action = "copy the journal, on whose copy it is found out whether anything is missing, to";
    let copy = Rehearsal::of(&directory.engine(), &directory.rehearsal());
    let copy = copy.map_err(|source| OpenError::Io { action, path: directory.rehearsal(), source })?;
    let (path, engine) = (copy.path().to_path_buf(), directory.engine());
    let attempt = || -> Result<Account, Failure> {
        check_tables(&check_manifests(&engine)?)?;
        check_lengths(&engine)?;
        let opened = Engine::open(&path, Background::Rests)?.load(recorded)?;
        inspect(&opened)?;
        Ok(opened.account)
    };
    without_panic(attempt).map_err(|failure| named(directory, failure))
}

/// Whether a directory without a format has never held anything: its first start was interrupted.
fn is_unused(directory: &Directory) -> Result<bool, OpenError> {
    let unused = |account: &Account| account.keys == 0 && account.revision == FIRST_REVISION;
    let says = match Witness::open(&directory.witness()) {
        Ok((_, account)) => unused(&account),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !says || !directory.engine().exists() {
        return Ok(says);
    }
    match rehearse(directory, Recorded::Account) {
        Err(OpenError::Damaged { .. }) => Ok(false),
        other => Ok(unused(&other?)),
    }
}

/// Makes a store. Its format comes last.
fn begin(directory: &mut Directory) -> Result<(), OpenError> {
    for remnant in [directory.draft(), directory.engine()] {
        remove(&remnant).map_err(|source| OpenError::Io { action: "remove", path: remnant, source })?;
    }
    let account = Account::of_new_store(FIRST_REVISION, Revision::ZERO);
    // The engine cannot open what it was killed in the middle of making, so it makes it under another name.
    let engine = Engine::open(&directory.draft(), Background::Works).map_err(|failure| named(directory, failure))?;
    record(directory, &engine, &account)?;
    drop(engine);
    directory.rename(&directory.draft(), &directory.engine())?;
    testify(directory, &account)?;
    directory.set_format()
}

/// Gives a store of format 1 an account and a witness.
fn upgrade(directory: &mut Directory) -> Result<(), OpenError> {
    let Opened { engine, account, .. } = open_engine(directory, Recorded::Numbers)?;
    record(directory, &engine, &account)?;
    drop(engine);
    testify(directory, &account)?;
    directory.set_format()?;
    tracing::info!(store = %directory.path().display(), "the store of format 1, with {account}, is now of format 2");
    Ok(())
}

/// Writes an account into an engine that has none.
pub(crate) fn record(directory: &Directory, engine: &Engine, account: &Account) -> Result<(), OpenError> {
    let mut batch = engine.batch(Durability::Synced);
    batch.set_account(account);
    let failed = |error| OpenError::Engine { directory: directory.path().into(), reason: explain(&error) };
    batch.commit().map_err(failed)
}

/// Makes a witness that says this.
pub(crate) fn testify(directory: &Directory, account: &Account) -> Result<(), OpenError> {
    let path = directory.witness();
    let made = Witness::create(&path.with_extension("new"), &path, account);
    made.map_err(|source| OpenError::Io { action: "write", path, source })
}

pub(crate) fn open_witness(directory: &Directory) -> Result<(Witness, Account), OpenError> {
    Witness::open(&directory.witness()).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => directory.damaged("its file WITNESS, which says what was acknowledged, is missing"),
        io::ErrorKind::InvalidData => {
            directory.damaged("its file WITNESS, which says what was acknowledged, is unreadable")
        }
        _ => OpenError::Io { action: "open", path: directory.witness(), source },
    })
}

pub(crate) fn open_engine(directory: &Directory, recorded: Recorded) -> Result<Opened, OpenError> {
    let engine = Engine::open(&directory.engine(), Background::Works);
    engine.and_then(|engine| engine.load(recorded)).map_err(|failure| named(directory, failure))
}

/// The failure of an engine as one of its store.
pub(crate) fn named(directory: &Directory, failure: Failure) -> OpenError {
    match failure {
        Failure::Disk(reason) => OpenError::Engine { directory: directory.path().into(), reason },
        Failure::Damage(reason) => directory.damaged(reason),
    }
}
