//! The embedded table is whole, and malformed text is refused.

use super::*;
use crate::types::shape::Form;

#[test]
fn the_embedded_text_is_a_table() {
    let table = TypeTable::parse(TEXT).unwrap();
    assert!(table.len() > 1500, "{}", table.len());
    assert_eq!(TypeTable::shared().len(), table.len());
}

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

#[test]
fn every_reference_and_every_merge_key_exists() {
    let table = TypeTable::shared();
    for id in table.ids() {
        for field in table.fields(id) {
            // Some list kinds declare a merge key that their items lack; nobody patches a list of objects.
            let Some(key) = table.extra(field).merge_key.filter(|_| field.name != "items") else { continue };
            let Form::List(element) = table.target_form(field.shape) else { continue };
            let Form::Struct(element) = table.target_form(element) else { continue };
            let found = table.field_by_name(element, key, &mut Vec::new());
            assert!(found.is_some(), "{}.{} is merged by {key}", table.name(id), field.name);
        }
        let mut numbers: Vec<_> = table.fields_by_number(id).map(|field| field.number).collect();
        assert!(numbers.is_sorted(), "{}", table.name(id));
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{} has a number twice", table.name(id));
    }
}

#[test]
fn refuses_malformed_text() {
    for (text, problem) in [
        ("struct", "line 1: a type needs a name"),
        ("package a\nstruct B\nstruct A", "line 3: types are not sorted"),
        ("package a\nstruct A\n x b string", "line 3: a field needs a number"),
        ("package a\nstruct A\n 1 b Nothing", "line 3: unknown type"),
        ("package a\nstruct A\n 1 b c.D", "line 3: unknown package"),
        ("package a\nstruct A\n 1 b string nonsense", "line 3: unknown word after a field's type"),
        ("package a\nscalar A string\n 1 b string", "line 3: a field outside a struct"),
        ("package a\nclass A", "line 2: unknown kind of line"),
    ] {
        assert_eq!(TypeTable::parse(text).unwrap_err().to_string(), problem, "{text}");
    }
}
