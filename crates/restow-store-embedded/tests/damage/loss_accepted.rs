//! Going on with what is left, when that was asked for.

use crate::world::{World, contents, copy, entries, key, open};
use restow_store::{Revision, Store, StoreError, StoreExt};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore, OnDamage, OpenError};
use std::path::{Path, PathBuf};

fn accept(directory: &Path) -> EmbeddedStore {
    EmbeddedStore::open(EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(directory) }).unwrap()
}

/// Damages a copy, accepts the loss, and checks what then must be true. Returns how many keys are left.
async fn salvage(world: &World, damage: impl FnOnce(&Path)) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let directory: PathBuf = folder.path().join("store");
    copy(&world.directory(), &directory);
    let acknowledged = {
        let store = open(&directory).unwrap();
        store.status().await.unwrap().revision
    };
    std::fs::remove_dir_all(&directory).unwrap();
    copy(&world.directory(), &directory);
    damage(&directory);
    let before = contents(&directory.join("engine"));
    assert!(open(&directory).is_err(), "it is not damaged");
    let store = accept(&directory);
    let left = entries(&store).await.unwrap();
    let all = world.entries();
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
async fn what_comes_before_the_damage_in_the_journal_is_kept() {
    let world = World::journal().await;
    let whole = world.entries().len();
    for place in [0.1, 0.5, 0.9] {
        let kept = salvage(&world, |store| {
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
async fn a_damaged_table_costs_no_more_than_what_was_in_it_or_is_said_to_be_lost() {
    let world = World::closed().await;
    let whole = world.entries().len();
    let (mut kept, mut lost) = (0, 0);
    for file in world.files().into_iter().filter(|file| file.starts_with("engine/keyspaces")) {
        let length = std::fs::metadata(world.directory().join(&file)).unwrap().len() as usize;
        for place in [0, length / 4, length / 2, length - 20] {
            let folder = tempfile::tempdir().unwrap();
            let directory = folder.path().join("store");
            copy(&world.directory(), &directory);
            let mut bytes = std::fs::read(directory.join(&file)).unwrap();
            bytes[place] ^= 0x10;
            std::fs::write(directory.join(&file), bytes).unwrap();
            let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
            match EmbeddedStore::open(config) {
                Ok(store) => {
                    let left = entries(&store).await.unwrap();
                    assert!(left.len() <= whole && left.iter().all(|entry| world.entries()[&entry.key] == *entry));
                    drop(store);
                    assert_eq!(entries(&open(&directory).unwrap()).await.unwrap(), left);
                    kept += 1;
                }
                Err(error) => {
                    let said = error.to_string();
                    assert!(matches!(error, OpenError::Lost { .. }) && !said.contains("--accept"), "{said}");
                    lost += 1;
                }
            }
            let rest = ["engine.new", "engine.check"].map(|name| directory.join(name).exists());
            assert_eq!(rest, [false, false], "byte {place} of {}", file.display());
        }
    }
    println!("{kept} were opened with what was left, {lost} were lost");
    assert!(kept > 0 && lost > 0, "{kept} {lost}");
}

/// The engine would ask for room for a billion parts of the table before it compares the checksum of their list.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_announces_a_billion_parts_is_lost_and_ends_nothing_else() {
    let world = World::closed().await;
    let is_table = |file: &PathBuf| file.parent().is_some_and(|folder| folder.ends_with("tables"));
    let table = world.files().into_iter().find(is_table).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    copy(&world.directory(), &directory);
    let mut bytes = std::fs::read(directory.join(&table)).unwrap();
    let trailer = bytes.len() - 16;
    let list = u64::from_le_bytes(bytes[trailer..trailer + 8].try_into().unwrap()) as usize;
    bytes[list + 7] |= 0x40;
    std::fs::write(directory.join(&table), bytes).unwrap();
    let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
    let error = EmbeddedStore::open(config).err().unwrap();
    assert!(matches!(&error, OpenError::Lost { reason, .. } if reason.contains("cannot be read at all")), "{error}");
}

/// As if the process had been killed between the steps.
#[tokio::test(flavor = "multi_thread")]
async fn accepting_a_loss_may_be_interrupted_anywhere() {
    let world = World::tables().await;
    let whole = world.entries().len();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    copy(&world.directory(), &directory);
    std::fs::remove_file(directory.join("FORMAT")).unwrap();
    let witness = std::fs::read(directory.join("WITNESS")).unwrap();
    assert_eq!(entries(&accept(&directory)).await.unwrap().len(), whole);
    // The files have changed places; witness and format are still those of before.
    std::fs::write(directory.join("WITNESS"), witness).unwrap();
    std::fs::remove_file(directory.join("FORMAT")).unwrap();
    std::fs::create_dir_all(directory.join("engine.new")).unwrap();
    assert!(matches!(open(&directory), Err(OpenError::Damaged { .. })));
    assert_eq!(entries(&accept(&directory)).await.unwrap().len(), whole);
    assert_eq!(entries(&open(&directory).unwrap()).await.unwrap().len(), whole);
    // Where folders cannot change places at once, a crash leaves none.
    std::fs::remove_dir_all(directory.join("engine")).unwrap();
    let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
    let error = EmbeddedStore::open(config).err().unwrap().to_string();
    assert!(error.contains("engine.damaged-1") && error.contains("engine.damaged-2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_witness_or_format_costs_nothing_else() {
    for world in [World::journal().await, World::tables().await] {
        for lost in ["WITNESS", "FORMAT"] {
            let kept = salvage(&world, |store| std::fs::remove_file(store.join(lost)).unwrap()).await;
            assert_eq!(kept, world.entries().len(), "{}: {lost}", world.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_whole_is_not_touched_and_one_that_is_gone_is_not_made_up() {
    let world = World::tables().await;
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    copy(&world.directory(), &directory);
    let store = accept(&directory);
    world.assert_whole(&store, "nothing is damaged").await;
    drop(store);
    assert!(!directory.join("engine.damaged-1").exists());
    std::fs::remove_dir_all(directory.join("engine")).unwrap();
    let config = EmbeddedConfig { on_damage: OnDamage::AcceptLoss, ..EmbeddedConfig::new(&directory) };
    let error = EmbeddedStore::open(config).err().unwrap().to_string();
    assert!(error.contains("nothing is left"), "{error}");
}
