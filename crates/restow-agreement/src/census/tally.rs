//! Counting stored values.

use super::StoredForm;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many stored values there are of each kind, in each encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    rows: BTreeMap<(String, String, Encoding), Count>,
}

/// How a group of values is encoded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "form")]
pub enum Encoding {
    /// JSON in this version.
    Json {
        /// The version, without its group.
        version: String,
    },
    /// Kubernetes' protobuf in this version.
    Protobuf {
        /// The version, without its group.
        version: String,
    },
    /// Encrypted with this key; the version cannot be seen.
    Encrypted {
        /// The provider and its version.
        provider: String,
        /// The name of the key.
        key: String,
    },
    /// Not an object of Kubernetes, or damaged.
    Other,
}

/// One line of a census.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusRow {
    /// The group; empty for the core group. For values that do not tell, the folder they lie in.
    pub group: String,
    /// The kind; empty for values that do not tell.
    pub kind: String,
    /// How the values are encoded.
    #[serde(flatten)]
    pub encoding: Encoding,
    /// How many there are.
    pub count: u64,
    /// How large they are together.
    pub bytes: u64,
    /// The key of one of them.
    pub example: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Count {
    count: u64,
    bytes: u64,
    example: String,
}

impl Census {
    /// Counts one more value.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let (group, kind, encoding) = match StoredForm::of(value) {
            StoredForm::Json { api_version, kind } => {
                let (group, version) = split(&api_version);
                (group, kind.into_owned(), Encoding::Json { version })
            }
            StoredForm::Protobuf { api_version, kind } => {
                let (group, version) = split(&api_version);
                (group, kind.into_owned(), Encoding::Protobuf { version })
            }
            StoredForm::Encrypted { provider, key: name } => {
                let encoding = Encoding::Encrypted { provider: provider.into_owned(), key: name.into_owned() };
                (folder(key), String::new(), encoding)
            }
            StoredForm::Other => (folder(key), String::new(), Encoding::Other),
        };
        let fresh = || Count { count: 0, bytes: 0, example: String::from_utf8_lossy(key).into_owned() };
        let count = self.rows.entry((group, kind, encoding)).or_insert_with(fresh);
        count.count += 1;
        count.bytes += value.len() as u64;
    }

    /// Every line, by group, kind and encoding.
    pub fn rows(&self) -> Vec<CensusRow> {
        let row = |((group, kind, encoding), count): (&(String, String, Encoding), &Count)| CensusRow {
            group: group.clone(),
            kind: kind.clone(),
            encoding: encoding.clone(),
            count: count.count,
            bytes: count.bytes,
            example: count.example.clone(),
        };
        self.rows.iter().map(row).collect()
    }
}

fn split(api_version: &str) -> (String, String) {
    match api_version.split_once('/') {
        Some((group, version)) => (group.to_string(), version.to_string()),
        None => (String::new(), api_version.to_string()),
    }
}

/// The first two parts of a key, which tell what it is about where the value does not.
fn folder(key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    let parts: Vec<&str> = key.split('/').filter(|part| !part.is_empty()).take(2).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_kind_and_encoding() {
        let mut census = Census::default();
        census.add(b"/example.com/widgets/a", br#"{"apiVersion":"example.com/v1","kind":"Widget"}"#);
        census.add(b"/example.com/widgets/b", br#"{"apiVersion":"example.com/v1","kind":"Widget"}"#);
        census.add(b"/example.com/widgets/c", br#"{"apiVersion":"example.com/v2","kind":"Widget"}"#);
        census.add(b"/secrets/default/d", b"k8s:enc:aesgcm:v1:old:xyz");
        let lines: Vec<_> = census.rows().into_iter().map(|row| (row.group, row.encoding, row.count)).collect();
        let json = |version: &str| Encoding::Json { version: version.into() };
        assert_eq!(
            lines,
            [
                ("example.com".to_string(), json("v1"), 2),
                ("example.com".to_string(), json("v2"), 1),
                (
                    "secrets/default".to_string(),
                    Encoding::Encrypted { provider: "aesgcm:v1".into(), key: "old".into() },
                    1
                ),
            ]
        );
        assert_eq!(census.rows()[0].example, "/example.com/widgets/a");
    }
}
