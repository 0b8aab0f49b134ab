//! Objects whose encoding was written down by hand, the zero-value rules, and input that means no good.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::types::decode_json;

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.raw(MAGIC);
    writer
        .message(1, |writer| {
            writer.bytes(1, api_version.as_bytes());
            writer.bytes(2, kind.as_bytes());
            Ok(())
        })
        .unwrap();
    writer.bytes(2, raw);
    writer.bytes(3, b"");
    writer.bytes(4, b"");
    writer.finish()
}

#[test]
fn writes_the_bytes_that_go_writes() {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n"},
        "spec": {"holderIdentity": "h", "leaseDurationSeconds": 2, "renewTime": "2004-01-01T01:01:01.000004Z"},
    });
    let metadata = b"\x0a\x01n\x12\0\x1a\0\x22\0\x2a\0\x32\0\x38\0\x42\0";
    let spec = b"\x0a\x01h\x10\x02\x22\x09\x08\xcd\xe2\xcd\xff\x03\x10\xa0\x1f";
    let mut raw = vec![0x0a, metadata.len() as u8];
    raw.extend_from_slice(metadata);
    raw.extend([0x12, spec.len() as u8]);
    raw.extend_from_slice(spec);
    let bytes = envelope("coordination.k8s.io/v1", "Lease", &raw);
    assert_eq!(encode_protobuf(&lease).unwrap(), bytes);
    assert_eq!(decode_protobuf(&bytes).unwrap(), lease);
}

#[test]
fn reads_messages_that_leave_zero_values_out() {
    // Clients of other languages do that. The pod's spec has one container, named by field 1.
    let bytes = envelope("v1", "Pod", b"\x12\x05\x12\x03\x0a\x01c");
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {},
        "spec": {"containers": [{"name": "c", "resources": {}}]}, "status": {},
    });
    assert_eq!(decode_protobuf(&bytes).unwrap(), expected);
}

#[test]
fn keeps_set_pointers_and_drops_unset_values() {
    for (api_version, kind, object) in [
        (
            "apps/v1",
            "Deployment",
            json!({"metadata": {}, "spec": {"replicas": 0, "selector": {}, "strategy": {},
            "template": {"metadata": {}, "spec": {"containers": null, "automountServiceAccountToken": false}}}, "status": {}}),
        ),
        ("v1", "Secret", json!({"metadata": {}, "data": {"a": "", "b": "AAE="}, "immutable": false})),
        (
            "v1",
            "Service",
            json!({"metadata": {}, "spec": {"ports": [
            {"port": 1, "targetPort": "web"}, {"port": 2, "targetPort": 0}]}, "status": {"loadBalancer": {}}}),
        ),
        (
            "authorization.k8s.io/v1",
            "SubjectAccessReview",
            json!({"metadata": {}, "spec":
            {"user": "u", "extra": {"a": ["1", "2"], "b": []}}, "status": {"allowed": false}}),
        ),
        (
            "v1",
            "LimitRange",
            json!({"metadata": {}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "500m", "memory": "1Gi"}}]}}),
        ),
        ("meta.k8s.io/v1", "PartialObjectMetadata", json!({"metadata": {"name": "n", "generation": -1}})),
        ("v1", "List", json!({"metadata": {}, "items": [{"apiVersion": "x/v1", "kind": "Y", "f": [1.5, null]}]})),
        (
            "v1",
            "Pod",
            json!({"metadata": {}, "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w"}],
            "ephemeralContainers": [{"name": "e", "resources": {}, "targetContainerName": "t"}]}, "status": {}}),
        ),
    ] {
        let mut object = object;
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let decoded = decode_protobuf(&encode_protobuf(&object).unwrap()).unwrap();
        // An empty list cannot be told from an absent one in protobuf.
        if let Some(containers) = object.pointer_mut("/spec/containers") {
            *containers = Value::Null;
        }
        assert_eq!(decoded, object);
    }
}

#[test]
fn frames_watch_events() {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}});
    let frame = encode_watch_frame("ADDED", &object).unwrap();
    let length = u32::from_be_bytes(frame[..4].try_into().unwrap());
    assert_eq!(length as usize, frame.len() - 4);
    assert!(frame[4..].starts_with(b"\x0a\x05ADDED\x12"));
    assert_eq!(decode_watch_frame(&frame[4..]).unwrap(), json!({"type": "ADDED", "object": object}));
}

#[test]
fn encoding_json_text_equals_encoding_its_value() {
    let managed = json!([{"manager": "m", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}, ".": {}}}}]);
    for object in [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "managedFields": managed},
            "data": {"z": "1", "a": "\"quoted\\ \u{1}ü\"", "fieldsV1": "{}"}, "binaryData": {"fieldsV1": "AAE="}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"fieldsV1": ""}}, "spec": {
            "containers": [{"name": "c", "resources": {"limits": {"cpu": 1.5, "fieldsV1": "1000Mi"}},
                "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "web"}}}], "hostNetwork": true}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {},
            "spec": {"group": "g", "names": {"plural": "p", "kind": "K"}, "scope": "Cluster", "versions": [
            {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "default": {"fieldsV1": [1, null, -2.5]},
                "properties": {"fieldsV1": {"type": "integer", "maximum": 1e3}, "s": {"items": {"type": "string"}}}}}}]}}),
        json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [{"kind": "Y", "fieldsV1": {"f": [1.5, null]}}]}),
    ] {
        let text = serde_json::to_vec(&object).unwrap();
        let expected = encode_protobuf(&object).unwrap();
        assert_eq!(transcode_protobuf(&text).unwrap(), expected, "{object}");
        assert_eq!(transcode_watch_frame("ADDED", &text).unwrap(), encode_watch_frame("ADDED", &object).unwrap());
        let spaced = serde_json::to_vec_pretty(&object).unwrap();
        let read = decode_protobuf(&transcode_protobuf(&spaced).unwrap()).unwrap();
        assert_eq!(read, decode_protobuf(&expected).unwrap());
    }
    for wrong in [&b"{"[..], b"[]", b"7", br#"{"apiVersion":"v1","kind":"ConfigMap","data":{"fieldsV1":{}}}"#] {
        assert!(transcode_protobuf(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
    }
}

#[test]
fn encoding_a_list_item_by_item_equals_encoding_it_at_once() {
    for count in [0, 1, 3, 200] {
        let item =
            |number: usize| json!({"metadata": {"name": format!("n{number}")}, "data": {"a": "x".repeat(number)}});
        let metadata = json!({"resourceVersion": "7", "continue": "c".repeat(count * 10), "remainingItemCount": 3});
        let whole = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata,
            "items": (0..count).map(item).collect::<Vec<_>>()});
        let mut list = ProtobufList::new("v1", "ConfigMap").unwrap();
        for number in 0..count {
            match number % 2 {
                0 => list.push(&item(number)).unwrap(),
                _ => list.push_json(item(number).to_string().as_bytes()).unwrap(),
            }
        }
        assert_eq!(list.finish("v1", "ConfigMapList", &metadata).unwrap(), encode_protobuf(&whole).unwrap());
    }
    assert!(ProtobufList::new("example.com/v1", "Widget").is_err());
}

#[test]
fn unknown_kinds_and_malformed_bytes_are_refused() {
    let check = |bytes: &[u8], expected: &str| {
        let error = decode_protobuf(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(b"{}", "expected prefix");
    check(b"k8s\0", "no kind");
    check(b"k8s\0\x0a\x7f", "unexpected end");
    check(b"k8s\0\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80", "without an end");
    check(&envelope("example.com/v1", "Widget", b""), "no protobuf form is known for kind \"Widget\"");
    check(&envelope("v1", "Pod", b"\x08\x01"), "wrong wire type");
    for (object, expected) in [
        (json!({"kind": "Pod"}), "no kind"),
        (json!({"apiVersion": "v1", "kind": "Pod", "spec": []}), "field \"spec\": expected an object, found a list"),
        (json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": {}}}), "field \"containers\""),
        (json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "%"}}), "field \"data\""),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": "x"}}),
            "field \"creationTimestamp\"",
        ),
    ] {
        let error = encode_protobuf(&object).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn refuses_messages_that_are_nested_too_deeply() {
    // A schema whose "not" is a schema whose "not" is a schema …
    let mut schema = Vec::new();
    for _ in 0..1000 {
        let mut writer = Writer::default();
        writer.bytes(28, &schema);
        schema = writer.finish();
    }
    let mut raw = Writer::default();
    raw.message(2, |writer| {
        writer.message(7, |writer| {
            writer.message(4, |writer| {
                writer.bytes(1, &schema);
                Ok(())
            })
        })
    })
    .unwrap();
    let bytes = envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", &raw.finish());
    assert!(matches!(decode_protobuf(&bytes), Err(ProtobufError::TooDeep)));
    // Objects in objects in objects, as a list may hold them.
    let mut list = envelope("v1", "List", b"");
    for _ in 0..1000 {
        let mut writer = Writer::default();
        writer
            .message(2, |writer| {
                writer.bytes(1, &list);
                Ok(())
            })
            .unwrap();
        list = envelope("v1", "List", &writer.finish());
    }
    assert!(matches!(decode_protobuf(&list), Err(ProtobufError::TooDeep)));
}

fn any_kind() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop::sample::select(vec![
        ("v1", "Pod"),
        ("v1", "Secret"),
        ("v1", "List"),
        ("apps/v1", "Deployment"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("coordination.k8s.io/v1", "Lease"),
        ("authentication.k8s.io/v1", "TokenReview"),
    ])
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode_protobuf(&bytes);
        let _ = decode_watch_frame(&bytes);
    }

    /// Whatever decodes is in the form that encoding and the JSON decoder agree on.
    #[test]
    fn random_fields_never_panic_and_decoding_is_stable(
        kind in any_kind(),
        fields in prop::collection::vec((1_u16..30, prop::collection::vec(0_u8..40, 0..30)), 0..8),
    ) {
        let mut raw = Writer::default();
        for (number, bytes) in &fields {
            raw.bytes(*number, bytes);
        }
        let bytes = envelope(kind.0, kind.1, &raw.finish());
        if let Ok(object) = decode_protobuf(&bytes) {
            let encoded = encode_protobuf(&object).unwrap();
            prop_assert_eq!(&transcode_protobuf(object.to_string().as_bytes()).unwrap(), &encoded);
            let again = decode_protobuf(&encoded).unwrap();
            prop_assert_eq!(&again, &object);
            let id = TypeTable::shared().kind(kind.0, kind.1).unwrap();
            let decoded = decode_json(id, object.to_string().as_bytes()).unwrap();
            prop_assert_eq!(decoded.value, object);
        }
    }

    #[test]
    fn any_json_is_encoded_or_refused(text in "[a-z]{0,8}", number in any::<i64>()) {
        for value in [json!(text), json!(number), json!([text]), json!({ text.clone(): number }), Value::Null] {
            for field in ["metadata", "spec", "status", "data", "type"] {
                let mut object = json!({"apiVersion": "v1", "kind": "Secret"});
                object[field] = value.clone();
                let _ = encode_protobuf(&object);
            }
        }
    }
}
