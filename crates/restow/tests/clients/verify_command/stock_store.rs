//! The content of a stock cluster's etcd: kube-apiserver's keys, and its protobuf for built-in kinds.

use restow_store::{Entry, Key, RangeRequest, Store, StoreExt};
use restow_store_etcd::EtcdStore;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The folders that kube-apiserver does not name after the resource.
const SPECIAL: [(&str, &str); 5] = [
    ("endpoints", "services/endpoints"),
    ("ingresses", "ingress"),
    ("nodes", "minions"),
    ("replicationcontrollers", "controllers"),
    ("services", "services/specs"),
];

/// Objects in kube-apiserver's layout, under a prefix of etcd.
pub(super) struct StockStore {
    store: EtcdStore,
}

/// The stored entries, once every namespace has its default service account.
async fn complete(ours: &EtcdStore) -> Vec<Entry> {
    let started = Instant::now();
    loop {
        let entries = ours.range(RangeRequest::prefix("/")).await.unwrap().entries;
        let keys: Vec<_> = entries.iter().map(|entry| String::from_utf8_lossy(entry.key.as_bytes())).collect();
        let has = |end: &str| keys.iter().any(|key| key.ends_with(end));
        let mut namespaces = keys.iter().filter_map(|key| key.split_once("/namespaces/").map(|(_, name)| name));
        if namespaces.all(|name| has(&format!("/serviceaccounts/{name}/default"))) {
            return entries;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "still not everything is there: {keys:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl StockStore {
    /// Every object of one of our stores, as kube-apiserver would have stored it.
    pub(super) async fn mirror(ours: &EtcdStore, store: EtcdStore) -> Self {
        let stock = StockStore { store };
        for entry in complete(ours).await {
            let Ok(object) = serde_json::from_slice::<Value>(&entry.value) else { continue };
            let (Some(api_version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
                continue;
            };
            let key = String::from_utf8(entry.key.as_bytes().to_vec()).unwrap();
            let (group, rest) = key.trim_start_matches('/').split_once('/').unwrap();
            let (plural, name) = rest.split_once('/').unwrap();
            let is_custom = group.contains('.') && !group.ends_with(".k8s.io");
            let place = match SPECIAL.iter().find(|(resource, _)| *resource == plural) {
                _ if is_custom || ["apiextensions.k8s.io", "apiregistration.k8s.io"].contains(&group) => key.clone(),
                Some((_, folder)) => format!("/{folder}/{name}"),
                None => format!("/{plural}/{name}"),
            };
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let value = match is_custom {
                true => entry.value.to_vec(),
                false => protobuf(api_version, kind, text("name"), text("uid")),
            };
            stock.put(&place, value).await;
        }
        stock
    }

    pub(super) async fn put(&self, key: &str, value: Vec<u8>) {
        self.store.put(&Key::try_from(key).unwrap(), value.into()).await.unwrap();
    }

    pub(super) async fn remove(&self, key: &str) {
        let key = Key::try_from(key).unwrap();
        let found = self.store.get(&key).await.unwrap().unwrap();
        self.store.remove(&key, found.mod_revision).await.unwrap();
    }

    pub(super) async fn remove_all(&self, folder: &str) {
        for entry in self.store.range(RangeRequest::prefix(folder.to_string())).await.unwrap().entries {
            self.store.remove(&entry.key, entry.mod_revision).await.unwrap();
        }
    }
}

/// An object in Kubernetes' protobuf: the mark, then an envelope of its type and its bytes, of which only the metadata matter
/// here.
pub(super) fn protobuf(api_version: &str, kind: &str, name: &str, uid: &str) -> Vec<u8> {
    let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    let metadata = [field(1, name.as_bytes()), field(5, uid.as_bytes())].concat();
    let object = field(1, &metadata);
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &object), field(3, b""), field(4, b"")].concat()
}

/// A field with a length, in protobuf.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}
