//! Flipped bits at every class of offset, and each file missing or truncated.

use crate::fixture::{Outcome, StoreFixture};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How much is tried.
fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os("RESTOW_TEST_LONG").is_some() { long } else { short }
}

/// Repeatable randomness; the seed is printed.
fn random() -> StdRng {
    let seed = std::env::var("RESTOW_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("RESTOW_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// A place in a file, by the parts that files have: what comes first, what comes last, and all between.
fn place(random: &mut StdRng, length: usize) -> usize {
    let edge = length.min(64);
    match random.random_range(0..4) {
        0 => random.random_range(0..edge),
        1 => length - 1 - random.random_range(0..edge),
        _ => random.random_range(0..length),
    }
}

/// Counts outcomes by file, to show what was tried.
#[derive(Default)]
struct Tally(BTreeMap<String, (usize, usize)>);

impl Tally {
    fn count(&mut self, kind: String, outcome: &Outcome) {
        let counts = self.0.entry(kind).or_default();
        match outcome {
            Outcome::Whole => counts.0 += 1,
            Outcome::Refused(_) => counts.1 += 1,
        }
    }

    fn print(&self, fixture: &StoreFixture) {
        for (kind, (whole, refused)) in &self.0 {
            println!("{} {kind}: {whole} opened whole, {refused} refused", fixture.name);
        }
    }

    fn refused(&self) -> usize {
        self.0.values().map(|(_, refused)| refused).sum()
    }
}

/// The name of a file without its number.
fn kind(path: &Path) -> String {
    path.to_str().unwrap().trim_start_matches("engine/").replace(|letter: char| letter.is_ascii_digit(), "N")
}

async fn flip_bits(fixture: StoreFixture, count: usize) {
    let mut random = random();
    let mut tally = Tally::default();
    let files: Vec<PathBuf> = fixture.files();
    let journals: Vec<PathBuf> =
        files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).cloned().collect();
    for _ in 0..count {
        // The journal is what a crash leaves, and what the engine checks least.
        let among = if random.random_bool(0.5) { &journals } else { &files };
        let file = &among[random.random_range(0..among.len())];
        let mut bytes = std::fs::read(fixture.directory().join(file)).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let place = place(&mut random, bytes.len());
        let bit = random.random_range(0..8);
        bytes[place] ^= 1 << bit;
        let what = format!("bit {bit} of byte {place} in {}", file.display());
        let outcome = fixture.damaged(&what, |directory| std::fs::write(directory.join(file), &bytes).unwrap()).await;
        tally.count(kind(file), &outcome);
    }
    tally.print(&fixture);
    assert!(tally.refused() > 0, "no flip did any harm, so none was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_the_journal_loses_nothing_silently() {
    flip_bits(StoreFixture::journal().await, rounds(120, 3000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_tables_and_manifests_loses_nothing_silently() {
    flip_bits(StoreFixture::tables().await, rounds(120, 3000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_after_an_orderly_end_loses_nothing_silently() {
    flip_bits(StoreFixture::closed().await, rounds(120, 1500)).await;
}

/// Every byte of the first batches: each field of their frames.
#[tokio::test(flavor = "multi_thread")]
async fn no_byte_of_a_frame_can_be_changed_silently() {
    let fixture = StoreFixture::journal().await;
    let journal = Path::new("engine/0.jnl");
    let bytes = std::fs::read(fixture.directory().join(journal)).unwrap();
    let mut tally = Tally::default();
    for place in (0..600).step_by(rounds(5, 1)) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x01;
        let what = format!("byte {place} of the journal");
        let outcome =
            fixture.damaged(&what, |directory| std::fs::write(directory.join(journal), &damaged).unwrap()).await;
        tally.count(kind(journal), &outcome);
    }
    tally.print(&fixture);
}

/// The engine reads some parts of a table only now and then, such as its filters.
#[tokio::test(flavor = "multi_thread")]
async fn every_part_of_a_table_is_compared_with_its_checksum() {
    let fixture = StoreFixture::closed().await;
    for file in
        fixture.files().into_iter().filter(|file| file.parent().is_some_and(|folder| folder.ends_with("tables")))
    {
        let bytes = std::fs::read(fixture.directory().join(&file)).unwrap();
        for place in (0..bytes.len()).step_by(1 + bytes.len() / 16) {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x04;
            let what = format!("byte {place} of {}", file.display());
            let outcome =
                fixture.damaged(&what, |directory| std::fs::write(directory.join(&file), &damaged).unwrap()).await;
            assert!(matches!(&outcome, Outcome::Refused(said) if said.contains("checksum differs")), "{outcome:?}");
        }
    }
}

/// The engine would allocate that much memory before it finds that the journal is shorter.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_item_with_a_length_of_gigabytes_is_refused() {
    let fixture = StoreFixture::journal().await;
    let journal = Path::new("engine/0.jnl");
    let mut bytes = std::fs::read(fixture.directory().join(journal)).unwrap();
    // A batch begins with 13 bytes; the length of the first value is the last of the 21 before its key.
    bytes[13 + 20] |= 0x80;
    let damage = |directory: &Path| std::fs::write(directory.join(journal), &bytes).unwrap();
    let outcome = fixture.damaged("a length of gigabytes", damage).await;
    assert!(matches!(&outcome, Outcome::Refused(said) if said.contains("an item with a length of 2")), "{outcome:?}");
}

async fn lose_files(fixture: StoreFixture) {
    let mut tally = Tally::default();
    for file in fixture.files() {
        let what = format!("{} is missing", file.display());
        let outcome = fixture.damaged(&what, |directory| std::fs::remove_file(directory.join(&file)).unwrap()).await;
        tally.count(kind(&file), &outcome);
        let length = std::fs::metadata(fixture.directory().join(&file)).unwrap().len();
        for kept in [0, length / 2, length.saturating_sub(1)] {
            let what = format!("{} has {kept} of {length} bytes", file.display());
            let cut = |directory: &Path| {
                let file = std::fs::OpenOptions::new().write(true).open(directory.join(&file)).unwrap();
                file.set_len(kept).unwrap();
            };
            let outcome = fixture.damaged(&what, cut).await;
            tally.count(kind(&file), &outcome);
        }
    }
    tally.print(&fixture);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_file_may_be_missing_or_cut_in_a_store_that_crashed() {
    lose_files(StoreFixture::journal().await).await;
    lose_files(StoreFixture::tables().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_file_may_be_missing_or_cut_in_a_store_that_was_closed() {
    lose_files(StoreFixture::closed().await).await;
}

/// Regression: each of these once started as an empty cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_its_engine_is_no_empty_store() {
    for fixture in [StoreFixture::journal().await, StoreFixture::tables().await, StoreFixture::closed().await] {
        let lost = ["engine", "engine/keyspaces", "engine/keyspaces/0", "engine/keyspaces/1", "engine/keyspaces/3"];
        for lost in lost {
            let what = format!("{lost} is missing");
            let outcome = fixture.damaged(&what, |store| std::fs::remove_dir_all(store.join(lost)).unwrap()).await;
            assert!(matches!(&outcome, Outcome::Refused(said) if said.contains("damaged")), "{what}: {outcome:?}");
        }
        for lost in ["FORMAT", "WITNESS", "engine/keyspaces/3/current"] {
            let what = format!("{lost} is missing");
            let outcome = fixture.damaged(&what, |store| std::fs::remove_file(store.join(lost)).unwrap()).await;
            let named = lost.starts_with("engine") || format!("{outcome:?}").contains(lost);
            assert!(matches!(&outcome, Outcome::Refused(said) if said.contains("damaged")) && named, "{outcome:?}");
        }
        let without_all = |store: &Path| {
            std::fs::remove_dir_all(store.join("engine")).unwrap();
            std::fs::remove_file(store.join("FORMAT")).unwrap();
        };
        let outcome = fixture.damaged("only the witness is left", without_all).await;
        assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        let unwitnessed = |store: &Path| {
            std::fs::remove_dir_all(store.join("engine")).unwrap();
            std::fs::remove_file(store.join("WITNESS")).unwrap();
        };
        let outcome = fixture.damaged("only the format is left", unwitnessed).await;
        assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    }
}
