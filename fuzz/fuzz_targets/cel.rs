//! Any expression, evaluated with any values. Run it with `cargo +nightly fuzz run cel fuzz/corpus/cel fuzz/seeds/cel`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restow_schema::fuzzing::cel(data));
