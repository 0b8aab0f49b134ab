//! `kubernetes.types`: the types of the Kubernetes API, which fields they have, and every fact about a field.
//!
//! The table is kept small on purpose: names are slices of the text, references are 16-bit indexes, and lookups are
//! binary searches or scans over short slices.

mod check;
mod form;
mod parse;
#[cfg(test)]
mod tests;

use crate::words::words;

pub use form::Form;

/// One type of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(u16);

/// A type expression such as `[]string` or `*core/v1.PodSpec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeId(u16);

/// What a type expression says, one level deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// A basic type.
    Scalar(Scalar),
    /// `[]uint8`.
    Bytes,
    /// `*T`.
    Pointer(ShapeId),
    /// `[]T`.
    List(ShapeId),
    /// `map[K]V`.
    Map {
        /// The type of its keys.
        key: ShapeId,
        /// The type of its values.
        value: ShapeId,
    },
    /// A type of the table.
    Named(TypeId),
}

words! {
    /// The basic types that occur.
    Scalar, "basic type" {
        /// Text.
        String = "string",
        /// `true` or `false`.
        Bool = "bool",
        /// Whole numbers of 32 bits.
        Int32 = "int32",
        /// Whole numbers of 64 bits.
        Int64 = "int64",
        /// Floating-point numbers of 64 bits.
        Float64 = "float64",
    }
}

words! {
    /// Types whose JSON and protobuf encodings do not follow from their fields.
    Special, "codec" {
        /// A time, to the second.
        Time = "time",
        /// A time, to the microsecond.
        MicroTime = "microtime",
        /// A resource quantity.
        Quantity = "quantity",
        /// A number or a text.
        IntOrString = "intorstring",
        /// A JSON object of any content, carried in protobuf as bytes in field 1.
        Raw = "raw",
        /// Any JSON value at all, carried likewise.
        Json = "json",
        /// A schema, or whether anything is allowed.
        SchemaOrBool = "schemaorbool",
        /// A schema, or a list of schemas.
        SchemaOrArray = "schemaorarray",
        /// A schema, or a list of names.
        SchemaOrStrings = "schemaorstrings",
    }
}

/// What a type name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// A struct, as a run of fields.
    Struct {
        /// The index of its first field.
        first_field: u16,
        /// How many fields it has.
        field_count: u16,
    },
    /// A named basic type.
    Scalar(Scalar),
    /// Another name of a list or map.
    Alias(ShapeId),
    /// A list that protobuf wraps in a message.
    WrappedList(ShapeId),
    /// A type with an encoding of its own.
    Special(Special),
}

/// In which groups a type is registered as a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KindScope {
    /// In none.
    #[default]
    NotAKind,
    /// In the group of its package.
    OwnGroup,
    /// In the core group.
    CoreGroup,
    /// In every group.
    EveryGroup,
}

/// A type: its name within its package, and what it is.
#[derive(Clone, Copy, Debug)]
pub struct TypeEntry {
    /// Its name within its package.
    pub name: &'static str,
    /// The index of its package.
    pub package: u16,
    /// The groups in which it is a kind.
    pub scope: KindScope,
    /// Whether it is a union of its fields.
    pub union: bool,
    /// How server-side apply merges it, where it says so.
    pub map_type: Option<MapType>,
    /// What it is.
    pub definition: Definition,
}

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its JSON name.
    pub name: &'static str,
    /// Its number in protobuf, or 0.
    pub number: u16,
    /// Its type.
    pub shape: ShapeId,
    /// Index into the rare facts; 0 stands for none.
    extra: u16,
    /// Its yes-or-no facts.
    pub flags: FieldFlags,
}

/// The yes-or-no facts about a field.
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldFlags {
    /// OpenAPI calls it required.
    pub required: bool,
    /// JSON leaves it out when it is empty.
    pub omit_empty: bool,
    /// JSON leaves it out when it is zero.
    pub omit_zero: bool,
    /// JSON has it even if it is not set. It follows from the other facts and the type.
    pub written_unset: bool,
    /// Its own fields appear at the level of the struct that holds it.
    pub inline: bool,
    /// It says which field of a union is set.
    pub discriminator: bool,
}

/// The facts that only some fields have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldExtra {
    /// How a strategic merge patch treats it.
    pub patch_strategy: Option<PatchStrategy>,
    /// The field by which a strategic merge patch tells items apart.
    pub merge_key: Option<&'static str>,
    /// How server-side apply merges a list.
    pub list_type: Option<ListType>,
    /// The fields, with commas, by which server-side apply tells items apart.
    pub list_keys: Option<&'static str>,
    /// How server-side apply merges a map or struct.
    pub map_type: Option<MapType>,
    /// The default in OpenAPI, as JSON.
    pub default: Option<&'static str>,
}

words! {
    /// How server-side apply merges a list.
    ListType, "list type" {
        /// As one value.
        Atomic = "atomic",
        /// Item by item, told apart by keys.
        Map = "map",
        /// As a set of values.
        Set = "set",
    }
}

words! {
    /// How server-side apply merges a map or struct.
    MapType, "map type" {
        /// As one value.
        Atomic = "atomic",
        /// Field by field.
        Granular = "granular",
    }
}

words! {
    /// How a strategic merge patch treats a field.
    PatchStrategy, "patch strategy" {
        /// It is merged.
        Merge = "merge",
        /// It is merged, and fields that the patch does not name are removed.
        MergeRetainKeys = "merge,retainKeys",
        /// Fields that the patch does not name are removed.
        RetainKeys = "retainKeys",
        /// It is replaced.
        Replace = "replace",
    }
}

impl PatchStrategy {
    /// Whether lists are merged.
    pub fn merges(self) -> bool {
        matches!(self, PatchStrategy::Merge | PatchStrategy::MergeRetainKeys)
    }
}

/// A package of types, which for API groups is one version of one group.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Its name, as in `core/v1`.
    pub name: &'static str,
    /// What stands before its types in the names of OpenAPI definitions.
    pub openapi_prefix: &'static str,
    /// Its API group, if its types are kinds.
    pub group: Option<&'static str>,
}

impl Package {
    /// The last part of the package's name, which is the API version and also what Go prints before a type's name.
    pub fn version(&self) -> &'static str {
        self.name.rsplit('/').next().unwrap_or(self.name)
    }
}

/// All types, looked up by kind.
#[derive(Debug, Default)]
pub struct Types {
    packages: Vec<Package>,
    /// Sorted by package, then by name.
    types: Vec<TypeEntry>,
    fields: Vec<Field>,
    /// For each struct's run of fields, the same fields in the order of their protobuf numbers.
    by_number: Vec<u16>,
    shapes: Vec<Shape>,
    extras: Vec<FieldExtra>,
}

impl Types {
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

    /// All types.
    pub fn ids(&self) -> impl Iterator<Item = TypeId> + use<> {
        (0..self.types.len()).filter_map(|index| u16::try_from(index).ok()).map(TypeId)
    }

    /// What a type is.
    pub fn entry(&self, id: TypeId) -> &TypeEntry {
        &self.types[usize::from(id.0)]
    }

    /// In which groups a type is a kind.
    pub fn scope(&self, id: TypeId) -> KindScope {
        self.entry(id).scope
    }

    /// The package of a type.
    pub fn package(&self, id: TypeId) -> &Package {
        &self.packages[usize::from(self.entry(id).package)]
    }

    /// The Go package that a type belongs to, as in `core/v1`.
    pub fn package_name(&self, id: TypeId) -> &'static str {
        self.package(id).name
    }

    /// What a type expression says.
    pub fn shape(&self, id: ShapeId) -> Shape {
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

    /// The field that has this number in protobuf.
    pub fn field_by_number(&self, id: TypeId, number: u32) -> Option<&Field> {
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

    /// The rare facts about a field.
    pub fn extra(&self, field: &Field) -> FieldExtra {
        self.extras[usize::from(field.extra)]
    }

    /// A type of the same package by its name.
    pub fn sibling(&self, id: TypeId, name: &str) -> Option<TypeId> {
        self.find(self.entry(id).package, name)
    }

    /// The type of this name, with its package, as in `core/v1.Container`.
    pub fn type_by_name(&self, name: &str) -> Option<TypeId> {
        let (package, name) = name.split_once('.')?;
        self.find(self.package_index(package)?, name)
    }

    /// A package by its name. Packages are sorted.
    fn package_index(&self, name: &str) -> Option<u16> {
        let index = self.packages.binary_search_by(|package| package.name.cmp(name)).ok()?;
        u16::try_from(index).ok()
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
