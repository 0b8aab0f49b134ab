//! Reading of example Go code; unsupported code is refused with file and line.

use std::path::Path;

use super::*;

const SOURCE: &str = r#"
//go:build !other

// +k8s:openapi-gen=true
// +groupName=example.com

// Package v1 is made up.
package v1

import (
	"fmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const GroupName = "example.com"

const (
	// Red is a color.
	Red Color = "red"
	Number = 3
	Joined = "a" + "b"
)

type Color string

// Widget has fields.
// +union
// +structType=atomic
type Widget struct {
	metav1.TypeMeta `json:",inline"`
	*Part `json:",inline" protobuf:"bytes,2,opt,name=part"`

	// names are names.
	// +listType=map
	// +listMapKey=first
	// +listMapKey=second
	// +optional
	Names []map[string]*metav1.Time `json:"names,omitempty" protobuf:"bytes,3,rep,name=names"` // trailing +required
	A, B int64 `json:"a"`
	Callback func(a, b int) (struct{ x int }, error) `json:"-"`
}

type Part struct{}

type Same = Part

type Pair[T any] struct {
	first T
}

func (w *Widget) MarshalJSON() ([]byte, error) {
	if '}' == "}"[0] {
		return nil, fmt.Errorf(`{`)
	}
	return nil, nil
}
"#;

fn package(source: &str) -> Package {
    let mut package = Package::default();
    package.add(Path::new("types.go"), source).unwrap();
    package
}

fn fields(package: &Package, name: &str) -> Vec<FieldDecl> {
    match &package.declared(name).unwrap().definition {
        TypeExpr::Struct(fields) => fields.clone(),
        other => panic!("{other:?}"),
    }
}

fn named(package: Option<&str>, name: &str) -> TypeExpr {
    TypeExpr::Name { package: package.map(str::to_owned), name: name.to_owned() }
}

#[test]
fn reads_types_fields_and_markers() {
    let package = package(SOURCE);
    let widget = fields(&package, "Widget");
    let names: Vec<Option<&str>> = widget.iter().map(|field| field.name.as_deref()).collect();
    assert_eq!(names, [None, None, Some("Names"), Some("A"), Some("B"), Some("Callback")]);
    assert_eq!(widget[0].expr, named(Some("metav1"), "TypeMeta"));
    assert_eq!(widget[1].expr, TypeExpr::Pointer(Box::new(named(None, "Part"))));
    let time = TypeExpr::Pointer(Box::new(named(Some("metav1"), "Time")));
    let map = TypeExpr::Map(Box::new(named(None, "string")), Box::new(time));
    assert_eq!(widget[2].expr, TypeExpr::Slice(Box::new(map)));
    assert_eq!(widget[5].expr, TypeExpr::Other("a function"));

    let markers = &widget[2].markers;
    assert_eq!(markers.values("listMapKey").collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(markers.value("listType"), Some("map"));
    assert!(markers.has("optional") && !markers.has("required"));
    assert!(widget[3].markers == Markers::default(), "a trailing comment belongs to no field");

    let declared = package.declared("Widget").unwrap();
    assert!(declared.markers.has("union"));
    assert_eq!(declared.markers.value("structType"), Some("atomic"));
    assert_eq!(declared.location.to_string(), "types.go:29");
    assert!(package.declared("Same").unwrap().is_alias);
    assert!(matches!(package.declared("Pair").unwrap().definition, TypeExpr::Other(_)));
}

#[test]
fn reads_markers_constants_and_imports() {
    let package = package(SOURCE);
    let location = &package.declared("Widget").unwrap().location;
    assert_eq!(package.marker("k8s:openapi-gen"), Some("true"));
    assert_eq!(package.constant("GroupName"), Some("example.com"));
    assert_eq!(package.constant("Red"), Some("red"));
    assert_eq!((package.constant("Number"), package.constant("Joined")), (None, None));
    assert_eq!(package.import(location, "metav1"), Some("k8s.io/apimachinery/pkg/apis/meta/v1"));
    assert_eq!(package.import(location, "fmt"), Some("fmt"));
    assert!(package.json_encoders.contains("Widget") && !package.json_encoders.contains("Part"));
}

#[test]
fn reads_struct_tags() {
    let tag = StructTag::parse(r#"json:"a,omitempty"  protobuf:"bytes,1,opt,name=a" patchStrategy:"merge""#).unwrap();
    assert_eq!(tag.get("json"), Some("a,omitempty"));
    assert_eq!(tag.get("protobuf"), Some("bytes,1,opt,name=a"));
    assert_eq!(tag.get("patchStrategy"), Some("merge"));
    assert_eq!(tag.get("patchMergeKey"), None);
    for malformed in ["json", "json:a", r#"json:"a"#, r#"two words:"a""#] {
        assert!(StructTag::parse(malformed).is_err(), "{malformed}");
    }
}

#[test]
fn reads_registrations() {
    let source = r#"package v1
var options = []runtime.Object{
	&GetOptions{},
	&ListOptions{},
}
func add(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&Widget{},
		&metav1.Status{},
	)
	scheme.AddKnownTypes(groupVersion, options...)
	scheme.AddKnownTypeWithName(groupVersion.WithKind(EventKind), &Event{})
	scheme.AddUnversionedTypes(Unversioned, other)
	return nil
}
"#;
    let package = package(source);
    let own = |name: &str| (None, name.to_owned());
    let found: Vec<_> = package.registrations().collect();
    assert_eq!(found[0].types, [own("Widget"), (Some("metav1".to_owned()), "Status".to_owned())]);
    assert_eq!((found[0].call, found[0].target.as_str()), (RegistrationCall::Known, "SchemeGroupVersion"));
    assert_eq!(found[1].types, [own("GetOptions"), own("ListOptions")]);
    assert_eq!(
        (found[2].call, found[2].target.as_str()),
        (RegistrationCall::KnownWithName, "groupVersion.WithKind(EventKind)")
    );
    assert_eq!((found[3].call, &found[3].not_understood), (RegistrationCall::Unversioned, &vec!["other".to_owned()]));
    assert_eq!(found.len(), 4);
}

#[test]
fn leaves_out_files_that_a_build_leaves_out() {
    let mut package = package("//go:build !special\n\npackage v1\n\ntype A string\n");
    package.add(Path::new("special.go"), "//go:build special\n\npackage v1\n\ntype A int\n").unwrap();
    assert_eq!(package.declared("A").unwrap().definition, named(None, "string"));
}

#[test]
fn errors_name_file_and_line() {
    for (source, problem) in [
        ("package v1\n\nclass A {}\n", "a.go:3: a declaration that begins with `class`"),
        ("package v1\ntype A struct {\n\tB string `json`\n}\n", "a.go:3: struct tag: `json` is not KEY:\"VALUE\""),
        ("package v1\ntype A string\ntype A int\n", "a.go:3: A is declared at a.go:2 as well"),
        ("package v1\nvar a = \"b\n", "a.go:2: a string without its end"),
        ("package v1\nfunc a() {\n", "a.go:2: a declaration without its end"),
        ("//go:build a && b\npackage v1\n", "a.go:2: the build constraint `a && b` is not understood"),
        ("package v1\nimport . \"b\"\n", "a.go:2: an import into the package's own names"),
    ] {
        let error = Package::default().add(Path::new("a.go"), source).unwrap_err();
        assert_eq!(error.to_string(), problem);
    }
}
