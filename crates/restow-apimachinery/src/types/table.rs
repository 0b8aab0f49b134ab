//! The type table: which types exist, which fields they have, and every fact about a field.
//!
//! The table is read once from the embedded text and then only looked at. It is kept small on purpose: names are slices
//! of the embedded text, references are 16-bit indexes, and lookups are binary searches or scans over short slices.

mod parse;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

/// The facts, one line each. The format is described at the head of the file.
const TEXT: &str = include_str!("kubernetes.types");

static SHARED: LazyLock<TypeTable> = LazyLock::new(|| TypeTable::parse(TEXT).unwrap_or_default());

/// One type of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(u16);

/// A type expression such as `[]string` or `*core/v1.PodSpec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeId(u16);

/// What a type expression says, one level deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    Scalar(Scalar),
    Bytes,
    Pointer(ShapeId),
    List(ShapeId),
    Map { key: ShapeId, value: ShapeId },
    Named(TypeId),
}

/// The basic types that occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    String,
    Bool,
    Int32,
    Int64,
    Float64,
}

/// Types whose JSON and protobuf encodings do not follow from their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// A JSON object of any content, carried in protobuf as bytes in field 1.
    Raw,
    /// Any JSON value at all, carried likewise.
    Json,
    SchemaOrBool,
    SchemaOrArray,
    SchemaOrStrings,
}

/// What a type name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Definition {
    Struct { first_field: u16, field_count: u16 },
    Scalar(Scalar),
    Alias(ShapeId),
    WrappedList(ShapeId),
    Special(Special),
}

/// In which groups a type is registered as a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KindScope {
    #[default]
    NotAKind,
    OwnGroup,
    CoreGroup,
    EveryGroup,
}

/// A type: its name within its package, and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeEntry {
    pub name: &'static str,
    pub package: u16,
    pub scope: KindScope,
    pub union: bool,
    pub map_type: Option<&'static str>,
    pub definition: Definition,
}

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub number: u16,
    pub shape: ShapeId,
    /// Index into the rare facts; 0 stands for none.
    extra: u16,
    pub flags: FieldFlags,
}

/// The yes-or-no facts about a field.
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldFlags {
    pub required: bool,
    pub omit_empty: bool,
    pub omit_zero: bool,
    pub inline: bool,
    pub discriminator: bool,
}

/// The facts that only some fields have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FieldExtra {
    pub patch_strategy: Option<&'static str>,
    pub merge_key: Option<&'static str>,
    pub list_type: Option<&'static str>,
    pub list_keys: Option<&'static str>,
    pub map_type: Option<&'static str>,
    pub default: Option<&'static str>,
}

/// A package of types, which for API groups is one version of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package {
    pub name: &'static str,
    pub openapi_prefix: &'static str,
    pub group: Option<&'static str>,
}

impl Package {
    /// The last part of the package's name, which is the API version and also what Go prints before a type's name.
    pub(crate) fn version(&self) -> &'static str {
        self.name.rsplit('/').next().unwrap_or(self.name)
    }
}

/// All types, looked up by kind.
#[derive(Debug, Default)]
pub struct TypeTable {
    packages: Vec<Package>,
    /// Sorted by package, then by name.
    types: Vec<TypeEntry>,
    fields: Vec<Field>,
    /// For each struct's run of fields, the same fields in the order of their protobuf numbers.
    by_number: Vec<u16>,
    shapes: Vec<Shape>,
    extras: Vec<FieldExtra>,
}

impl TypeTable {
    /// The table of built-in types. It is read on first use and shared by everyone.
    pub fn shared() -> &'static TypeTable {
        &SHARED
    }

    /// Finds a kind, for instance `("apps/v1", "Deployment")`.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<TypeId> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.own_kind(group, version, kind).or_else(|| self.meta_kind(group, version, kind))
    }

    /// The kinds registered in one group and version, in the order of their names.
    pub fn kinds_of(&self, group: &str, version: &str) -> Vec<TypeId> {
        let Some(package) = self.package_of(group, version) else { return Vec::new() };
        self.ids().filter(|id| self.entry(*id).package == package && self.scope(*id) == KindScope::OwnGroup).collect()
    }

    /// Every group and version that has kinds, sorted.
    pub fn group_versions(&self) -> Vec<(&'static str, &'static str)> {
        let mut all: Vec<_> =
            self.packages.iter().filter_map(|package| package.group.map(|group| (group, package.version()))).collect();
        all.sort_unstable();
        all
    }

    /// The name of a type without its package, which for a kind is the kind.
    pub fn name(&self, id: TypeId) -> &'static str {
        self.entry(id).name
    }

    /// The number of types.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Whether the table holds nothing at all.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// All types.
    pub fn ids(&self) -> impl Iterator<Item = TypeId> + use<> {
        (0..self.types.len()).filter_map(|index| u16::try_from(index).ok()).map(TypeId)
    }

    pub(crate) fn entry(&self, id: TypeId) -> &TypeEntry {
        &self.types[usize::from(id.0)]
    }

    pub(crate) fn scope(&self, id: TypeId) -> KindScope {
        self.entry(id).scope
    }

    /// The Go package that a type belongs to, as in `core/v1`.
    pub fn package_name(&self, id: TypeId) -> &'static str {
        self.package(id).name
    }

    pub(crate) fn package(&self, id: TypeId) -> &Package {
        &self.packages[usize::from(self.entry(id).package)]
    }

    pub(crate) fn shape(&self, id: ShapeId) -> Shape {
        self.shapes[usize::from(id.0)]
    }

    /// The fields of a struct in the order of their declaration; empty for any other type.
    pub fn fields(&self, id: TypeId) -> &[Field] {
        let Definition::Struct { first_field, field_count } = self.entry(id).definition else { return &[] };
        let first = usize::from(first_field);
        &self.fields[first..first + usize::from(field_count)]
    }

    /// The fields of a struct that protobuf has, in the order of their numbers.
    pub fn fields_by_number(&self, id: TypeId) -> impl Iterator<Item = &Field> {
        let order = match self.entry(id).definition {
            Definition::Struct { first_field, field_count } => {
                let first = usize::from(first_field);
                &self.by_number[first..first + usize::from(field_count)]
            }
            _ => &[],
        };
        order.iter().map(|index| &self.fields[usize::from(*index)]).filter(|field| field.number != 0)
    }

    pub(crate) fn field_by_number(&self, id: TypeId, number: u32) -> Option<&Field> {
        self.fields(id).iter().find(|field| u32::from(field.number) == number && number != 0)
    }

    /// The type of an inlined field, whose own fields appear at the level of the struct that holds it.
    pub fn inline_type(&self, field: &Field) -> Option<TypeId> {
        if !field.flags.inline {
            return None;
        }
        match self.shape(field.shape) {
            Shape::Named(id) => Some(id),
            Shape::Pointer(inner) => match self.shape(inner) {
                Shape::Named(id) => Some(id),
                _ => None,
            },
            _ => None,
        }
    }

    /// Finds the field that a JSON name means, also inside inlined structs, whose names are added to `through`.
    pub fn field_by_name(&self, id: TypeId, name: &str, through: &mut Vec<&'static str>) -> Option<&Field> {
        let fields = self.fields(id);
        if let Some(field) = fields.iter().find(|field| !field.flags.inline && field.name == name) {
            return Some(field);
        }
        for inlined in fields.iter().filter_map(|field| self.inline_type(field)) {
            through.push(self.name(inlined));
            if let Some(field) = self.field_by_name(inlined, name, through) {
                return Some(field);
            }
            through.pop();
        }
        None
    }

    pub(crate) fn extra(&self, field: &Field) -> FieldExtra {
        self.extras[usize::from(field.extra)]
    }

    /// A type of the same package by its name.
    pub fn sibling(&self, id: TypeId, name: &str) -> Option<TypeId> {
        self.find(self.entry(id).package, name)
    }

    fn own_kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let id = self.find(self.package_of(group, version)?, kind)?;
        (self.scope(id) == KindScope::OwnGroup).then_some(id)
    }

    fn meta_kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let id = self.find(self.package_of("meta.k8s.io", "v1")?, kind)?;
        match self.scope(id) {
            KindScope::EveryGroup => Some(id),
            KindScope::CoreGroup if group.is_empty() && version == "v1" => Some(id),
            _ => None,
        }
    }

    fn package_of(&self, group: &str, version: &str) -> Option<u16> {
        let index =
            self.packages.iter().position(|package| package.group == Some(group) && package.version() == version)?;
        u16::try_from(index).ok()
    }

    fn find(&self, package: u16, name: &str) -> Option<TypeId> {
        let index = self.types.binary_search_by(|entry| (entry.package, entry.name).cmp(&(package, name))).ok()?;
        u16::try_from(index).ok().map(TypeId)
    }
}
