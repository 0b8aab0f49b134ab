//! Admission of new pods: the plugins ServiceAccount (account, image pull secrets and token), Priority, and
//! DefaultTolerationSeconds.

use crate::admission::AdmissionCall;
use crate::admission::plugins::{forbidden, stored};
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::object_meta;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The default service account.
const DEFAULT_ACCOUNT: &str = "default";
/// The classes that exist even if they are not stored.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
/// The taints that a pod tolerates for a while by default.
const TOLERATED: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// For how many seconds it does.
const TOLERATION_SECONDS: i64 = 300;

/// The name prefix and mount path of the volume with the service account token, and the lifetime of the token. A lifetime of
/// 3607 seconds tells the token issuer that the kubelet renews the token.
const TOKEN_VOLUME: &str = "kube-api-access-";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_SECONDS: u64 = 3607;

/// A PriorityClass.
struct Class {
    name: String,
    priority: i64,
    preemption: String,
}

pub(super) async fn complete(call: &AdmissionCall<'_>, object: &mut Object) -> Result<(), ApiError> {
    let Some(mut spec) = object.get("spec").cloned().filter(Value::is_object) else { return Ok(()) };
    if spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        spec["serviceAccountName"] = DEFAULT_ACCOUNT.into();
    }
    spec["serviceAccount"] = spec["serviceAccountName"].clone();
    prioritize(call, object.name(), &mut spec).await?;
    tolerate(&mut spec);
    let name = spec["serviceAccountName"].as_str().unwrap_or_default().to_string();
    let namespace = &call.target.namespace;
    let Some(account) = call.admission.namespaces.service_account(namespace, &name).await? else {
        let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
        return Err(forbidden(call, object.name(), why));
    };
    inherit(&account, &mut spec);
    object.set("spec", Some(spec));
    Ok(())
}

/// Adds the image pull secrets of the service account, and a volume with its token.
fn inherit(account: &Object, spec: &mut Value) {
    let list = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
    if let Some(secrets) = account.get("imagePullSecrets").filter(|secrets| list(secrets))
        && !list(&spec["imagePullSecrets"])
    {
        spec["imagePullSecrets"] = secrets.clone();
    }
    let wish = spec["automountServiceAccountToken"].as_bool();
    let usual = account.get("automountServiceAccountToken").and_then(Value::as_bool);
    if wish.or(usual).unwrap_or(true) {
        mount_token(spec);
    }
}

/// Mounts the token of the service account in all containers that mount nothing at its path.
fn mount_token(spec: &mut Value) {
    let volumes = spec["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let own = |volume: &&Value| {
        volume["name"].as_str().is_some_and(|name| name.starts_with(TOKEN_VOLUME)) && !volume["projected"].is_null()
    };
    let found = volumes.iter().find(own).and_then(|volume| volume["name"].as_str()).map(str::to_string);
    let name = found.clone().unwrap_or_else(|| format!("{TOKEN_VOLUME}{}", object_meta::random_suffix()));
    let mut mounted = false;
    for field in ["initContainers", "containers"] {
        let containers = spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let mounts = container.entry("volumeMounts").or_insert(Value::Null);
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if !mounts.iter().any(|mount| mount["mountPath"] == TOKEN_PATH) {
                mounts.push(json!({"name": name, "mountPath": TOKEN_PATH, "readOnly": true}));
                mounted = true;
            }
        }
    }
    if !mounted || found.is_some() {
        return;
    }
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]);
    let volume = json!({"name": name, "projected": {"defaultMode": 0o644, "sources": sources}});
    match spec["volumes"].as_array_mut() {
        Some(volumes) => volumes.push(volume),
        None => spec["volumes"] = json!([volume]),
    }
}

/// Sets the priority of the pod's class, or of the default class.
async fn prioritize(call: &AdmissionCall<'_>, pod: &str, spec: &mut Value) -> Result<(), ApiError> {
    let named = spec["priorityClassName"].as_str().unwrap_or_default().to_string();
    let class = match named.as_str() {
        "" => default_class(call).await?,
        name => Some(class_named(call, pod, name).await?),
    };
    let priority = class.as_ref().map_or(0, |class| class.priority);
    let preemption = class.as_ref().map(|class| class.preemption.clone()).filter(|policy| !policy.is_empty());
    let preemption = preemption.unwrap_or_else(|| "PreemptLowerPriority".into());
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        let message = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        );
        return Err(forbidden(call, pod, message));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != preemption) {
        let message = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller \
             computed {preemption} from the given PriorityClass name"
        );
        return Err(forbidden(call, pod, message));
    }
    if let Some(class) = class.filter(|_| named.is_empty()) {
        spec["priorityClassName"] = class.name.into();
    }
    spec["priority"] = priority.into();
    spec["preemptionPolicy"] = preemption.into();
    Ok(())
}

fn class_of(object: &Object) -> Class {
    Class {
        name: object.name().to_string(),
        priority: object.get("value").and_then(Value::as_i64).unwrap_or_default(),
        preemption: object.text(&["preemptionPolicy"]).to_string(),
    }
}

fn classes() -> Result<GroupVersion, ApiError> {
    GroupVersion::new("scheduling.k8s.io", "v1").map_err(|error| ApiError::Internal(error.to_string()))
}

async fn class_named(call: &AdmissionCall<'_>, pod: &str, name: &str) -> Result<Class, ApiError> {
    let (registry, version) = (call.admission.core.registry(), classes()?);
    if let Some(resource) = registry.find(&version, "priorityclasses") {
        let place = ObjectRef { resource, version: &version, namespace: "", name };
        if let Some(entry) = call.admission.core.objects().get(place).await? {
            return Ok(class_of(&resource.decode(&entry, &version).await?));
        }
    }
    match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
        Some((name, priority)) => Ok(Class { name: name.to_string(), priority: *priority, preemption: String::new() }),
        None => Err(forbidden(call, pod, format!("no PriorityClass with name {name} was found"))),
    }
}

/// The default class; of several, the one with the lowest priority.
async fn default_class(call: &AdmissionCall<'_>) -> Result<Option<Class>, ApiError> {
    let classes = stored(call, &classes()?, "priorityclasses", "").await?;
    let defaults = classes.iter().filter(|class| class.get("globalDefault") == Some(&Value::Bool(true)));
    Ok(defaults.map(class_of).min_by_key(|class| class.priority))
}

/// Adds tolerations of nodes that are not ready or unreachable.
fn tolerate(spec: &mut Value) {
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for key in TOLERATED {
        let covered = tolerations.iter().any(|toleration| {
            let text = |field: &str| toleration[field].as_str().unwrap_or_default();
            (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
        });
        if !covered {
            tolerations
                .push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}));
        }
    }
    spec["tolerations"] = tolerations.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_mount_the_token_of_their_account_unless_automount_is_off() {
        let account = |fields: Value| Object::from_value(fields).unwrap();
        let mounts = |account: Object, mut spec: Value| {
            inherit(&account, &mut spec);
            let all = spec["containers"].as_array().into_iter().flatten();
            let paths = all.flat_map(|container| container["volumeMounts"].as_array().cloned().unwrap_or_default());
            let paths: Vec<String> =
                paths.map(|mount| mount["mountPath"].as_str().unwrap_or_default().into()).collect();
            (paths, spec["volumes"].as_array().map_or(0, Vec::len))
        };
        let place = || vec![TOKEN_PATH.to_string()];
        let plain = json!({"containers": [{"name": "a"}]});
        assert_eq!(mounts(account(json!({})), plain.clone()), (place(), 1));
        let silent = json!({"automountServiceAccountToken": false});
        assert_eq!(mounts(account(silent.clone()), plain.clone()), (vec![], 0));
        let wishes = json!({"containers": [{"name": "a"}], "automountServiceAccountToken": true});
        assert_eq!(mounts(account(silent), wishes), (place(), 1));
        let refuses = json!({"containers": [{"name": "a"}], "automountServiceAccountToken": false});
        assert_eq!(mounts(account(json!({})), refuses), (vec![], 0));
        let own = json!({"containers": [{"name": "a", "volumeMounts": [{"name": "x", "mountPath": TOKEN_PATH}]}]});
        assert_eq!(mounts(account(json!({})), own), (place(), 0));
    }

    #[test]
    fn running_the_plugin_again_changes_nothing() {
        let account = Object::from_value(json!({"imagePullSecrets": [{"name": "s"}]})).unwrap();
        let mut spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "b"}]});
        inherit(&account, &mut spec);
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "s"}]));
        let before = spec.clone();
        inherit(&account, &mut spec);
        assert_eq!(spec, before);
    }

    #[test]
    fn pods_get_only_tolerations_that_they_do_not_have() {
        let keys = |tolerations: Value| {
            let mut spec = json!({"tolerations": tolerations});
            tolerate(&mut spec);
            let all = spec["tolerations"].as_array().cloned().unwrap_or_default();
            all.iter().map(|one| one["key"].as_str().unwrap_or("*").to_string()).collect::<Vec<_>>()
        };
        assert_eq!(keys(Value::Null), TOLERATED);
        assert_eq!(keys(json!([{"operator": "Exists"}])), ["*"]);
        assert_eq!(keys(json!([{"key": TOLERATED[1], "effect": "NoExecute"}])), [TOLERATED[1], TOLERATED[0]]);
        assert_eq!(keys(json!([{"key": "a", "effect": "NoExecute"}])), ["a", TOLERATED[0], TOLERATED[1]]);
    }
}
