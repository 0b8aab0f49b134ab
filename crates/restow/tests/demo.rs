//! The demo, as a test: everything that it claims is checked while it runs, and it ends with an error when a claim is false.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

#[test]
fn everything_that_the_demo_claims_is_true() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_restow")).args(["demo", "--fast", "--objects", "60"]).output().unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{errors}");
    assert!(told.contains("This is the fence."), "{told}");
    assert!(told.contains("none failed, none was lost."), "{told}");
    assert!(!told.contains('\x1b'), "no colours where nobody sees them");
}
