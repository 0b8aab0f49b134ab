//! Counts stored values.

use super::StoredForm;
use super::layout::{FURTHER_FOLDERS, folder_of, is_own_record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The maximum number of rows, which bounds memory. No cluster has as many kinds.
const MOST_ROWS: usize = 10_000;

/// Longer names of groups, versions and kinds are not valid.
const LONGEST_NAME: usize = 320;

/// How many stored values there are of each kind, in each encoding and folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    rows: BTreeMap<RowKey, Count>,
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    group: String,
    kind: String,
    encoding: Encoding,
    folder: String,
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
    /// Not an object, but a known record of API servers.
    Record,
    /// Not an object of Kubernetes, or damaged.
    Other,
}

/// One row of a census.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusRow {
    /// The folder of their keys, which is that of one resource, as in `/secrets` or `/example.com/widgets`.
    #[serde(default)]
    pub folder: String,
    /// The group; empty for the core group, and for values that do not name it.
    pub group: String,
    /// The kind; empty for values that do not name it.
    pub kind: String,
    /// How the values are encoded.
    #[serde(flatten)]
    pub encoding: Encoding,
    /// How many there are.
    pub count: u64,
    /// Their total size.
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
    /// Counts one value.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let folder = folder_of(key);
        let is_object = |api_version: &str, kind: &str| {
            let is_name = |text: &str| (1..=LONGEST_NAME).contains(&text.len());
            is_name(api_version) && is_name(kind)
        };
        let (group, kind, encoding) = match StoredForm::of(value) {
            StoredForm::Json { api_version, kind } if is_object(&api_version, &kind) => {
                let (group, version) = split(&api_version);
                (group, kind.into_owned(), Encoding::Json { version })
            }
            StoredForm::Protobuf { api_version, kind } if is_object(&api_version, &kind) => {
                let (group, version) = split(&api_version);
                (group, kind.into_owned(), Encoding::Protobuf { version })
            }
            StoredForm::Encrypted { provider, key } => {
                let encoding = Encoding::Encrypted { provider: provider.into_owned(), key: key.into_owned() };
                (String::new(), String::new(), encoding)
            }
            _ if is_own_record(&folder, value) => (String::new(), String::new(), Encoding::Record),
            _ => (String::new(), String::new(), Encoding::Other),
        };
        let mut line = RowKey { group, kind, encoding, folder };
        if self.rows.len() >= MOST_ROWS && !self.rows.contains_key(&line) {
            let (group, kind, folder) = (String::new(), String::new(), FURTHER_FOLDERS.to_string());
            line = RowKey { group, kind, encoding: Encoding::Other, folder };
        }
        let fresh = || Count { count: 0, bytes: 0, example: String::from_utf8_lossy(key).into_owned() };
        let count = self.rows.entry(line).or_insert_with(fresh);
        count.count += 1;
        count.bytes += value.len() as u64;
    }

    /// All rows, by group, kind and encoding.
    pub fn rows(&self) -> Vec<CensusRow> {
        let row = |(line, count): (&RowKey, &Count)| CensusRow {
            folder: line.folder.clone(),
            group: line.group.clone(),
            kind: line.kind.clone(),
            encoding: line.encoding.clone(),
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
        census.add(b"/secrets/other/d", b"k8s:enc:aesgcm:v1:old:xyz");
        census.add(b"/foreign/d", b"\x00\x01");
        census.add(b"/restow/leaders/garbage", b"a server");
        let lines: Vec<_> = census.rows().into_iter().map(|row| (row.folder, row.encoding, row.count)).collect();
        let json = |version: &str| Encoding::Json { version: version.into() };
        let encrypted = Encoding::Encrypted { provider: "aesgcm:v1".into(), key: "old".into() };
        assert_eq!(
            lines,
            [
                ("/secrets".to_string(), encrypted, 2),
                ("/restow/leaders".to_string(), Encoding::Record, 1),
                ("/foreign".to_string(), Encoding::Other, 1),
                ("/example.com/widgets".to_string(), json("v1"), 2),
                ("/example.com/widgets".to_string(), json("v2"), 1),
            ]
        );
        assert_eq!(census.rows()[3].example, "/example.com/widgets/a");
    }

    #[test]
    fn a_tally_has_a_bounded_number_of_lines() {
        let mut census = Census::default();
        for number in 0..MOST_ROWS + 1_000 {
            let (key, value) = (format!("/{number}"), format!(r#"{{"apiVersion":"v1","kind":"K{number}"}}"#));
            census.add(key.as_bytes(), value.as_bytes());
        }
        let rows = census.rows();
        assert_eq!(rows.len(), MOST_ROWS + 1);
        assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), (MOST_ROWS + 1_000) as u64);
        let further: Vec<_> = rows.iter().filter(|row| row.folder == FURTHER_FOLDERS).collect();
        assert_eq!((further.len(), further[0].count), (1, 1_000));
        assert_eq!(further[0].encoding, Encoding::Other, "which cannot be told");
    }

    #[test]
    fn names_that_cannot_be_names_are_none() {
        let mut census = Census::default();
        let long = "K".repeat(LONGEST_NAME + 1);
        for (api_version, kind) in [("", "A"), ("v1", ""), ("v1", long.as_str()), (long.as_str(), "A")] {
            census.add(b"/a", format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}"}}"#).as_bytes());
        }
        let rows = census.rows();
        assert_eq!((rows.len(), rows[0].count, &rows[0].encoding), (1, 4, &Encoding::Other));
    }

    #[test]
    fn protobuf_values_are_counted_by_kind_with_their_size() {
        let protobuf = |kind: &str| {
            let api_version = b"\n\x02v1";
            let kind = [&[0x12, kind.len() as u8], kind.as_bytes()].concat();
            let type_meta = [&api_version[..], &kind].concat();
            [&b"k8s\0\n"[..], &[type_meta.len() as u8], &type_meta].concat()
        };
        let mut census = Census::default();
        census.add(b"/pods/a", &protobuf("Pod"));
        census.add(b"/pods/b", &protobuf("Pod"));
        census.add(b"/pods/c", &protobuf(""));
        let rows = census.rows();
        let found: Vec<_> = rows.iter().map(|row| (row.kind.as_str(), &row.encoding, row.count, row.bytes)).collect();
        let size = protobuf("Pod").len() as u64;
        let encoding = Encoding::Protobuf { version: "v1".into() };
        assert_eq!(found, [("", &Encoding::Other, 1, size - 3), ("Pod", &encoding, 2, 2 * size)]);
    }
}
