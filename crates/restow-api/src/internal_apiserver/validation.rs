//! Validation of StorageVersions: Kubernetes' rules, messages and field paths, with their quirks (the paths of
//! conditions lack the word "conditions"). One rule differs: the common encoding version may be unset.

use super::{ServerStorageVersion, StorageVersion, StorageVersionCondition, StorageVersionStatus};
use crate::validation::{FieldError, is_dns1035_label, is_dns1123_subdomain, is_label_key, is_valid_api_version};
use std::collections::{BTreeMap, BTreeSet};

/// All validation errors of an object.
pub fn validate_storage_version(object: &StorageVersion) -> Vec<FieldError> {
    let name = &object.metadata.name;
    let mut errors: Vec<FieldError> = match name.is_empty() {
        true => vec![FieldError::required("metadata.name", "name or generateName is required")],
        false => validate_storage_version_name(name)
            .into_iter()
            .map(|problem| FieldError::invalid("metadata.name", name, problem))
            .collect(),
    };
    errors.extend(validate_storage_version_status(&object.status));
    errors
}

/// The validation errors of a name, which is a group and a resource with a dot between them.
pub fn validate_storage_version_name(name: &str) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".to_owned()];
    };
    let group_problems = is_dns1123_subdomain(group).into_iter().map(|problem| format!("the group segment {problem}"));
    let resource_problems =
        is_dns1035_label(resource).into_iter().map(|problem| format!("the resource segment {problem}"));
    group_problems.chain(resource_problems).collect()
}

/// All validation errors of a status, for updates of the status subresource.
pub fn validate_storage_version_status(status: &StorageVersionStatus) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, entry) in status.storage_versions.iter().enumerate() {
        let path = format!("status.storageVersions[{index}]");
        if !seen.insert(&entry.api_server_id) {
            errors.push(FieldError::duplicate(format!("{path}.apiServerID"), &entry.api_server_id));
        }
        errors.extend(validate_entry(entry, &path));
    }
    errors.extend(validate_common_version(status));
    errors.extend(validate_conditions(&status.conditions));
    errors
}

fn validate_entry(entry: &ServerStorageVersion, path: &str) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = is_dns1123_subdomain(&entry.api_server_id)
        .into_iter()
        .map(|problem| FieldError::invalid(format!("{path}.apiServerID"), &entry.api_server_id, problem))
        .collect();
    errors.extend(validate_api_version(&entry.encoding_version, format!("{path}.encodingVersion")));
    for (index, version) in entry.decodable_versions.iter().enumerate() {
        errors.extend(validate_api_version(version, format!("{path}.decodableVersions[{index}]")));
    }
    if !entry.decodable_versions.contains(&entry.encoding_version) {
        let detail = format!("decodableVersions must include encodingVersion {}", entry.encoding_version);
        errors.push(FieldError::invalid_list(format!("{path}.decodableVersions"), &entry.decodable_versions, detail));
    }
    for (index, version) in entry.served_versions.iter().enumerate() {
        let path = format!("{path}.servedVersions[{index}]");
        errors.extend(validate_api_version(version, path.clone()));
        if !entry.decodable_versions.contains(version) {
            let decodable = entry.decodable_versions.join(" ");
            let detail =
                format!("individual served version : {version} must be included in decodableVersions : [{decodable}]");
            errors.push(FieldError::invalid(path, version, detail));
        }
    }
    errors
}

fn validate_api_version(version: &str, path: String) -> Option<FieldError> {
    let problems = is_valid_api_version(version);
    (!problems.is_empty()).then(|| FieldError::invalid(path, version, problems.join(",")))
}

fn validate_common_version(status: &StorageVersionStatus) -> Option<FieldError> {
    let path = "status.commonEncodingVersion";
    let first = status.storage_versions.first().map(|entry| &entry.encoding_version);
    let actual = first.filter(|first| status.storage_versions.iter().all(|entry| entry.encoding_version == **first));
    match (actual, &status.common_encoding_version) {
        // Kubernetes requires it if all entries are equal. Here it may be unset: a participating server without an
        // entry is no agreement.
        (_, None) => None,
        (None, Some(claimed)) => Some(FieldError::invalid(
            path,
            claimed,
            "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the \
             supported versions yet",
        )),
        (Some(actual), Some(claimed)) if actual != claimed => {
            Some(FieldError::invalid(path, claimed, format!("the actual common encoding version is {actual}")))
        }
        (Some(_), Some(_)) => None,
    }
}

fn validate_conditions(conditions: &[StorageVersionCondition]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = format!("status[{index}]");
        let condition_type = &condition.condition_type;
        if let Some(earlier) = seen.insert(condition_type, index) {
            let detail = format!("the type of the condition is not unique, it also appears in conditions[{earlier}]");
            errors.push(FieldError::invalid(format!("{path}.type"), condition_type, detail));
        }
        for problem in is_label_key(condition_type) {
            errors.push(FieldError::invalid(format!("{path}.type"), condition_type, problem));
        }
        for problem in is_label_key(condition.status.as_str()) {
            errors.push(FieldError::invalid(format!("{path}.status"), condition.status.as_str(), problem));
        }
        if condition.reason.is_empty() {
            errors.push(FieldError::required(format!("{path}.reason"), "reason cannot be empty"));
        }
        if condition.message.is_empty() {
            errors.push(FieldError::required(format!("{path}.message"), "message cannot be empty"));
        }
    }
    errors
}

#[cfg(test)]
mod tests;
