//! An APIService as the aggregator reads it, and its condition `Available`.

use crate::discovery::aggregation::Priority;
use crate::resource::object_meta;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The group and version of APIServices themselves. They are always served locally.
pub(super) const GROUP: &str = "apiregistration.k8s.io";
/// The label of APIServices that the server manages.
pub(super) const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// The port of a service whose APIService names none.
const DEFAULT_PORT: u16 = 443;
/// The type of the only condition.
const AVAILABLE: &str = "Available";

/// An APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiService {
    /// Its name, `VERSION.GROUP`.
    pub(super) name: String,
    /// The group-version that it describes.
    pub(super) version: GroupVersion,
    /// Its position in discovery.
    pub(super) priority: Priority,
    /// Where the server behind it is; `None` for a local one.
    pub(super) backend: Option<BackendSpec>,
    /// Who manages it.
    pub(super) managed: Managed,
    /// The stored condition.
    pub(super) condition: Option<Condition>,
}

/// The server behind an APIService, and how its certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackendSpec {
    /// The service's namespace.
    pub(super) namespace: String,
    /// The service's name.
    pub(super) name: String,
    /// The service's port.
    pub(super) port: u16,
    /// How the server's certificate is verified.
    pub(super) verification: Verification,
}

/// How the certificate of a server is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verification {
    /// With the CAs of the operating system.
    SystemRoots,
    /// With these CAs, in PEM.
    CaBundle(Vec<u8>),
    /// Not at all.
    Skip,
}

/// Who manages an APIService, by its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Managed {
    /// A user.
    ByUser,
    /// The server, when it starts: built-in group-versions.
    OnStart,
    /// The server, at all times: the group-versions of custom resources.
    Always,
}

/// The condition `Available`, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// The status: `True`, `False` or `Unknown`.
    pub(super) status: String,
    /// The reason.
    pub(super) reason: String,
    /// The message.
    pub(super) message: String,
}

impl Managed {
    /// The value of the label.
    pub(super) fn label(self) -> Option<&'static str> {
        match self {
            Managed::ByUser => None,
            Managed::OnStart => Some("onstart"),
            Managed::Always => Some("true"),
        }
    }
}

impl ApiService {
    /// Reads an APIService; `None` if it names no valid group-version.
    pub(super) fn read(object: &Object) -> Option<Self> {
        let version = GroupVersion::new(object.text(&["spec", "group"]), object.text(&["spec", "version"])).ok()?;
        let number = |field: &str| object.at(&["spec", field]).and_then(Value::as_i64).unwrap_or_default();
        let managed = match object.label(AUTOMANAGED) {
            Some("onstart") => Managed::OnStart,
            Some("true") => Managed::Always,
            _ => Managed::ByUser,
        };
        Some(ApiService {
            name: object.name().to_string(),
            version,
            priority: Priority { group: number("groupPriorityMinimum"), version: number("versionPriority") },
            backend: object
                .at(&["spec", "service"])
                .filter(|it| it.is_object())
                .map(|it| BackendSpec::read(it, object)),
            managed,
            condition: available_condition(object).map(Condition::read),
        })
    }

    /// Whether its condition is true.
    pub(super) fn is_available(&self) -> bool {
        self.condition.as_ref().is_some_and(Condition::is_true)
    }
}

impl BackendSpec {
    fn read(service: &Value, object: &Object) -> Self {
        let text = |field: &str| service[field].as_str().unwrap_or_default().to_string();
        let bundle = object.text(&["spec", "caBundle"]);
        let skip = object.at(&["spec", "insecureSkipTLSVerify"]).and_then(Value::as_bool).unwrap_or_default();
        let verification = match (skip, bundle) {
            (true, _) => Verification::Skip,
            (false, "") => Verification::SystemRoots,
            // A bundle that is not base64 trusts nobody.
            (false, bundle) => Verification::CaBundle(STANDARD.decode(bundle).unwrap_or_default()),
        };
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        BackendSpec {
            namespace: text("namespace"),
            name: text("name"),
            port: port.unwrap_or(DEFAULT_PORT),
            verification,
        }
    }
}

impl Condition {
    /// The condition of every local APIService.
    pub(super) fn local() -> Self {
        Condition::new("True", "Local", "Local APIServices are always available".into())
    }

    /// A condition.
    pub(super) fn new(status: &str, reason: &str, message: String) -> Self {
        Condition { status: status.into(), reason: reason.into(), message }
    }

    /// Whether it says that the server is available.
    pub(super) fn is_true(&self) -> bool {
        self.status == "True"
    }

    fn read(condition: &Value) -> Self {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_string();
        Condition { status: text("status"), reason: text("reason"), message: text("message") }
    }

    /// The condition as it is stored, with the time of its last transition.
    fn stored(&self, transition: &str) -> Value {
        json!({
            "type": AVAILABLE, "status": self.status, "lastTransitionTime": transition,
            "reason": self.reason, "message": self.message,
        })
    }

    /// Sets this condition in an APIService. The time of the transition stays while the status is the same.
    pub(super) fn set_in(&self, object: &mut Object) {
        let before = available_condition(object);
        let same = before.filter(|before| before["status"] == self.status.as_str());
        let transition = same.and_then(|before| before["lastTransitionTime"].as_str()).map(str::to_string);
        let stored = self.stored(&transition.unwrap_or_else(object_meta::now));
        let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array);
        let mut conditions = conditions.cloned().unwrap_or_default();
        match conditions.iter_mut().find(|condition| condition["type"] == AVAILABLE) {
            Some(condition) => *condition = stored,
            None => conditions.push(stored),
        }
        object.set_at(&["status", "conditions"], Some(conditions.into()));
    }
}

fn available_condition(object: &Object) -> Option<&Value> {
    let conditions = object.at(&["status", "conditions"])?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == AVAILABLE)
}

/// The APIService of a local group-version.
pub(super) fn local(version: &GroupVersion, priority: Priority, managed: Managed) -> Object {
    let mut object = Object::from_value(json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {
            "name": name_of(version), "labels": {AUTOMANAGED: managed.label()},
            "uid": restow_host::uuid().to_string(), "creationTimestamp": object_meta::now(),
        },
        "spec": {
            "version": version.version(),
            "groupPriorityMinimum": priority.group, "versionPriority": priority.version,
        },
    }))
    .unwrap_or_default();
    // As its type writes it: an empty group is left out, and nothing is rewritten by a migration.
    let group = Some(version.group()).filter(|group| !group.is_empty());
    object.set_at(&["spec", "group"], group.map(Value::from));
    Condition::local().set_in(&mut object);
    object
}

/// The name of the APIService of a group-version.
pub(super) fn name_of(version: &GroupVersion) -> String {
    format!("{}.{}", version.version(), version.group())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn a_service_is_read_with_its_default_port_and_its_verification() {
        let check = |spec: Value, port: u16, verification: Verification| {
            let mut value = json!({"metadata": {"name": "v1.a.example"}, "spec": spec});
            value["spec"]["group"] = "a.example".into();
            value["spec"]["version"] = "v1".into();
            let backend = ApiService::read(&object(value)).unwrap().backend.unwrap();
            assert_eq!((backend.port, backend.verification), (port, verification));
        };
        let service = json!({"namespace": "n", "name": "s"});
        check(json!({"service": service}), 443, Verification::SystemRoots);
        check(json!({"service": service, "caBundle": "YQ=="}), 443, Verification::CaBundle(b"a".to_vec()));
        check(json!({"service": service, "caBundle": "%"}), 443, Verification::CaBundle(Vec::new()));
        let other = json!({"namespace": "n", "name": "s", "port": 8443});
        check(json!({"service": other, "insecureSkipTLSVerify": true}), 8443, Verification::Skip);
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let mut service = object(json!({"status": {"conditions": [
            {"type": "Other", "status": "True"},
            {"type": "Available", "status": "True", "reason": "Passed", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        ]}}));
        Condition::new("True", "Local", String::new()).set_in(&mut service);
        let available = available_condition(&service).unwrap();
        assert_eq!(
            (&available["reason"], &available["lastTransitionTime"]),
            (&json!("Local"), &json!("2020-01-01T00:00:00Z"))
        );
        Condition::new("False", "ServiceNotFound", String::new()).set_in(&mut service);
        assert_ne!(available_condition(&service).unwrap()["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert_eq!(service.at(&["status", "conditions"]).unwrap().as_array().unwrap().len(), 2);
    }
}
