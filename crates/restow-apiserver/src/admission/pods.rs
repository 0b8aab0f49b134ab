//! What a new pod is given by every cluster: its service account, its priority, and patience with nodes that are gone.

use crate::admission::builtin::{forbidden, stored};
use crate::auth::service_account::ServiceAccounts;
use crate::error::ApiError;
use crate::object::Object;
use crate::object_store::Place;
use crate::verbs::Call;
use restow_api::GroupVersion;
use serde_json::{Value, json};

/// The service account of pods that name none.
const DEFAULT_ACCOUNT: &str = "default";
/// The classes that every cluster has, whether somebody wrote them down or not.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
/// What a pod waits out for a while when its node shows it.
const PASSING: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// For how many seconds it does.
const PATIENCE: i64 = 300;

/// What a pod's class gives it.
struct Class {
    name: String,
    priority: i64,
    preemption: String,
}

pub(super) async fn complete(call: &Call<'_>, object: &mut Object) -> Result<(), ApiError> {
    let Some(mut spec) = object.get("spec").cloned().filter(Value::is_object) else { return Ok(()) };
    if spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        spec["serviceAccountName"] = DEFAULT_ACCOUNT.into();
    }
    spec["serviceAccount"] = spec["serviceAccountName"].clone();
    prioritize(call, object.name(), &mut spec).await?;
    tolerate(&mut spec);
    let account = spec["serviceAccountName"].as_str().unwrap_or_default().to_string();
    object.set("spec", Some(spec));
    let namespace = &call.target.namespace;
    if call.server.access().uid_of(namespace, &account).is_some()
        || call.server.has_account(namespace, &account).await?
    {
        return Ok(());
    }
    Err(forbidden(
        call,
        object.name(),
        format!("error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"),
    ))
}

/// Sets the priority that the pod's class has, or the class of pods that name none.
async fn prioritize(call: &Call<'_>, pod: &str, spec: &mut Value) -> Result<(), ApiError> {
    let named = spec["priorityClassName"].as_str().unwrap_or_default().to_string();
    let class = match named.as_str() {
        "" => default_class(call).await?,
        name => Some(class_named(call, pod, name).await?),
    };
    let priority = class.as_ref().map_or(0, |class| class.priority);
    let preemption = class.as_ref().map(|class| class.preemption.clone()).filter(|policy| !policy.is_empty());
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        let message = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        );
        return Err(forbidden(call, pod, message));
    }
    if let Some(class) = class.filter(|_| named.is_empty()) {
        spec["priorityClassName"] = class.name.into();
    }
    spec["priority"] = priority.into();
    if spec["preemptionPolicy"].is_null() {
        spec["preemptionPolicy"] = preemption.unwrap_or_else(|| "PreemptLowerPriority".into()).into();
    }
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

async fn class_named(call: &Call<'_>, pod: &str, name: &str) -> Result<Class, ApiError> {
    let (registry, version) = (call.server.registry(), classes()?);
    if let Some(resource) = registry.find(&version, "priorityclasses") {
        let place = Place { resource, version: &version, namespace: "", name };
        if let Some(entry) = call.server.objects().get(place).await? {
            return Ok(class_of(&resource.decode(&entry, &version).await?));
        }
    }
    match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
        Some((name, priority)) => Ok(Class { name: name.to_string(), priority: *priority, preemption: String::new() }),
        None => Err(forbidden(call, pod, format!("no PriorityClass with name {name} was found"))),
    }
}

/// The class of pods that name none: of several, the lowest.
async fn default_class(call: &Call<'_>) -> Result<Option<Class>, ApiError> {
    let classes = stored(call, &classes()?, "priorityclasses", "").await?;
    let defaults = classes.iter().filter(|class| class.get("globalDefault") == Some(&Value::Bool(true)));
    Ok(defaults.map(class_of).min_by_key(|class| class.priority))
}

/// A pod stays for a while on a node that is gone, unless it says otherwise.
fn tolerate(spec: &mut Value) {
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for key in PASSING {
        let covered = tolerations.iter().any(|toleration| {
            let text = |field: &str| toleration[field].as_str().unwrap_or_default();
            (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
        });
        if !covered {
            tolerations
                .push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": PATIENCE}));
        }
    }
    spec["tolerations"] = tolerations.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_tolerates_everything_is_given_nothing() {
        let keys = |tolerations: Value| {
            let mut spec = json!({"tolerations": tolerations});
            tolerate(&mut spec);
            let all = spec["tolerations"].as_array().cloned().unwrap_or_default();
            all.iter().map(|one| one["key"].as_str().unwrap_or("*").to_string()).collect::<Vec<_>>()
        };
        assert_eq!(keys(Value::Null), PASSING);
        assert_eq!(keys(json!([{"operator": "Exists"}])), ["*"]);
        assert_eq!(keys(json!([{"key": PASSING[1], "effect": "NoExecute"}])), [PASSING[1], PASSING[0]]);
        assert_eq!(keys(json!([{"key": "a", "effect": "NoExecute"}])), ["a", PASSING[0], PASSING[1]]);
    }
}
