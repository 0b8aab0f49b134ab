//! Tests of the rows of the table and of their errors.

use super::*;
use serde_json::json;

fn check(object: Value, expected: &[&str]) {
    let found = problems(&Object::from_value(object.clone()).unwrap());
    let found: Vec<String> =
        found.iter().map(|problem| format!("{}: {}", problem.field, problem.cause_message())).collect();
    assert_eq!(found, expected, "{object}");
}

#[test]
fn the_types_with_special_checks_exist() {
    for (package, name) in by_type::types() {
        assert!(TypeTable::shared().type_by_name(&format!("{package}.{name}")).is_some(), "{package}.{name}");
    }
}

#[test]
fn checks_apply_wherever_a_type_occurs() {
    let spec = json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "name": "Web"}],
        "livenessProbe": {"httpGet": {"port": 0}}}]});
    let problems = |path: &str| {
        vec![
            format!(
                "{path}.containers[0].livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive"
            ),
            format!(
                "{path}.containers[0].ports[0].name: Invalid value: \"Web\": must contain only alpha-numeric characters \
                 (a-z, 0-9), and hyphens (-)"
            ),
        ]
    };
    for (version, kind, object, path) in [
        ("v1", "Pod", json!({"spec": spec}), "spec"),
        ("apps/v1", "Deployment", json!({"spec": {"template": {"spec": spec}}}), "spec.template.spec"),
        (
            "batch/v1",
            "CronJob",
            json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}}),
            "spec.jobTemplate.spec.template.spec",
        ),
    ] {
        let mut object = object;
        object["apiVersion"] = version.into();
        object["kind"] = kind.into();
        let expected = problems(path);
        check(object, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn an_unset_field_is_valid_unless_it_is_required() {
    let subset = |port: Value| {
        json!({"apiVersion": "v1", "kind": "Endpoints",
            "subsets": [{"addresses": [{"ip": "10.0.0.1", "nodeName": null}], "ports": [port]}]})
    };
    check(subset(json!({"port": 1})), &[]);
    check(subset(json!({})), &["subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"]);
    let policy = |policy: Value| json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"unhealthyPodEvictionPolicy": policy}});
    check(policy(Value::Null), &[]);
    check(
        policy("".into()),
        &["spec.unhealthyPodEvictionPolicy: Unsupported value: \"\": supported values: \"AlwaysAllow\", \
           \"IfHealthyBudget\""],
    );
}

#[test]
fn kinds_without_checks_are_skipped() {
    let kind = |version: &str, kind: &str| TypeTable::shared().kind(version, kind).unwrap();
    assert!(CONCERNED.contains(&kind("apps/v1", "StatefulSet")));
    assert!(!CONCERNED.contains(&kind("v1", "ConfigMap")) && !CONCERNED.contains(&kind("v1", "Secret")));
}

#[test]
fn an_int_or_percent_value_is_validated() {
    for (value, expected) in [
        (json!(0), None),
        (json!("25%"), None),
        (json!("101%"), Some("must not be greater than 100%")),
        (json!(-1), Some("must be greater than or equal to 0")),
    ] {
        assert_eq!(values::share(&value, true).as_deref(), expected, "{value}");
    }
    for text in ["", "%", "x%", "5"] {
        assert!(values::share(&text.into(), false).is_some_and(|detail| detail.contains("percent")), "{text}");
    }
}

#[test]
fn ip_addresses_and_ranges_may_have_leading_zeros() {
    let rule = |name: &str, text: &str| values::text_problems(checks::TextForm::parse(name).unwrap())(text).is_empty();
    for text in ["10.0.0.1", "010.0.0.1", "::1", "2001:db8::1"] {
        assert!(rule("ip", text), "{text}");
        assert!(rule("cidr", &format!("{text}/8")), "{text}");
    }
    for text in ["", "1.2.3", "1.2.3.256", "a", "1.2.3.4.5", "::g"] {
        assert!(!rule("ip", text), "{text}");
    }
    assert!(!rule("cidr", "10.0.0.0/33") && !rule("cidr", "10.0.0.0"));
}
