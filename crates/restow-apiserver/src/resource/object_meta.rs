//! Values that the server sets in `metadata`: times and generated names.

use rand::Rng;
use restow_apimachinery::names::GENERATED_SUFFIX;

/// The characters of generated names: no vowels and no similar characters, so that they form no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The current time in Kubernetes' format.
pub(crate) fn now() -> String {
    restow_host::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The random suffix of a generated name.
pub(crate) fn random_suffix() -> String {
    let mut random = restow_host::random();
    (0..GENERATED_SUFFIX).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect()
}
