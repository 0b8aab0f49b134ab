//! Repairs with data loss (`--accept-data-loss`).

use crate::fixture::{StoreFixture, contents, copy, entries, key, open};
use restow_store::{Revision, Store, StoreError, StoreExt};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore, OnDamage, OpenError};
use std::path::{Path, PathBuf};

fn accept(directory: &Path) -> EmbeddedStore {
    EmbeddedStore::open(EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(directory) }).unwrap()
}

/// Damages a copy, accepts the loss, and checks what then must be true. Returns how many keys are left.
async fn repair(fixture: &StoreFixture, damage: impl FnOnce(&Path)) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let directory: PathBuf = folder.path().join("store");
    copy(&fixture.directory(), &directory);
    let acknowledged = {
        let store = open(&directory).unwrap();
        store.status().await.unwrap().revision
    };
    std::fs::remove_dir_all(&directory).unwrap();
    copy(&fixture.directory(), &directory);
    damage(&directory);
    let before = contents(&directory.join("engine"));
    assert!(open(&directory).is_err(), "the store is not damaged");
    let store = accept(&directory);
    let left = entries(&store).await.unwrap();
    let all = fixture.entries();
    for entry in &left {
        let known = &all[&entry.key];
        assert!(known == entry || entry.mod_revision < known.mod_revision, "{} was never so", entry.key);
    }
    let revision = store.status().await.unwrap().revision;
    assert!(revision > acknowledged, "revision {revision} may be that of something that was lost");
    let past = store.range(restow_store::RangeRequest::key(&key(1)).at(Revision::new(revision.get() - 1))).await;
    assert!(matches!(past, Err(StoreError::Compacted { .. })), "{past:?}");
    store.put(&key(999), "goes on".into()).await.unwrap();
    drop(store);
    // The damaged files are still there, as they were.
    assert_eq!(contents(&directory.join("engine.damaged-1")), before);
    let store = open(&directory).unwrap();
    assert_eq!(entries(&store).await.unwrap().len(), left.len() + 1);
    left.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_before_the_damage_in_the_journal_are_kept() {
    let fixture = StoreFixture::journal().await;
    let whole = fixture.entries().len();
    for place in [0.1, 0.5, 0.9] {
        let kept = repair(&fixture, |store| {
            let path = store.join("engine/0.jnl");
            let mut bytes = std::fs::read(&path).unwrap();
            let place = (bytes.len() as f64 * place) as usize;
            bytes[place] ^= 0xff;
            std::fs::write(path, bytes).unwrap();
        });
        let kept = kept.await;
        println!("{place}: {kept} of {whole} keys are left");
        assert!(kept < whole && kept > 0, "{kept} of {whole}");
    }
}

/// One flipped byte somewhere in each table and each manifest: what can still be read is kept, or nothing is promised.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_table_loses_only_its_own_content_or_the_store_cannot_be_repaired() {
    let fixture = StoreFixture::closed().await;
    let whole = fixture.entries().len();
    let (mut kept, mut lost) = (0, 0);
    for file in fixture.files().into_iter().filter(|file| file.starts_with("engine/keyspaces")) {
        let length = std::fs::metadata(fixture.directory().join(&file)).unwrap().len() as usize;
        for place in [0, length / 4, length / 2, length - 20] {
            let folder = tempfile::tempdir().unwrap();
            let directory = folder.path().join("store");
            copy(&fixture.directory(), &directory);
            let mut bytes = std::fs::read(directory.join(&file)).unwrap();
            bytes[place] ^= 0x10;
            std::fs::write(directory.join(&file), bytes).unwrap();
            let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
            match EmbeddedStore::open(config) {
                Ok(store) => {
                    let left = entries(&store).await.unwrap();
                    assert!(left.len() <= whole && left.iter().all(|entry| fixture.entries()[&entry.key] == *entry));
                    drop(store);
                    assert_eq!(entries(&open(&directory).unwrap()).await.unwrap(), left);
                    kept += 1;
                }
                Err(error) => {
                    let said = error.to_string();
                    assert!(matches!(error, OpenError::Unrecoverable { .. }) && !said.contains("--accept"), "{said}");
                    lost += 1;
                }
            }
            let rest = ["engine.new", "engine.check"].map(|name| directory.join(name).exists());
            assert_eq!(rest, [false, false], "byte {place} of {}", file.display());
        }
    }
    println!("{kept} were repaired, {lost} could not be");
    assert!(kept > 0 && lost > 0, "{kept} {lost}");
}

/// The engine would allocate memory for a billion sections before it checks the checksum of the table of contents.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_a_billion_sections_does_not_exhaust_the_memory() {
    let fixture = StoreFixture::closed().await;
    let is_table = |file: &PathBuf| file.parent().is_some_and(|folder| folder.ends_with("tables"));
    let table = fixture.files().into_iter().find(is_table).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    copy(&fixture.directory(), &directory);
    let mut bytes = std::fs::read(directory.join(&table)).unwrap();
    let trailer = bytes.len() - 16;
    let list = u64::from_le_bytes(bytes[trailer..trailer + 8].try_into().unwrap()) as usize;
    bytes[list + 7] |= 0x40;
    std::fs::write(directory.join(&table), bytes).unwrap();
    let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
    let error = EmbeddedStore::open(config).err().unwrap();
    assert!(
        matches!(&error, OpenError::Unrecoverable { reason, .. } if reason.contains("cannot be read at all")),
        "{error}"
    );
}

/// As if the process had been killed between the steps of a repair.
#[tokio::test(flavor = "multi_thread")]
async fn a_repair_may_be_interrupted_anywhere() {
    let fixture = StoreFixture::tables().await;
    let whole = fixture.entries().len();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    copy(&fixture.directory(), &directory);
    std::fs::remove_file(directory.join("FORMAT")).unwrap();
    let witness = std::fs::read(directory.join("WITNESS")).unwrap();
    assert_eq!(entries(&accept(&directory)).await.unwrap().len(), whole);
    // The engines were exchanged; witness and format are still the old ones.
    std::fs::write(directory.join("WITNESS"), witness).unwrap();
    std::fs::remove_file(directory.join("FORMAT")).unwrap();
    std::fs::create_dir_all(directory.join("engine.new")).unwrap();
    assert!(matches!(open(&directory), Err(OpenError::Damaged { .. })));
    assert_eq!(entries(&accept(&directory)).await.unwrap().len(), whole);
    assert_eq!(entries(&open(&directory).unwrap()).await.unwrap().len(), whole);
    // If the file system cannot exchange directories atomically, a crash may leave no engine.
    std::fs::remove_dir_all(directory.join("engine")).unwrap();
    let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
    let error = EmbeddedStore::open(config).err().unwrap().to_string();
    assert!(error.contains("engine.damaged-1") && error.contains("engine.damaged-2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_witness_or_format_loses_no_data() {
    for fixture in [StoreFixture::journal().await, StoreFixture::tables().await] {
        for lost in ["WITNESS", "FORMAT"] {
            let kept = repair(&fixture, |store| std::fs::remove_file(store.join(lost)).unwrap()).await;
            assert_eq!(kept, fixture.entries().len(), "{}: {lost}", fixture.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intact_store_is_not_repaired_and_a_missing_one_is_not_created() {
    let fixture = StoreFixture::tables().await;
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    copy(&fixture.directory(), &directory);
    let store = accept(&directory);
    fixture.assert_whole(&store, "nothing is damaged").await;
    drop(store);
    assert!(!directory.join("engine.damaged-1").exists());
    std::fs::remove_dir_all(directory.join("engine")).unwrap();
    let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
    let error = EmbeddedStore::open(config).err().unwrap().to_string();
    assert!(error.contains("none of its data is left"), "{error}");
}
