//! Any schema, applied to any object. Run it with `cargo +nightly fuzz run schema fuzz/corpus/schema fuzz/seeds/schema`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restow_schema::fuzzing::schema(data));
