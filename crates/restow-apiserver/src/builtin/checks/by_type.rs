//! The types with checks that look at several fields at once, which a row of `checks.txt` cannot do. The checks are in the
//! files of the kinds.

use super::{Fields, below, text_at};
use crate::builtin::kinds::{
    api_service, daemon_set, deployment, event, horizontal_pod_autoscaler, ingress, job, network_policy,
    persistent_volume_claim, pod, resource_quota, service, stateful_set,
};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::{label_value_problems, qualified_name_problems};
use restow_apimachinery::types::Amount;
use serde_json::Value;

type Examine = fn(&Fields, &str, &mut Vec<FieldError>);

/// The types, sorted by package and name.
const CHECKS: &[(&str, &str, Examine)] = &[
    ("apiregistration/v1", "APIService", api_service::check),
    ("apps/v1", "DaemonSetUpdateStrategy", daemon_set::check_rollout),
    ("apps/v1", "DeploymentSpec", deployment::check_spec),
    ("apps/v1", "DeploymentStrategy", deployment::check_rollout),
    ("apps/v1", "RollingUpdateDaemonSet", daemon_set::check_rolling_update),
    ("apps/v1", "StatefulSetSpec", stateful_set::check_spec),
    ("apps/v1", "StatefulSetUpdateStrategy", stateful_set::check_rollout),
    ("autoscaling/v1", "HorizontalPodAutoscalerSpec", horizontal_pod_autoscaler::check_spec),
    ("autoscaling/v2", "HorizontalPodAutoscalerSpec", horizontal_pod_autoscaler::check_spec),
    ("autoscaling/v2", "MetricTarget", horizontal_pod_autoscaler::check_metric_target),
    ("autoscaling/v2", "ResourceMetricSource", horizontal_pod_autoscaler::check_resource_metric),
    ("batch/v1", "JobSpec", job::check_spec),
    ("batch/v1", "PodFailurePolicyOnExitCodesRequirement", job::check_exit_codes),
    ("core/v1", "Container", pod::types::check_container),
    ("core/v1", "EnvFromSource", pod::types::check_env_from),
    ("core/v1", "EnvVarSource", pod::types::check_env_source),
    ("core/v1", "NodeSelectorRequirement", pod::types::check_node_requirement),
    ("core/v1", "ObjectFieldSelector", pod::types::check_field_selector),
    ("core/v1", "PersistentVolumeClaimSpec", persistent_volume_claim::check_spec),
    ("core/v1", "ResourceFieldSelector", pod::types::check_resource_selector),
    ("core/v1", "ResourceQuotaSpec", resource_quota::check_spec),
    ("core/v1", "ResourceRequirements", pod::types::check_resources),
    ("core/v1", "ServiceSpec", service::check_spec),
    ("core/v1", "Sysctl", pod::types::check_sysctl),
    ("core/v1", "Toleration", pod::types::check_toleration),
    ("events/v1", "Event", event::check),
    ("meta/v1", "LabelSelectorRequirement", label_requirement),
    ("networking/v1", "IngressBackend", ingress::check_backend),
    ("networking/v1", "NetworkPolicyPort", network_policy::check_port),
];

/// The packages and names of the types.
#[cfg(test)]
pub(crate) fn types() -> impl Iterator<Item = (&'static str, &'static str)> {
    CHECKS.iter().map(|(package, name, _)| (*package, *name))
}

pub(crate) fn knows(package: &str, name: &str) -> bool {
    find(package, name).is_some()
}

/// Checks a value of this type.
pub(crate) fn examine(package: &str, name: &str, fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    if let Some(examine) = find(package, name) {
        examine(fields, path, found);
    }
}

fn find(package: &str, name: &str) -> Option<Examine> {
    let found = CHECKS.binary_search_by(|(known, kind, _)| (*known, *kind).cmp(&(package, name))).ok()?;
    Some(CHECKS[found].2)
}

pub(crate) fn number(fields: &Fields, name: &str) -> Option<i64> {
    fields.get(name).and_then(Value::as_i64)
}

pub(crate) fn count(fields: &Fields, names: &[&str]) -> usize {
    names.iter().filter(|name| fields.get(**name).is_some_and(|value| !value.is_null())).count()
}

pub(crate) fn values(fields: &Fields) -> &[Value] {
    fields.get("values").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn label_requirement(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    requirement(fields, path, false, found);
}

pub(crate) fn requirement(fields: &Fields, path: &str, compares: bool, found: &mut Vec<FieldError>) {
    let (operator, values) = (text_at(fields, &["operator"]), values(fields));
    let at = below(path, "values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            found.push(FieldError::required(&at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "In" | "NotIn" => {}
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            found
                .push(FieldError::forbidden(&at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if compares && values.len() != 1 => {
            found.push(FieldError::required(&at, "must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "Gt" | "Lt" if compares => {}
        other => {
            found.push(FieldError::invalid(below(path, "operator"), &other.into(), "not a valid selector operator"));
        }
    }
    let key = text_at(fields, &["key"]);
    let problems = qualified_name_problems(key).into_iter();
    found.extend(problems.map(|problem| FieldError::invalid(below(path, "key"), &key.into(), problem)));
    for (index, value) in values.iter().enumerate() {
        let problems = label_value_problems(value.as_str().unwrap_or_default()).into_iter();
        found.extend(problems.map(|problem| FieldError::invalid(format!("{at}[{index}]"), value, problem)));
    }
}

/// Amounts are not negative.
pub(crate) fn amounts_not_negative(amounts: Option<&Value>, path: &str, found: &mut Vec<FieldError>) {
    for (name, amount) in amounts.and_then(Value::as_object).into_iter().flatten() {
        if Amount::read(amount).is_some_and(|amount| amount < Amount::default()) {
            let detail = super::values::bounds(Some(0), None);
            found.push(FieldError::invalid(format!("{path}[{name}]"), amount, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CHECKS;

    #[test]
    fn the_types_are_sorted() {
        assert!(CHECKS.is_sorted_by_key(|(package, name, _)| (*package, *name)));
    }
}
