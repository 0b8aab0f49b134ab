//! StorageVersions that a client writes: validation by the rules of `restow-api`.

use crate::core::WriteHook;
use crate::error::ApiError;
use crate::request::Request;
use crate::resource::strategy::Strategy;
use crate::storage_version::Agreement;
use async_trait::async_trait;
use restow_api::internal_apiserver::{StorageVersion, validate_storage_version};
use restow_api::validation::{FieldError as Problem, FieldErrorKind};
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use restow_store::Compare;
use std::sync::Arc;

pub(super) struct StorageVersionRules;

impl Strategy for StorageVersionRules {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }
}

fn problems(object: &Object) -> Vec<FieldError> {
    match serde_json::from_value::<StorageVersion>(object.clone().into_value()) {
        Ok(object) => validate_storage_version(&object).into_iter().map(problem).collect(),
        Err(error) => {
            let detail = format!("cannot be understood: {error}");
            vec![FieldError { field: "status".into(), rule: FieldRule::Invalid("null".into()), detail }]
        }
    }
}

fn problem(problem: Problem) -> FieldError {
    let rule = match problem.kind {
        FieldErrorKind::Required => FieldRule::Required,
        FieldErrorKind::Duplicate => FieldRule::Duplicate(problem.bad_value.to_string()),
        FieldErrorKind::Invalid => FieldRule::Invalid(problem.bad_value.to_string()),
    };
    FieldError { field: problem.field, rule, detail: problem.detail }
}

/// Sets the common encoding version of a StorageVersion that a client updates, and keeps the entries of servers that run.
pub(crate) struct CommonEncodingVersion(pub(crate) Arc<Agreement>);

#[async_trait]
impl WriteHook for CommonEncodingVersion {
    async fn claim(
        &self,
        request: &Request,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Vec<Compare>, ApiError> {
        match old {
            Some(_) => Ok(self.0.recompute_status(&request.resource, object, old).await?),
            None => Ok(Vec::new()),
        }
    }

    async fn check_deletion(&self, object: &Object) -> Result<(), ApiError> {
        self.0.check_report_deletion(object).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(name: &str, status: Value, expected: &[&str]) {
        let object = json!({
            "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
            "metadata": {"name": name}, "spec": {}, "status": status,
        });
        let found: Vec<String> =
            problems(&Object::from_value(object).unwrap()).iter().map(FieldError::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn an_invalid_storage_version_status_is_refused() {
        let entry = |id: &str, encoding: &str, decodable: &[&str]| json!({"apiServerID": id, "encodingVersion": encoding, "decodableVersions": decodable});
        check("core.pods", json!({}), &[]);
        check(
            "pods",
            json!({}),
            &["metadata.name: Invalid value: \"pods\": name must be in the form of <group>.<resource>"],
        );
        let agreed = json!({"storageVersions": [entry("a", "v1", &["v1"])], "commonEncodingVersion": "v1"});
        check("core.pods", agreed, &[]);
        let undecodable = json!({"storageVersions": [entry("a", "v1", &["v2"])], "commonEncodingVersion": "v1"});
        check("core.pods", undecodable, &["status.storageVersions[0].decodableVersions: Invalid value"]);
        let twice = json!({
            "storageVersions": [entry("a", "v1", &["v1"]), entry("a", "v1", &["v1"])], "commonEncodingVersion": "v1",
        });
        check("core.pods", twice, &["status.storageVersions[1].apiServerID: Duplicate value: \"a\""]);
        let unequal = json!({
            "storageVersions": [entry("a", "v1", &["v1"]), entry("b", "v2", &["v2"])], "commonEncodingVersion": "v1",
        });
        check("core.pods", unequal, &["status.commonEncodingVersion: Invalid value: \"v1\": should be nil"]);
    }
}
