//! Kinds that were moved to another group or renamed, and whose objects may still be stored as before.
//!
//! kube-apiserver silently keeps reading such objects from the folder of their current resource.

/// A group and a kind.
type GroupKind = (&'static str, &'static str);

/// The old and the current group and kind.
const MOVED: &[(GroupKind, GroupKind)] = &[
    (("apps", "PetSet"), ("apps", "StatefulSet")),
    (("batch", "ScheduledJob"), ("batch", "CronJob")),
    (("events.k8s.io", "Event"), ("", "Event")),
    (("extensions", "DaemonSet"), ("apps", "DaemonSet")),
    (("extensions", "Deployment"), ("apps", "Deployment")),
    (("extensions", "HorizontalPodAutoscaler"), ("autoscaling", "HorizontalPodAutoscaler")),
    (("extensions", "Ingress"), ("networking.k8s.io", "Ingress")),
    (("extensions", "Job"), ("batch", "Job")),
    (("extensions", "NetworkPolicy"), ("networking.k8s.io", "NetworkPolicy")),
    (("extensions", "PodSecurityPolicy"), ("policy", "PodSecurityPolicy")),
    (("extensions", "ReplicaSet"), ("apps", "ReplicaSet")),
];

/// The current group and kind; `None` if they never moved.
pub(super) fn moved_to(group: &str, kind: &str) -> Option<GroupKind> {
    MOVED.iter().find(|(from, _)| *from == (group, kind)).map(|(_, to)| *to)
}
