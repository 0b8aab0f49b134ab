//! Each rule broken once, and the sentence that follows.

use super::*;
use crate::internal_apiserver::ConditionStatus;

fn entry(id: &str, encoding: &str, decodable: &[&str], served: &[&str]) -> ServerStorageVersion {
    let owned = |versions: &[&str]| versions.iter().map(|version| (*version).to_owned()).collect();
    ServerStorageVersion {
        api_server_id: id.into(),
        encoding_version: encoding.into(),
        decodable_versions: owned(decodable),
        served_versions: owned(served),
    }
}

fn condition(condition_type: &str, status: &str, reason: &str, message: &str) -> StorageVersionCondition {
    StorageVersionCondition {
        condition_type: condition_type.into(),
        status: ConditionStatus::from(status.to_owned()),
        reason: reason.into(),
        message: message.into(),
        ..StorageVersionCondition::default()
    }
}

fn status(entries: &[ServerStorageVersion], common: Option<&str>) -> StorageVersionStatus {
    StorageVersionStatus {
        storage_versions: entries.to_vec(),
        common_encoding_version: common.map(str::to_owned),
        conditions: Vec::new(),
    }
}

fn complaints(status: &StorageVersionStatus) -> Vec<String> {
    validate_storage_version_status(status).iter().map(ToString::to_string).collect()
}

/// Checks one entry; the common version is made to fit, so that it adds no complaint.
fn check_entry(entry: ServerStorageVersion, expected: &[&str]) {
    let common = entry.encoding_version.clone();
    assert_eq!(complaints(&status(&[entry], Some(&common))), expected);
}

#[test]
fn valid_entries_pass() {
    check_entry(entry("fea", "v1alpha1", &["v1alpha1", "v1"], &["v1"]), &[]);
    check_entry(entry("fea", "mygroup.com/v2", &["v1", "mygroup.com/v2"], &[]), &[]);
}

#[test]
fn invalid_entries_are_refused() {
    check_entry(
        entry("fea", "v1alpha1", &["v1beta1", "v1"], &[]),
        &[
            r#"status.storageVersions[0].decodableVersions: Invalid value: []string{"v1beta1", "v1"}: decodableVersions must include encodingVersion v1alpha1"#,
        ],
    );
    check_entry(
        entry("fea", "mygroup.com/v2", &["mygroup.com/v2", "/v3"], &[]),
        &[r#"status.storageVersions[0].decodableVersions[1]: Invalid value: "/v3": group part: must be non-empty"#],
    );
    check_entry(
        entry("fea", "/v3", &["/v3"], &[]),
        &[
            r#"status.storageVersions[0].encodingVersion: Invalid value: "/v3": group part: must be non-empty"#,
            r#"status.storageVersions[0].decodableVersions[0]: Invalid value: "/v3": group part: must be non-empty"#,
        ],
    );
    check_entry(
        entry("fea", "v1alpha1", &["v1alpha1", "v1"], &["v2"]),
        &[
            r#"status.storageVersions[0].servedVersions[0]: Invalid value: "v2": individual served version : v2 must be included in decodableVersions : [v1alpha1 v1]"#,
        ],
    );
}

#[test]
fn an_id_must_be_the_name_of_a_lease() {
    let found = complaints(&status(&[entry("-fea", "v1", &["v1"], &[])], Some("v1")));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with(
        r#"status.storageVersions[0].apiServerID: Invalid value: "-fea": a lowercase RFC 1123 subdomain must consist of"#
    ));
}

#[test]
fn ids_are_unique() {
    let entries = [entry("1", "v1", &["v1"], &[]), entry("1", "v1", &["v1"], &[])];
    assert_eq!(
        complaints(&status(&entries, Some("v1"))),
        [r#"status.storageVersions[1].apiServerID: Duplicate value: "1""#]
    );
}

#[test]
fn the_common_version_must_equal_all_encoding_versions() {
    let nil = "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet";
    let (one, two) = (entry("1", "v1", &["v1", "v2"], &[]), entry("2", "v2", &["v1", "v2"], &[]));
    let check = |entries: &[ServerStorageVersion], common: Option<&str>, expected: &[String]| {
        assert_eq!(complaints(&status(entries, common)), expected);
    };
    let field = "status.commonEncodingVersion: Invalid value:";
    check(&[], None, &[]);
    check(&[], Some("v1"), &[format!("{field} \"v1\": {nil}")]);
    check(&[one.clone(), two.clone()], None, &[]);
    check(&[one.clone(), two], Some("v1"), &[format!("{field} \"v1\": {nil}")]);
    check(std::slice::from_ref(&one), None, &[]);
    check(
        std::slice::from_ref(&one),
        Some("v2"),
        &[format!("{field} \"v2\": the actual common encoding version is v1")],
    );
    check(&[one], Some("v1"), &[]);
}

#[test]
fn conditions_are_validated() {
    let check = |conditions: Vec<StorageVersionCondition>, expected: &[&str]| {
        let found = complaints(&StorageVersionStatus { conditions, ..StorageVersionStatus::default() });
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (complaint, start) in found.iter().zip(expected) {
            assert!(complaint.starts_with(start), "{complaint} does not start with {start}");
        }
    };
    check(vec![condition("fea", "True", "r", "m")], &[]);
    check(
        vec![condition("-fea", "True", "r", "m")],
        &[r#"status[0].type: Invalid value: "-fea": name part must consist"#],
    );
    check(
        vec![condition("fea", "-True", "r", "m")],
        &[r#"status[0].status: Invalid value: "-True": name part must consist"#],
    );
    check(vec![condition("fea", "True", "", "m")], &["status[0].reason: Required value: reason cannot be empty"]);
    check(vec![condition("fea", "True", "r", "")], &["status[0].message: Required value: message cannot be empty"]);
    check(
        vec![condition("fea", "True", "r", "m"), condition("fea", "True", "r", "m")],
        &[
            r#"status[1].type: Invalid value: "fea": the type of the condition is not unique, it also appears in conditions[0]"#,
        ],
    );
}

#[test]
fn names_have_a_group_and_a_resource() {
    let check = |name: &str, expected: &[&str]| assert_eq!(validate_storage_version_name(name), expected);
    check("core.pods", &[]);
    check("authentication.k8s.io.tokenreviews", &[]);
    check("pods", &["name must be in the form of <group>.<resource>"]);
    check(&format!("{}.tokenreviews", "x".repeat(253)), &[]);
    check(&format!("{}.tokenreviews", "x".repeat(254)), &["the group segment must be no more than 253 bytes"]);
    check(&format!("a.{}", "x".repeat(64)), &["the resource segment must be no more than 63 bytes"]);
}

#[test]
fn a_whole_object_is_checked_with_its_name() {
    let mut object = StorageVersion::default();
    let complaint = |object: &StorageVersion| validate_storage_version(object)[0].to_string();
    assert_eq!(complaint(&object), "metadata.name: Required value: name or generateName is required");
    object.metadata.name = "pods".into();
    assert_eq!(
        complaint(&object),
        r#"metadata.name: Invalid value: "pods": name must be in the form of <group>.<resource>"#
    );
    object.metadata.name = "core.pods".into();
    assert_eq!(validate_storage_version(&object), []);
}
