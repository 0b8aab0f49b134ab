//! Checks the releases in `resources.txt`.
use std::path::Path;
pub(crate) fn check(_resources: &Path, _versions: &Path) -> anyhow::Result<Vec<String>> {
    Ok(vec![])
}
