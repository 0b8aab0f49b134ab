//! Random operations: the store must respond to each as the model does.

use super::*;
use crate::conformance::seed::Seed;
use crate::conformance::{Model, WatchReader};
use crate::{
    At, Compare, CompareTarget, Content, Event, Key, RangeRequest, Relation, Revision, StoreError, WatchRequest,
};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::num::NonZeroUsize;

const STEPS: usize = 500;
const NAMES: [&str; 9] = ["/a", "/a/1", "/a/2", "/a/2/x", "/a/3", "/a0", "/b/1", "/b/2", "\u{ff}"];

/// One operation.
#[derive(Debug)]
enum Step {
    Txn(Txn),
    Range(RangeRequest),
    Watch(WatchRequest),
    Compact(Revision),
}

pub(super) async fn responses_equal_those_of_the_model(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision();
    let seed = Seed::take();
    let mut random = seed.generator(0);
    for number in 0..STEPS {
        match draw(&mut random, &mirror.model, start, number) {
            Step::Txn(txn) => drop(mirror.txn(txn).await),
            Step::Range(request) => drop(mirror.range(request).await),
            Step::Compact(revision) => drop(mirror.compact(revision).await),
            Step::Watch(request) => watch(&mirror, request).await,
        }
    }
}

/// Watches, and compares the events with those of the model.
async fn watch(mirror: &Mirror, request: WatchRequest) {
    let from = request.from.expect("random watches have a start");
    let expected = mirror.model.events(&request.range, from, request.previous);
    let last = expected.as_ref().map_or(mirror.revision(), |events| last_revision(events));
    let answer = match WatchReader::start(&*mirror.store, request.clone()).await {
        Ok(mut reader) => reader.until(last).await.map(|()| reader.events().to_vec()),
        Err(error) => Err(error),
    };
    let compact_revision = mirror.model.compact_revision();
    match (answer, expected) {
        // At the compact revision a back end may fail; and it may still have the entry before it.
        (Err(error), _) if from == compact_revision => {
            assert_eq!(error, StoreError::Compacted { oldest: compact_revision })
        }
        (Ok(actual), Ok(expected)) if from == compact_revision => {
            let plain = |events: Vec<Event>| -> Vec<Event> {
                events.into_iter().map(|event| Event { previous: None, ..event }).collect()
            };
            assert_eq!(plain(actual), plain(expected), "{request:?}");
        }
        (actual, expected) => assert_eq!(actual, expected, "{request:?}"),
    }
}

fn last_revision(events: &[Event]) -> Revision {
    events.last().map_or(Revision::ZERO, |event| event.revision)
}

/// Draws an operation that suits what is stored.
fn draw(random: &mut StdRng, model: &Model, start: Revision, number: usize) -> Step {
    match random.random_range(0..100) {
        0..55 => Step::Txn(draw_txn(random, model, number)),
        55..90 => Step::Range(draw_range(random, model, start)),
        90..97 => {
            let request = WatchRequest::from(draw_keys(random), draw_revision(random, model, start));
            Step::Watch(if random.random_bool(0.5) { request.with_previous() } else { request })
        }
        _ => Step::Compact(Revision::new(draw_revision(random, model, start).get().max(start.next().get()))),
    }
}

fn draw_key(random: &mut StdRng) -> Key {
    key(NAMES.choose(random).unwrap())
}

fn draw_keys(random: &mut StdRng) -> KeyRange {
    match random.random_range(0..5) {
        0 => KeyRange::all(),
        1 => KeyRange::exactly(&draw_key(random)),
        2 => KeyRange::prefix("/a/"),
        3 => KeyRange::prefix("/a").after(&draw_key(random)),
        _ => KeyRange::prefix(draw_key(random).as_bytes().clone()),
    }
}

/// A revision of the history, or a little beyond; more often a late one.
fn draw_revision(random: &mut StdRng, model: &Model, start: Revision) -> Revision {
    let latest = model.revision().get();
    if random.random_bool(0.06) {
        return Revision::new(latest + random.random_range(1..3));
    }
    let back = random.random_range(0..=latest - start.get());
    let back = if random.random_bool(0.6) { back.min(12) } else { back };
    Revision::new(latest - back)
}

fn draw_range(random: &mut StdRng, model: &Model, start: Revision) -> RangeRequest {
    let at = match random.random_bool(0.5) {
        true => At::Latest,
        false => At::Revision(draw_revision(random, model, start)),
    };
    let content = *[Content::Full, Content::Full, Content::KeysOnly, Content::CountOnly].choose(random).unwrap();
    let limit = NonZeroUsize::new(random.random_range(0..5));
    RangeRequest { range: draw_keys(random), at, limit, content }
}

fn draw_txn(random: &mut StdRng, model: &Model, number: usize) -> Txn {
    let mut txn = Txn::new();
    for _ in 0..random.random_range(0..3) {
        txn = txn.when(draw_compare(random, model));
    }
    // Now and then a key occurs twice, which both must refuse.
    for _ in 0..*[0, 1, 1, 1, 2, 2, 3].choose(random).unwrap() {
        let name = draw_key(random);
        txn = match random.random_range(0..10) {
            0..4 => txn.delete(&name),
            4 => txn.put(&name, ""),
            _ => txn.put(&name, format!("value {number}")),
        };
    }
    for _ in 0..random.random_range(0..3) {
        txn = txn.otherwise_get(&draw_key(random));
    }
    txn
}

/// A comparison with something near to what is stored, so that each answer is likely.
fn draw_compare(random: &mut StdRng, model: &Model) -> Compare {
    let name = draw_key(random);
    let current = model.entry(&name);
    let mut near = |number: u64| (number + random.random_range(0..3)).saturating_sub(1);
    let version = near(current.map_or(0, |entry| entry.version));
    let created = near(current.map_or(0, |entry| entry.create_revision.get()));
    let modified = near(current.map_or(0, |entry| entry.mod_revision.get()));
    let target = match random.random_range(0..5) {
        0 => CompareTarget::Version(version),
        1 => CompareTarget::CreateRevision(Revision::new(created)),
        2 => CompareTarget::ModRevision(Revision::new(modified)),
        3 => CompareTarget::Value(current.map_or(Bytes::new(), |entry| entry.value.clone())),
        _ => CompareTarget::Value(Bytes::from_static(b"value 2")),
    };
    let relations = [Relation::Equal, Relation::NotEqual, Relation::Greater, Relation::Less];
    Compare { key: name, relation: *relations.choose(random).unwrap(), target }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, TxnOutcome};
    use rand::SeedableRng;

    /// The drawing is worth nothing if it never reaches the interesting answers.
    #[test]
    fn every_kind_of_answer_is_drawn() {
        let start = Revision::new(1);
        let mut model = Model::new(start, Limits::default());
        let mut random = StdRng::seed_from_u64(1);
        let mut seen = std::collections::BTreeMap::<&str, usize>::new();
        for number in 0..4 * STEPS {
            let kind = match draw(&mut random, &model, start, number) {
                Step::Txn(txn) => match model.txn(&txn) {
                    Ok(TxnOutcome::Committed { .. }) => "committed",
                    Ok(TxnOutcome::Refused { .. }) => "refused",
                    Err(_) => "invalid",
                },
                Step::Range(request) => match model.range(&request) {
                    Ok(response) if response.more => "page",
                    Ok(_) => "range",
                    Err(StoreError::Compacted { .. }) => "compacted range",
                    Err(_) => "future range",
                },
                Step::Watch(request) => match model.events(&request.range, request.from.unwrap(), false) {
                    Ok(_) => "watch",
                    Err(_) => "compacted watch",
                },
                Step::Compact(revision) => match model.compact(revision) {
                    Ok(()) => "compaction",
                    Err(_) => "impossible compaction",
                },
            };
            *seen.entry(kind).or_default() += 1;
        }
        assert_eq!(seen.len(), 11, "{seen:?}");
    }
}
