//! The reports of a single server, compared with those of a real Kubernetes 1.37.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_api::internal_apiserver::{StorageVersion, validate_storage_version};
use restow_api::{GroupResource, GroupVersion};
use restow_rules::{Participants, ServerReport, register};
use serde_json::{Value, json};

const RECORDED: &str = include_str!("fixtures/storage-versions-1.37.jsonl");

fn versions(recorded: &Value, field: &str) -> Vec<GroupVersion> {
    let texts = recorded[field].as_array().map_or(&[][..], Vec::as_slice);
    texts.iter().map(|text| text.as_str().unwrap().parse().unwrap()).collect()
}

fn resource(name: &str) -> GroupResource {
    let (group, resource) = name.rsplit_once('.').unwrap();
    GroupResource::new(if group == "core" { "" } else { group }, resource).unwrap()
}

#[test]
fn every_recorded_storage_version_is_reproduced() {
    let mut count = 0;
    for line in RECORDED.lines() {
        let recorded: Value = serde_json::from_str(line).unwrap();
        let encoding = recorded["encodingVersion"].as_str().unwrap().parse().unwrap();
        let (decodable, served) = (versions(&recorded, "decodableVersions"), versions(&recorded, "servedVersions"));
        let report = ServerReport::new("apiserver-x".parse().unwrap(), encoding, decodable, served).unwrap();
        let alone = Participants::listed([report.id().clone()]);

        let mut object = StorageVersion::new(&resource(recorded["name"].as_str().unwrap()));
        object.status = register(None, &alone, &report, "2026-11-15T21:34:05Z".parse().unwrap()).status;
        assert_eq!(validate_storage_version(&object), []);

        let written = serde_json::to_value(&object).unwrap();
        let entry = &written["status"]["storageVersions"][0];
        let mut conditions = written["status"]["conditions"].clone();
        assert_eq!(
            conditions[0].as_object_mut().unwrap().remove("lastTransitionTime").unwrap(),
            "2026-11-15T21:34:05Z"
        );
        let mut comparable = json!({
            "name": written["metadata"]["name"],
            "commonEncodingVersion": written["status"]["commonEncodingVersion"],
            "conditions": conditions,
            "encodingVersion": entry["encodingVersion"],
            "decodableVersions": entry["decodableVersions"],
        });
        if !entry["servedVersions"].is_null() {
            comparable["servedVersions"] = entry["servedVersions"].clone();
        }
        assert_eq!(comparable, recorded);
        count += 1;
    }
    assert_eq!(count, 63);
}
