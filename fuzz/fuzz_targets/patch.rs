//! Any patch, applied to any object. Run it with `cargo +nightly fuzz run patch fuzz/corpus/patch fuzz/seeds/patch`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restow_apiserver::fuzzing::patch(data));
