//! An engine and a witness of different times.

use crate::fixture::{Outcome, StoreFixture, contents, copy, entries, fresh, key, open, write};
use restow_store::StoreExt;
use std::path::Path;

/// Replaces a part of the store by that of an earlier copy.
fn replace(part: &str, earlier: &Path, store: &Path) {
    let target = store.join(part);
    match earlier.join(part).is_dir() {
        true => {
            std::fs::remove_dir_all(&target).unwrap();
            copy_all(&earlier.join(part), &target);
        }
        false => drop(std::fs::copy(earlier.join(part), target).unwrap()),
    }
}

fn copy_all(from: &Path, to: &Path) {
    for (path, bytes) in contents(from) {
        std::fs::create_dir_all(to.join(&path).parent().unwrap()).unwrap();
        std::fs::write(to.join(&path), bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_behind_its_witness_is_refused_and_one_ahead_of_it_is_not() {
    let (parent, store) = fresh();
    write(&store, 0..20).await;
    let earlier = parent.path().join("earlier");
    copy(&parent.path().join("store"), &earlier);
    write(&store, 20..21).await;
    let expected = entries(&store).await.unwrap();
    let later = parent.path().join("later");
    copy(&parent.path().join("store"), &later);
    drop(store);

    // As after a crash between the engine's sync and the witness, or a loss of power that took the witness's last second.
    let ahead = parent.path().join("ahead");
    copy(&later, &ahead);
    replace("WITNESS", &earlier, &ahead);
    let store = open(&ahead).unwrap();
    assert_eq!(entries(&store).await.unwrap(), expected);
    store.put(&key(99), "goes on".into()).await.unwrap();
    drop(store);
    drop(open(&ahead).unwrap());

    let behind = parent.path().join("behind");
    copy(&later, &behind);
    replace("engine", &earlier, &behind);
    let error = open(&behind).err().unwrap().to_string();
    assert!(error.contains("21 keys at revision 22") && error.contains("20 keys at revision 21"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_batch_that_was_not_acknowledged_is_dropped() {
    let (parent, store) = fresh();
    write(&store, 0..20).await;
    let before = entries(&store).await.unwrap();
    let earlier = parent.path().join("earlier");
    copy(&parent.path().join("store"), &earlier);
    write(&store, 20..21).await;
    let later = parent.path().join("later");
    copy(&parent.path().join("store"), &later);
    drop(store);
    let journal = |store: &Path| std::fs::read(store.join("engine/0.jnl")).unwrap();
    let used = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let (old, new) = (journal(&earlier), journal(&later));
    let (old, end) = (used(&old), used(&new));
    for kept in (old..end).step_by(7) {
        let torn = parent.path().join("torn");
        copy(&later, &torn);
        replace("WITNESS", &earlier, &torn);
        std::fs::write(torn.join("engine/0.jnl"), &new[..kept]).unwrap();
        let store = open(&torn).unwrap_or_else(|error| panic!("{kept} of {end} bytes: {error}"));
        assert_eq!(entries(&store).await.unwrap(), before, "{kept} of {end} bytes");
        store.put(&key(20), "written anew".into()).await.unwrap();
        drop(store);
        std::fs::remove_dir_all(&torn).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_of_another_store_is_refused() {
    let fixture = StoreFixture::journal().await;
    let other = StoreFixture::journal().await;
    let outcome = fixture.damaged("another engine", |store| replace("engine", &other.directory(), store)).await;
    assert!(matches!(&outcome, Outcome::Refused(said) if said.contains("belong to another store")), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_damaged_slot_of_the_witness_is_survived() {
    let fixture = StoreFixture::journal().await;
    for slot in [0, 4096] {
        let what = format!("the slot at {slot}");
        let outcome = fixture.damaged(&what, |store| flip(&store.join("WITNESS"), slot + 30)).await;
        assert_eq!(outcome, Outcome::Whole);
    }
    let both = |store: &Path| [30, 4126].into_iter().for_each(|place| flip(&store.join("WITNESS"), place));
    let outcome = fixture.damaged("both slots", both).await;
    assert!(matches!(&outcome, Outcome::Refused(said) if said.contains("WITNESS")), "{outcome:?}");
}

fn flip(path: &Path, place: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[place] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}
