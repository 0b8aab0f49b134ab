//! Keys of objects: reading those of a range page by page, and the name and namespace in them.

use crate::error::ApiError;
use restow_store::{Content, Key, KeyRange, RangeRequest, Store};

/// The number of keys in a page.
const KEYS: usize = 500;

/// The keys in a range, page after page: callers that need only the names of objects do not read the objects.
pub(crate) struct KeyPages {
    rest: Option<KeyRange>,
}

impl KeyPages {
    pub(crate) fn new(range: KeyRange) -> Self {
        KeyPages { rest: Some(range) }
    }

    /// The next page; `None` after the last one. It includes keys that were written after the first page was read.
    pub(crate) async fn next(&mut self, store: &dyn Store) -> Result<Option<Vec<Key>>, ApiError> {
        let Some(rest) = self.rest.take() else { return Ok(None) };
        let request = RangeRequest::new(rest.clone()).content(Content::KeysOnly).limit(KEYS);
        let page = store.range(request).await?;
        self.rest = page.entries.last().filter(|_| page.more).map(|last| rest.after(&last.key));
        Ok(Some(page.entries.into_iter().map(|entry| entry.key).collect()))
    }
}

/// The last part of a key: the object's name.
pub(crate) fn name_of(key: &Key) -> &str {
    std::str::from_utf8(key.as_ref()).ok().and_then(|key| key.rsplit('/').next()).unwrap_or_default()
}

/// The part before the last of a key: the object's namespace, where it has one.
pub(crate) fn namespace_of(key: &Key) -> &str {
    std::str::from_utf8(key.as_ref()).ok().and_then(|key| key.rsplit('/').nth(1)).unwrap_or_default()
}
