//! Validation of CustomResourceDefinitions, with Kubernetes' messages.

use crate::apiextensions::custom_resource_definition::{
    Conversion, CrdNames, CrdVersion, CustomResourceDefinition, Scale,
};
use crate::apiextensions::schemas::field_error;
use crate::crd::status::{APPROVED, Approval, approval_of, is_protected};
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_schema::Schema;
use serde_json::{Value, json};

/// The types of columns.
const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
/// The formats of columns.
const COLUMN_FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";
/// The maximum number of selectable fields.
const MAX_SELECTABLE: usize = 8;

/// Validates a new CRD.
pub(super) fn creation(object: &Object) -> Vec<FieldError> {
    let Some(crd) = CustomResourceDefinition::of(object) else { return unreadable() };
    let mut problems = name_problems(&crd);
    problems.extend(specification(&crd, object, None));
    problems.extend(stored_versions(&crd));
    problems.extend(approval(&crd, None));
    if crd.spec.preserve_unknown_fields {
        problems.push(preserving());
    }
    problems
}

/// Validates an update of a CRD.
pub(super) fn update(object: &Object, old: &Object) -> Vec<FieldError> {
    let (Some(crd), Some(before)) = (CustomResourceDefinition::of(object), CustomResourceDefinition::of(old)) else {
        return unreadable();
    };
    let mut problems = Vec::new();
    // A spec that is stored already does not prevent writes of status and metadata.
    if object.get("spec") != old.get("spec") {
        problems.extend(specification(&crd, object, Some(old)));
        problems.extend(immutable(&crd, &before));
        if crd.spec.preserve_unknown_fields && !before.spec.preserve_unknown_fields {
            problems.push(preserving());
        }
    }
    problems.extend(stored_versions(&crd));
    problems.extend(approval(&crd, Some(&before)));
    problems
}

fn unreadable() -> Vec<FieldError> {
    vec![FieldError::required("spec", "")]
}

fn preserving() -> FieldError {
    let detail =
        "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
    FieldError::invalid("spec.preserveUnknownFields", &true.into(), detail)
}

fn name_problems(crd: &CustomResourceDefinition) -> Vec<FieldError> {
    let name = crd.metadata.name.as_str();
    let expected = format!("{}.{}", crd.spec.names.plural, crd.spec.group);
    let wrong = (name != expected)
        .then(|| FieldError::invalid("metadata.name", &name.into(), "must be spec.names.plural+\".\"+spec.group"));
    wrong.into_iter().collect()
}

fn immutable(crd: &CustomResourceDefinition, before: &CustomResourceDefinition) -> Vec<FieldError> {
    let (new, old) = (&crd.spec, &before.spec);
    let mut pairs = vec![
        ("spec.group", new.group.as_str(), old.group.as_str()),
        ("spec.names.plural", new.names.plural.as_str(), old.names.plural.as_str()),
    ];
    // Scope and kind are immutable as soon as there can be objects.
    if before.holds("Established") {
        pairs.insert(0, ("spec.scope", new.scope.as_str(), old.scope.as_str()));
        pairs.insert(1, ("spec.names.kind", new.names.kind.as_str(), old.names.kind.as_str()));
    }
    let changed = pairs.into_iter().filter(|(_, new, old)| new != old);
    changed.map(|(field, new, _)| FieldError::immutable(field, &new.into())).collect()
}

fn specification(crd: &CustomResourceDefinition, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let spec = &crd.spec;
    let mut problems = group_problems(&spec.group);
    problems.extend(one_of("spec.scope", &spec.scope, &["Cluster", "Namespaced"]));
    let raw = object.at(&["spec", "versions"]).cloned().unwrap_or_else(|| json!([]));
    for (number, version) in spec.versions.iter().enumerate() {
        let before = old.and_then(|old| old.at(&["spec", "versions"])).and_then(Value::as_array);
        let before = before.and_then(|list| list.iter().find(|it| it["name"] == version.name.as_str()));
        problems.extend(version_problems(version, &raw[number], before, &format!("spec.versions[{number}]")));
    }
    let mut names: Vec<&str> = spec.versions.iter().map(|version| version.name.as_str()).collect();
    names.sort_unstable();
    let unique = names.windows(2).all(|pair| pair[0] != pair[1]);
    if !unique {
        problems.push(FieldError::invalid("spec.versions", &raw, "must contain unique version names"));
    }
    if spec.versions.iter().filter(|version| version.storage).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        problems.push(FieldError::invalid("spec.versions", &raw, detail));
    }
    for (field, text) in [
        ("plural", &spec.names.plural),
        ("singular", &spec.names.singular),
        ("kind", &spec.names.kind),
        ("listKind", &spec.names.list_kind),
    ] {
        if text.is_empty() {
            problems.push(FieldError::required(format!("spec.names.{field}"), ""));
        }
    }
    problems.extend(names_problems(&spec.names));
    problems.extend(conversion_problems(&spec.conversion, spec.preserve_unknown_fields));
    problems
}

fn group_problems(group: &str) -> Vec<FieldError> {
    let field = "spec.group";
    if group.is_empty() {
        return vec![FieldError::required(field, "")];
    }
    let wrong = NameRule::Subdomain.check(group);
    match (wrong.is_empty(), group.contains('.')) {
        (false, _) => vec![FieldError::invalid(field, &group.into(), wrong.join(","))],
        (true, false) => {
            vec![FieldError::invalid(field, &group.into(), "should be a domain with at least one dot")]
        }
        (true, true) => Vec::new(),
    }
}

fn one_of(field: &str, value: &str, accepted: &[&str]) -> Option<FieldError> {
    if value.is_empty() {
        return Some(FieldError::required(field, ""));
    }
    let quoted: Vec<String> = accepted.iter().map(|accepted| format!("{accepted:?}")).collect();
    (!accepted.contains(&value)).then(|| FieldError {
        field: field.into(),
        rule: FieldRule::NotSupported(Value::from(value).to_string()),
        detail: format!("supported values: {}", quoted.join(", ")),
    })
}

/// A DNS label that begins with a letter.
fn label(field: String, text: &str) -> Option<FieldError> {
    let wrong = NameRule::ServiceLabel.check(text);
    (!wrong.is_empty()).then(|| FieldError::invalid(field, &text.into(), wrong.join(",")))
}

fn version_problems(version: &CrdVersion, raw: &Value, old: Option<&Value>, path: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    problems.extend(label(format!("{path}.name"), &version.name));
    problems.extend(schema_problems(version, raw, old, path));
    problems.extend(deprecation_problems(version).into_iter().map(|problem| {
        let warning = json!(version.deprecation_warning);
        FieldError::invalid(format!("{path}.deprecationWarning"), &warning, problem)
    }));
    if let Some(scale) = &version.subresources.scale {
        problems.extend(scale_problems(scale, &format!("{path}.subresources.scale")));
    }
    for (number, column) in version.additional_printer_columns.iter().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{number}]");
        if column.name.is_empty() {
            problems.push(FieldError::required(format!("{path}.name"), ""));
        }
        let must = |list: &str| format!("must be one of {list}");
        if column.kind.is_empty() {
            problems.push(FieldError::required(format!("{path}.type"), must(COLUMN_TYPES)));
        } else if !COLUMN_TYPES.split(',').any(|known| known == column.kind) {
            let kind = column.kind.as_str().into();
            problems.push(FieldError::invalid(format!("{path}.type"), &kind, must(COLUMN_TYPES)));
        }
        if !column.format.is_empty() && !COLUMN_FORMATS.split(',').any(|known| known == column.format) {
            let format = column.format.as_str().into();
            problems.push(FieldError::invalid(format!("{path}.format"), &format, must(COLUMN_FORMATS)));
        }
        problems.extend(simple_path(&column.json_path, format!("{path}.JSONPath"), true));
    }
    problems.extend(selectable_problems(version, &format!("{path}.selectableFields")));
    problems
}

/// Validates a schema, unless it is stored already.
fn schema_problems(version: &CrdVersion, raw: &Value, old: Option<&Value>, path: &str) -> Vec<FieldError> {
    let field = format!("{path}.schema.openAPIV3Schema");
    let schema = match raw.pointer("/schema/openAPIV3Schema") {
        None | Some(Value::Null) => return vec![FieldError::required(field, "")],
        Some(schema) => schema,
    };
    let same = |part: &str| old.is_some_and(|old| old.pointer(part) == raw.pointer(part));
    let mut problems = Vec::new();
    if !same("/schema") {
        let found = Schema::compile(schema, &field).err().unwrap_or_default();
        problems.extend(found.iter().map(field_error));
    }
    if version.subresources.status.is_some() && !(same("/schema") && same("/subresources")) {
        problems.extend(Schema::status_subresource_problem(schema, &field).iter().map(field_error));
    }
    for (number, selectable) in version.selectable_fields.iter().enumerate() {
        let place = format!("{path}.selectableFields[{number}].jsonPath");
        let value: Value = selectable.json_path.as_str().into();
        match Schema::selectable_field(schema, &selectable.json_path) {
            Ok(found) if found.is_selectable => {}
            Ok(_) => problems.push(FieldError::invalid(
                place,
                &value,
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats \
                 are allowed.",
            )),
            Err(reason) => {
                problems.push(FieldError::invalid(place, &value, format!("is an invalid path: {reason}")));
            }
        }
    }
    problems
}

fn deprecation_problems(version: &CrdVersion) -> Vec<String> {
    let Some(warning) = &version.deprecation_warning else { return Vec::new() };
    if !version.deprecated {
        return vec!["can only be set for deprecated versions".into()];
    }
    let mut problems = Vec::new();
    if warning.len() > 256 {
        problems.push("must be <= 256 characters long".into());
    }
    if warning.is_empty() {
        problems.push("must not be an empty string".into());
    }
    if let Some((offset, _)) = warning.char_indices().find(|(_, letter)| letter.is_control()) {
        problems.push(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {offset}"
        ));
    }
    problems
}

fn scale_problems(scale: &Scale, path: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let mut check = |text: &str, name: &str, roots: &[&str], what: &str, required: bool| {
        let field = format!("{path}.{name}");
        if let Some(problem) = simple_path(text, field.clone(), required) {
            problems.push(problem);
        } else if !text.is_empty() && !roots.iter().any(|root| text.starts_with(root)) {
            problems.push(FieldError::invalid(field, &text.into(), format!("should be a json path under {what}")));
        }
    };
    check(&scale.spec_replicas_path, "specReplicasPath", &[".spec."], ".spec", true);
    check(&scale.status_replicas_path, "statusReplicasPath", &[".status."], ".status", true);
    let selector = scale.label_selector_path.as_deref().unwrap_or_default();
    check(selector, "labelSelectorPath", &[".spec.", ".status."], "either .spec or .status", false);
    problems
}

fn simple_path(text: &str, field: String, required: bool) -> Option<FieldError> {
    match text.chars().next() {
        None => required.then(|| FieldError::required(field, "")),
        Some('.') => None,
        Some(_) => Some(FieldError::invalid(field, &text.into(), "must be a simple json path starting with .")),
    }
}

fn selectable_problems(version: &CrdVersion, path: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (number, field) in version.selectable_fields.iter().enumerate() {
        let place = format!("{path}[{number}].jsonPath");
        let text = field.json_path.as_str();
        let value: Value = text.into();
        if text.is_empty() {
            problems.push(FieldError::required(place, ""));
        } else if text.starts_with(".metadata") {
            problems.push(FieldError::invalid(place, &value, "must not point to fields in metadata"));
        } else if seen.contains(&text) {
            let rule = FieldRule::Duplicate(value.to_string());
            problems.push(FieldError { field: place, rule, detail: String::new() });
        } else {
            seen.push(text);
        }
    }
    if seen.len() > MAX_SELECTABLE {
        let rule = FieldRule::TooMany(seen.len().to_string());
        let detail = format!("must have at most {MAX_SELECTABLE} items");
        problems.push(FieldError { field: path.into(), rule, detail });
    }
    problems
}

fn names_problems(names: &CrdNames) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let path = "spec.names";
    for (field, text) in [("plural", &names.plural), ("singular", &names.singular)] {
        if !text.is_empty() {
            problems.extend(label(format!("{path}.{field}"), text));
        }
    }
    for (field, text) in [("kind", &names.kind), ("listKind", &names.list_kind)] {
        let wrong = NameRule::ServiceLabel.check(&text.to_lowercase());
        if !text.is_empty() && !wrong.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
            problems.push(FieldError::invalid(format!("{path}.{field}"), &text.as_str().into(), detail));
        }
    }
    for (number, short) in names.short_names.iter().enumerate() {
        problems.extend(label(format!("{path}.shortNames[{number}]"), short));
    }
    if !names.kind.is_empty() && names.kind == names.list_kind {
        let kind = names.list_kind.as_str().into();
        problems.push(FieldError::invalid(format!("{path}.listKind"), &kind, "kind and listKind may not be the same"));
    }
    for (number, category) in names.categories.iter().enumerate() {
        problems.extend(label(format!("{path}.categories[{number}]"), category));
    }
    problems
}

fn conversion_problems(conversion: &Conversion, preserving: bool) -> Vec<FieldError> {
    let path = "spec.conversion";
    let mut problems = Vec::new();
    if conversion.strategy != "None" && preserving {
        let detail = "must be None if spec.preserveUnknownFields is true";
        problems.push(FieldError::invalid(format!("{path}.strategy"), &conversion.strategy.as_str().into(), detail));
    }
    problems.extend(one_of(&format!("{path}.strategy"), &conversion.strategy, &["None", "Webhook"]));
    let client = conversion.webhook.as_ref().and_then(|webhook| webhook.client_config.as_ref());
    if conversion.strategy != "Webhook" {
        if conversion.webhook.is_some() {
            let detail = "should not be set when strategy is not set to Webhook";
            problems.push(FieldError::forbidden(format!("{path}.webhookClientConfig"), detail));
        }
        return problems;
    }
    let field = format!("{path}.webhookClientConfig");
    match client.map(|client| (client.url.as_deref(), client.service.as_ref())) {
        None => problems.push(FieldError::required(field, "required when strategy is set to Webhook")),
        Some((Some(url), None)) => problems.extend(url_problem(url, format!("{field}.url"))),
        Some((None, Some(service))) => {
            for (name, text) in [("name", &service.name), ("namespace", &service.namespace)] {
                if text.is_empty() {
                    problems.push(FieldError::required(format!("{field}.service.{name}"), ""));
                }
            }
            if let Some(port) = service.port.filter(|port| !(1..=65_535).contains(port)) {
                let detail = "port is not valid: must be between 1 and 65535, inclusive";
                problems.push(FieldError::invalid(format!("{field}.service.port"), &port.into(), detail));
            }
        }
        Some(_) => problems.push(FieldError::required(field, "exactly one of url or service is required")),
    }
    let versions = conversion.webhook.as_ref().map(|webhook| webhook.conversion_review_versions.as_slice());
    problems.extend(review_version_problems(versions.unwrap_or_default(), &format!("{path}.conversionReviewVersions")));
    problems
}

fn url_problem(url: &str, field: String) -> Option<FieldError> {
    let parsed = url.parse::<http::Uri>().ok();
    let host = parsed.as_ref().and_then(http::Uri::host).unwrap_or_default();
    let query = parsed.as_ref().and_then(http::Uri::query);
    let secure = parsed.as_ref().and_then(http::Uri::scheme_str) == Some("https");
    let value: Value = url.into();
    let form = "desired format: https://host[/path]";
    match () {
        () if parsed.is_none() => Some(FieldError::required(field, format!("url must be a valid URL: {url}; {form}"))),
        () if !secure => Some(FieldError::invalid(
            field,
            &json!(parsed.as_ref().and_then(http::Uri::scheme_str).unwrap_or_default()),
            format!("'https' is the only allowed URL scheme; {form}"),
        )),
        () if host.is_empty() => Some(FieldError::invalid(field, &value, format!("host must be specified; {form}"))),
        () if query.is_some() => {
            Some(FieldError::invalid(field, &json!(query), "query parameters are not permitted in the URL"))
        }
        () => None,
    }
}

fn review_version_problems(versions: &[String], path: &str) -> Vec<FieldError> {
    if versions.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut problems = Vec::new();
    for (number, version) in versions.iter().enumerate() {
        let field = format!("{path}[{number}]");
        match versions[..number].contains(version) {
            true => problems.push(FieldError::invalid(field, &version.as_str().into(), "duplicate version")),
            false => problems.extend(label(field, version)),
        }
    }
    if !versions.iter().any(|version| version == "v1" || version == "v1beta1") {
        problems.push(FieldError::invalid(path, &json!(versions), "must include at least one of v1, v1beta1"));
    }
    problems
}

/// The stored versions must be in the spec, and include the storage version.
fn stored_versions(crd: &CustomResourceDefinition) -> Vec<FieldError> {
    let path = "status.storedVersions";
    let stored = &crd.status.stored_versions;
    if stored.is_empty() {
        return vec![FieldError::invalid(path, &json!(stored), "must have at least one stored version")];
    }
    let mut problems = Vec::new();
    if let Some(storage) = crd.storage_version().filter(|name| !stored.iter().any(|known| known == name)) {
        problems.push(FieldError::invalid(path, &json!(stored), format!("must have the storage version {storage}")));
    }
    for (number, name) in stored.iter().enumerate() {
        if !crd.spec.versions.iter().any(|version| version.name == *name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from \
                 status.storedVersions"
            );
            problems.push(FieldError::invalid(format!("{path}[{number}]"), &name.as_str().into(), detail));
        }
    }
    problems
}

/// Protected groups need the approval annotation.
fn approval(crd: &CustomResourceDefinition, before: Option<&CustomResourceDefinition>) -> Option<FieldError> {
    if !is_protected(&crd.spec.group) {
        return None;
    }
    let annotation = |it: &CustomResourceDefinition| it.metadata.annotations.get(APPROVED).cloned().unwrap_or_default();
    let given = annotation(crd);
    let (state, reason) = approval_of(&given);
    if before.is_some_and(|before| approval_of(&annotation(before)).0 == state) {
        return None;
    }
    let field = format!("metadata.annotations[{APPROVED}]");
    match state {
        Approval::Approved | Approval::Bypassed => None,
        Approval::Missing => Some(FieldError::required(field, reason)),
        Approval::Invalid => Some(FieldError::invalid(field, &given.as_str().into(), reason)),
    }
}
