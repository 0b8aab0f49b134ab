//! Writes to an embedded store until it is killed, and prints what was acknowledged. For the crash tests.
//!
//! Each of its tasks counts up. It writes its counter under two keys in one transaction, and prints its number and the
//! counter once that is acknowledged. Now and then the history is compacted.

use restow_store::{Key, Store, StoreExt, Txn, TxnOutcome};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

const TASKS: usize = 8;

#[tokio::main]
async fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: restow-store-crash-writer DIRECTORY");
        return ExitCode::from(2);
    };
    let store = match EmbeddedStore::open(EmbeddedConfig::new(directory)) {
        Ok(store) => Arc::new(store),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(count_up(store.clone(), task))).collect();
    for task in tasks {
        match task.await {
            Ok(Err(error)) => eprintln!("{error}"),
            Err(error) => eprintln!("{error}"),
            Ok(Ok(())) => {}
        }
    }
    ExitCode::FAILURE
}

async fn count_up(store: Arc<EmbeddedStore>, task: usize) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let left = Key::try_from(format!("/left/{task}"))?;
    let right = Key::try_from(format!("/right/{task}"))?;
    let before = store.get(&left).await?.map(|entry| String::from_utf8_lossy(&entry.value).to_string());
    let before = before.as_deref().and_then(|text| text.split(' ').next()).and_then(|text| text.parse::<u64>().ok());
    let mut counter = before.unwrap_or_default();
    loop {
        counter += 1;
        // Values of several pages make batches that a kill can cut in two.
        let value = format!("{counter} {}", "x".repeat((counter as usize * 997) % 9000));
        let outcome = store.txn(Txn::new().put(&left, value.clone()).put(&right, value)).await?;
        writeln!(std::io::stdout().lock(), "{task} {counter}")?;
        if let (TxnOutcome::Committed { revision }, true) = (outcome, counter.is_multiple_of(200)) {
            // Another task may have compacted further.
            let _ = store.compact(revision).await;
        }
    }
}
