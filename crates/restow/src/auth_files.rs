//! The files that authentication needs: the key that signs service account tokens, and the static token file.

use anyhow::Context;
use restow_auth::authenticate::TokenFile;
use restow_auth::service_account::SigningKey;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// Reads the signing key. If the file does not exist, creates a key that only its owner can read. Several processes that do
/// this at once get the same key.
pub(crate) fn load_or_create_signing_key(path: &Path) -> anyhow::Result<SigningKey> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_signing_key(path),
        read => read,
    };
    let text = text.with_context(|| format!("cannot read or create the key {}", path.display()))?;
    SigningKey::from_pem(&text).with_context(|| format!("cannot use the key {}", path.display()))
}

/// Writes a new key whole or not at all. Returns the key that the file has then: that of another process, if it was faster.
fn create_signing_key(path: &Path) -> io::Result<String> {
    let (_, text) = SigningKey::generate().map_err(io::Error::other)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Only its owner can read a temporary file.
    let mut draft = NamedTempFile::new_in(folder)?;
    draft.write_all(text.as_bytes())?;
    draft.as_file().sync_all()?;
    match draft.persist_noclobber(path) {
        Ok(_) => Ok(text),
        Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => fs::read_to_string(path),
        Err(failed) => Err(failed.error),
    }
}

/// Reads the static token file. No message contains a token.
pub(crate) fn load_token_file(path: &Path) -> anyhow::Result<TokenFile> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the token file {}", path.display()))?;
    TokenFile::parse(&text)
        .map_err(|(line, problem)| anyhow::anyhow!("token file {} line {line}: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_signing_key_is_created_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sa.key");
        let keys: Vec<String> = std::thread::scope(|scope| {
            let load = || load_or_create_signing_key(&path).unwrap().verifying_key().id().to_string();
            let loading: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
            loading.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        assert_eq!(load_or_create_signing_key(&path).unwrap().verifying_key().id(), keys[0]);
        fs::write(&path, "").unwrap();
        let message = format!("{:#}", load_or_create_signing_key(&path).unwrap_err());
        assert!(message.starts_with(&format!("cannot use the key {}: not a usable key", path.display())), "{message}");
        assert!(load_or_create_signing_key(&folder.path().join("no/such/folder")).is_err());
    }

    #[test]
    fn a_mistake_in_a_token_file_is_reported_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.csv");
        assert!(load_token_file(&path).is_err());
        fs::write(&path, "secret,b\n").unwrap();
        let message = load_token_file(&path).unwrap_err().to_string();
        assert!(message.starts_with(&format!("token file {} line 1: ", path.display())), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}
