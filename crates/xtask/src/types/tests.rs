//! A made-up source tree becomes a table, and a table survives being read and written.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;

const DOC: &str = "// +k8s:openapi-gen=true\n// +k8s:openapi-model-package=io.k8s.api.toys.v1\n\npackage v1\n";

const REGISTER: &str = "package v1
const GroupName = \"toys.k8s.io\"
func add() {
	scheme.AddKnownTypes(SchemeGroupVersion, &Toy{})
}
";

const TYPES: &str = r#"package v1

import (
	"time"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type Toy struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	// +required
	Spec ToySpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`
	Hidden string `json:"-"`
}

// +union
// +structType=atomic
type ToySpec struct {
	// +unionDiscriminator
	Kind ToyKind `json:"kind" protobuf:"bytes,1,opt,name=kind"`
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	// +listMapKey=size
	Parts []Part `json:"parts,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,4,rep,name=parts"`
	// +mapType=atomic
	// +optional
	Data map[string][]byte `json:"data" protobuf:"bytes,3,rep,name=data"`
	// +default={"a": [1, 2]}
	Colors Colors `json:"colors,omitempty,omitzero" protobuf:"bytes,5,rep,name=colors"`
	// +default=ref(Soft)
	Touch *string `json:"touch,omitempty" protobuf:"bytes,6,opt,name=touch"`
	Sizes Sizes `json:"sizes,omitempty" protobuf:"bytes,7,rep,name=sizes"`
	Made metav1.Time `json:"made" protobuf:"bytes,8,opt,name=made"`
}

const Soft ToyKind = "soft"

type ToyKind string
type Colors []string
type Sizes []string
type Part struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
}
type Unused struct {
	When time.Time `json:"when"`
}
"#;

const PROTO: &str = "message Toy {
  optional ObjectMeta metadata = 1;
  optional ToySpec spec = 2;
}
message ToySpec {
  optional string kind = 1;
  map<string, bytes> data = 3;
  repeated Part parts = 4;
  optional Colors colors = 5;
  optional string touch = 6;
  repeated string sizes = 7;
  optional Time made = 8;
}
message Colors {
  repeated string items = 1;
}
message Part {
  optional string name = 1;
}
";

const META: &str = r#"package v1

type TypeMeta struct {
	Kind string `json:"kind,omitempty" protobuf:"bytes,1,opt,name=kind"`
}
type ObjectMeta struct {
	Name string `json:"name,omitempty" protobuf:"bytes,1,opt,name=name"`
}
type Time struct {
	time.Time
}
type Patch struct{}
func (t Time) MarshalJSON() {
}
"#;

const META_PROTO: &str = "message TypeMeta {
  optional string kind = 1;
}
message ObjectMeta {
  optional string name = 1;
}
";

const TABLE: &str = r#"
package meta/v1 openapi=io.k8s.apimachinery.pkg.apis.meta.v1
struct ObjectMeta
 1 name string omit
struct Patch
special Time time
struct TypeMeta
 1 kind string omit

package toys/v1 openapi=io.k8s.api.toys.v1 group=toys.k8s.io
list Colors []string
struct Part
 1 name! string
alias Sizes []string
struct Toy kind
 0 <inline> meta/v1.TypeMeta
 1 metadata meta/v1.ObjectMeta omit
 2 spec! ToySpec omit
scalar ToyKind string
struct ToySpec map=atomic union
 1 kind! ToyKind discriminator
 4 parts []Part omit patch=merge key=name list=map keys=name,size
 3 data map[string][]uint8 map=atomic
 5 colors Colors omit omitzero default={"a":[1,2]}
 6 touch *string omit default="soft"
 7 sizes Sizes omit
 8 made! meta/v1.Time
"#;

/// A source tree with one API group; `types` and `proto` are that group's.
fn tree(types: &str, proto: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let toys = root.path().join("staging/src/k8s.io/api/toys/v1");
    let meta = root.path().join("staging/src/k8s.io/apimachinery/pkg/apis/meta/v1");
    for folder in [&toys, &meta] {
        fs::create_dir_all(folder).unwrap();
    }
    for other in ["apiextensions-apiserver", "kube-aggregator"] {
        fs::create_dir_all(root.path().join("staging/src/k8s.io").join(other).join("pkg/apis")).unwrap();
    }
    let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write(&toys, "doc.go", DOC);
    write(&toys, "register.go", REGISTER);
    write(&toys, "types.go", types);
    write(&toys, "generated.proto", proto);
    write(&meta, "types.go", META);
    write(&meta, "generated.proto", META_PROTO);
    root
}

fn generated(types: &str, proto: &str) -> anyhow::Result<String> {
    let root = tree(types, proto);
    Ok(generate(&mut Tree::new(root.path()))?.table.to_string())
}

#[test]
fn a_source_tree_becomes_a_table() {
    assert_eq!(generated(TYPES, PROTO).unwrap(), TABLE);
}

#[test]
fn a_table_survives_being_read_and_written() {
    assert_eq!(Table::parse(TABLE).unwrap().to_string(), TABLE);
}

#[test]
fn unsupported_types_and_tags_are_refused() {
    let time = TYPES.replace("Name string `json:\"name\"", "Name time.Time `json:\"name\"");
    let encoder = format!("{TYPES}\nfunc (p *Part) UnmarshalJSON() {{\n}}\n");
    for (types, proto, problem) in [
        (time.as_str(), PROTO, "refers to Time of time, which is not part of the API"),
        (encoder.as_str(), PROTO, "Part has a JSON encoding of its own"),
        (&TYPES.replace("[]Part", "[]Nothing"), PROTO, "the table has no word for Nothing"),
        (&TYPES.replace("Made metav1.Time", "Made struct{}"), PROTO, "a struct without a name"),
        (&TYPES.replace("Made metav1.Time", "Made interface{}"), PROTO, "an API type refers to an interface"),
        (&TYPES.replace("omitempty,omitzero", "string"), PROTO, "the json option `string` is not understood"),
        (&TYPES.replace("`json:\"-\"`", ""), PROTO, "a field without a json tag"),
        (&TYPES.replace("ref(Soft)", "ref(Hard)"), PROTO, "Hard is not a string constant"),
        (&TYPES.replace("[1, 2]}", "[1, 2]"), PROTO, "is not JSON"),
        (&TYPES.replace("+patchStrategy=merge", "+patchStrategy=replace"), PROTO, "the tag patchStrategy differ"),
        (TYPES, &PROTO.replace("parts = 4", "parts = 9"), "ToySpec.parts has number 4, but 9 in generated.proto"),
        (TYPES, &PROTO.replace("message Part ", "message Other "), "generated.proto has no such message"),
        (TYPES, &PROTO.replace("made = 8;", "made = 8;\n  optional string new = 9;"), "7 protobuf fields, but 8"),
    ] {
        let error = format!("{:#}", generated(types, proto).unwrap_err());
        assert!(error.contains(problem), "{error}\nshould contain\n{problem}");
    }
}

#[test]
fn kinds_of_an_earlier_release_are_kept_with_the_types_they_refer_to() {
    let earlier = "package old/v1 openapi=old group=old
struct Gone kind
 1 spec GoneSpec
 2 part toys/v1.Part
 3 id types.UID
struct GoneSpec
 1 when map[string]meta/v1.Time
struct Unused

package toys/v1 openapi=io.k8s.api.toys.v1 group=toys.k8s.io
struct Removed kind
 1 kind ToyKind
struct ToySpec
 1 other string

package types openapi=types
scalar UID string
";
    let incomplete = Table::parse(&earlier.replace("scalar UID", "scalar Other")).unwrap();
    let error = Table::parse(TABLE).unwrap().keep_kinds_of(&incomplete).unwrap_err();
    assert_eq!(error.to_string(), "types.UID is not in the earlier table");

    let mut table = Table::parse(TABLE).unwrap();
    table.keep_kinds_of(&Table::parse(earlier).unwrap()).unwrap();
    assert_eq!(table.kept(), ["old/v1", "toys/v1.Removed", "types"]);
    let text = table.to_string();
    assert!(
        text.contains("\n# kept from an earlier release\npackage old/v1 openapi=old group=old\nstruct Gone kind\n")
    );
    assert!(text.contains("\n# kept from an earlier release\nstruct Removed kind\n 1 kind ToyKind\n"));
    assert!(text.contains("struct ToySpec map=atomic union\n"), "types of the release are unchanged");
    assert!(!text.contains("Unused"));
    let mut again = Table::parse(TABLE).unwrap();
    again.keep_kinds_of(&Table::parse(&text).unwrap()).unwrap();
    assert_eq!(again.to_string(), text, "a second run changes nothing");
}
