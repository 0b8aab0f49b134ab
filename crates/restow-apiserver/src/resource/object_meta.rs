//! What the server puts into `metadata`: times and generated names.

use rand::Rng;
use restow_apimachinery::names::GENERATED_SUFFIX;

/// The letters of generated names: no vowels and no look-alikes, so that they spell nothing.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The present time as Kubernetes writes it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The random end of a generated name.
pub(crate) fn random_suffix() -> String {
    let mut random = rand::rng();
    (0..GENERATED_SUFFIX).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect()
}
