//! Kinds that have moved to another group, or were renamed, and whose objects may still be stored as what they were.
//!
//! kube-apiserver goes on reading such objects from the folder of their present resource, and says nothing of it.

/// A group and a kind.
type GroupKind = (&'static str, &'static str);

/// What objects were stored as, and what stands for that since.
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

/// The group and the kind that stand for these today; `None` where they never moved.
pub(super) fn moved_to(group: &str, kind: &str) -> Option<GroupKind> {
    MOVED.iter().find(|(from, _)| *from == (group, kind)).map(|(_, to)| *to)
}
