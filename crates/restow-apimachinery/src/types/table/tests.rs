//! Kinds are found in the embedded table.

use super::*;

#[test]
fn finds_kinds_by_group_and_version() {
    let table = TypeTable::shared();
    for (api_version, kind) in [
        ("v1", "Pod"),
        ("v1", "PodList"),
        ("v1", "List"),
        ("v1", "Status"),
        ("apps/v1", "Deployment"),
        ("apps/v1", "DeleteOptions"),
        ("example.com/v1", "DeleteOptions"),
        ("authentication.k8s.io/v1", "TokenReview"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("apiregistration.k8s.io/v1", "APIService"),
        ("meta.k8s.io/v1", "PartialObjectMetadataList"),
        ("flowcontrol.apiserver.k8s.io/v1beta3", "FlowSchema"),
        ("resource.k8s.io/v1alpha2", "ResourceClass"),
        ("networking.k8s.io/v1alpha1", "ClusterCIDR"),
        ("discovery.k8s.io/v1beta1", "EndpointSlice"),
    ] {
        assert_eq!(table.kind(api_version, kind).map(|id| table.name(id)), Some(kind), "{api_version} {kind}");
    }
    for (api_version, kind) in [
        ("apps/v1", "Pod"),
        ("v1", "PodSpec"),
        ("example.com/v1", "Status"),
        ("v2", "Pod"),
        ("", ""),
        ("resource", "Quantity"),
    ] {
        assert_eq!(table.kind(api_version, kind), None, "{api_version} {kind}");
    }
}
