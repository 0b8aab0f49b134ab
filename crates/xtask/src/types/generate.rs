//! Makes the table from a source tree: the registered kinds that have a protobuf message, and every type that they refer
//! to. Unsupported input is an error; nothing is ignored silently.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};

use super::row::{self, FieldFacts, OpenApi, StructContext};
use super::table::{PackageRows, Table, TypeRow};
use super::tree::{self, ApiPackage, Tree};
use crate::go::{Location, Package, Registration, RegistrationCall, TypeDecl, TypeExpr};

/// Types with encodings of their own, which Restow has code for. A type that has JSON methods in Go and is not here is an
/// error: its codec must be written first.
const SPECIAL: [(&str, &str, &str); 14] = [
    ("apiextensions/v1", "JSON", "json"),
    ("apiextensions/v1", "JSONSchemaPropsOrArray", "schemaorarray"),
    ("apiextensions/v1", "JSONSchemaPropsOrBool", "schemaorbool"),
    ("apiextensions/v1", "JSONSchemaPropsOrStringArray", "schemaorstrings"),
    ("apiextensions/v1beta1", "JSON", "json"),
    ("apiextensions/v1beta1", "JSONSchemaPropsOrArray", "schemaorarray"),
    ("apiextensions/v1beta1", "JSONSchemaPropsOrBool", "schemaorbool"),
    ("apiextensions/v1beta1", "JSONSchemaPropsOrStringArray", "schemaorstrings"),
    ("intstr", "IntOrString", "intorstring"),
    ("meta/v1", "FieldsV1", "raw"),
    ("meta/v1", "MicroTime", "microtime"),
    ("meta/v1", "Time", "time"),
    ("resource", "Quantity", "quantity"),
    ("runtime", "RawExtension", "raw"),
];

/// Types that no kind refers to, but that OpenAPI needs: the body of a patch.
const ALSO: [(&str, &str); 1] = [("k8s.io/apimachinery/pkg/apis/meta/v1", "Patch")];

/// Kinds that are only read from the parameters of a query, never from a body.
const ONLY_IN_QUERIES: [(&str, &str); 1] = [("k8s.io/apimachinery/pkg/apis/meta/v1", "TableOptions")];

/// The table of a tree, and which registered kinds are not in it, with the reason.
pub(crate) struct Generated {
    pub(crate) table: Table,
    pub(crate) left_out: Vec<String>,
}

/// Reads the tree and makes the table.
pub(crate) fn generate(tree: &mut Tree) -> Result<Generated> {
    let mut generator = Generator {
        tree,
        kinds: BTreeMap::new(),
        kinds_of_others: Vec::new(),
        pending: Vec::new(),
        generated: Generated { table: Table::default(), left_out: Vec::new() },
    };
    for import_path in generator.tree.api_packages()? {
        generator.register(&import_path)?;
    }
    for (name, location) in &generator.kinds_of_others {
        if !generator.kinds.contains_key(name) {
            bail!("{location}: {} is registered here, but {} does not register it", name.name, name.import_path);
        }
    }
    let also = ALSO.map(|(import_path, name)| TypeName { import_path: import_path.into(), name: name.into() });
    generator.pending.extend(also);
    let mut seen = BTreeSet::new();
    while let Some(name) = generator.pending.pop() {
        if seen.insert(name.clone()) {
            generator.add(name)?;
        }
    }
    Ok(generator.generated)
}

/// A type by the import path of its package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TypeName {
    import_path: String,
    name: String,
}

struct Generator<'a> {
    tree: &'a mut Tree,
    /// The word that says where a kind is registered.
    kinds: BTreeMap<TypeName, &'static str>,
    /// Types of other packages that a package registers too: Status, in the core group.
    kinds_of_others: Vec<(TypeName, Location)>,
    pending: Vec<TypeName>,
    generated: Generated,
}

impl Generator<'_> {
    /// Notes the kinds that a package registers.
    fn register(&mut self, import_path: &str) -> Result<()> {
        self.tree.load(import_path)?;
        let package = &self.tree.package(import_path)?.go;
        for registration in package.registrations() {
            let location = &registration.location;
            let Some(word) = kind_word(registration)? else { continue };
            if let Some(argument) = registration.not_understood.first() {
                bail!("{location}: the registration of `{argument}` is not understood");
            }
            for (qualifier, name) in &registration.types {
                let import_path = match qualifier {
                    Some(qualifier) => import(package, qualifier, location)?,
                    None => import_path,
                };
                let kind = TypeName { import_path: import_path.to_owned(), name: name.clone() };
                if qualifier.is_some() {
                    self.kinds_of_others.push((kind, location.clone()));
                    continue;
                }
                let declared = package.declared(name).with_context(|| format!("{location}: {name} is not declared"))?;
                if let Some(reason) = reason_to_leave_out(&kind, declared) {
                    self.generated.left_out.push(format!("{import_path}.{name}: {reason}"));
                    continue;
                }
                self.pending.push(kind.clone());
                self.kinds.insert(kind, word);
            }
        }
        Ok(())
    }

    /// Adds one type to the table, and the types that it refers to to the pending ones.
    fn add(&mut self, name: TypeName) -> Result<()> {
        let TypeName { import_path, name: type_name } = &name;
        let kind = self.kinds.get(&name).copied();
        let package_name = tree::table_name(import_path).with_context(|| format!("{import_path} is unknown"))?;
        let source = self.source(&name)?;
        let api = self.tree.package(import_path)?;
        let (row, references) = match special_codec(&package_name, type_name) {
            Some(codec) => {
                let row = TypeRow { what: "special".into(), words: vec![codec.into()], ..TypeRow::default() };
                (row, Vec::new())
            }
            None => {
                let declared = declaration(self.tree, &name)?;
                let source_package = self.tree.package(&source.import_path)?;
                let writer = Writer { api, import_path, source: source_package, source_path: &source.import_path };
                writer.row(declared, &declaration(self.tree, &source)?.definition, kind)?
            }
        };
        let rows =
            self.generated.table.packages.entry(package_name).or_insert_with(|| package_rows(import_path, &api.go));
        rows.types.insert(type_name.clone(), row);
        self.pending.extend(references);
        Ok(())
    }

    /// The type whose declaration defines the fields: the type itself, or B for `type A package.B`.
    fn source(&mut self, name: &TypeName) -> Result<TypeName> {
        let mut source = name.clone();
        loop {
            self.tree.load(&source.import_path)?;
            let declared = declaration(self.tree, &source)?;
            let TypeExpr::Name { package, name } = &declared.definition else { return Ok(source) };
            let go = &self.tree.package(&source.import_path)?.go;
            let import_path = match package {
                None if go.declared(name).is_none() => return Ok(source),
                None => source.import_path.clone(),
                Some(package) => import(go, package, &declared.location)?.to_owned(),
            };
            source = TypeName { import_path, name: name.clone() };
        }
    }
}

fn declaration<'a>(tree: &'a Tree, TypeName { import_path, name }: &TypeName) -> Result<&'a TypeDecl> {
    let declared = tree.package(import_path)?.go.declared(name);
    declared.with_context(|| format!("{name} is not declared in {import_path}"))
}

fn import<'a>(package: &'a Package, name: &str, location: &Location) -> Result<&'a str> {
    package.import(location, name).with_context(|| format!("{location}: {name} is not imported"))
}

/// The package line of the table.
fn package_rows(import_path: &str, package: &Package) -> PackageRows {
    let openapi = package.marker("k8s:openapi-model-package").map(str::to_owned);
    let group = package.constant("GroupName").filter(|_| package.registrations().next().is_some());
    PackageRows {
        openapi: openapi.unwrap_or_else(|| tree::openapi_prefix(import_path)),
        group: group.map(str::to_owned),
        types: BTreeMap::new(),
    }
}

/// The reason why a registered kind is not in the table.
fn reason_to_leave_out(kind: &TypeName, declared: &TypeDecl) -> Option<&'static str> {
    if ONLY_IN_QUERIES.contains(&(kind.import_path.as_str(), kind.name.as_str())) {
        Some("only read from queries")
    } else if declared.is_alias {
        Some("another name for a type of another package")
    } else if declared.markers.value("protobuf") == Some("false") {
        Some("has no protobuf message")
    } else {
        None
    }
}

fn special_codec(package: &str, name: &str) -> Option<&'static str> {
    SPECIAL.iter().find(|(known, special, _)| *known == package && *special == name).map(|(_, _, codec)| *codec)
}

/// The groups in which a registration puts its kinds; `None` for a registration without a served group.
fn kind_word(registration: &Registration) -> Result<Option<&'static str>> {
    Ok(match (registration.call, registration.target.as_str()) {
        (RegistrationCall::Known, "SchemeGroupVersion") => Some("kind"),
        (RegistrationCall::Known, "groupVersion") => Some("kind=every"),
        (RegistrationCall::KnownWithName, "groupVersion.WithKind(WatchEventKind)") => Some("kind=every"),
        (RegistrationCall::Unversioned, "Unversioned") => Some("kind=core"),
        // The scheme that only reads the query parameters of options.
        (RegistrationCall::Unversioned, "SchemeGroupVersion") => None,
        // Kinds that never leave a server.
        (RegistrationCall::KnownWithName, target) if target.contains("runtime.APIVersionInternal") => None,
        (_, target) => bail!("{}: a registration in `{target}` is not understood", registration.location),
    })
}

/// Writes the row of one type.
struct Writer<'a> {
    /// The package of the type.
    api: &'a ApiPackage,
    import_path: &'a str,
    /// The package whose declaration defines the fields; usually the same.
    source: &'a ApiPackage,
    source_path: &'a str,
}

impl Writer<'_> {
    /// The row, and the types that it refers to.
    fn row(&self, declared: &TypeDecl, definition: &TypeExpr, kind: Option<&str>) -> Result<(TypeRow, Vec<TypeName>)> {
        let TypeDecl { name, location, .. } = declared;
        if self.api.go.json_encoders.contains(name) {
            bail!("{location}: {name} has a JSON encoding of its own: write a codec, then add it to SPECIAL in xtask");
        }
        if declared.is_alias {
            bail!("{location}: an API type of another package refers to {name}, which is only an alias");
        }
        let mut references = Vec::new();
        let TypeExpr::Struct(fields) = definition else {
            let expression = self.expression(definition, location, &mut references)?;
            return Ok((row::named_row(name, definition, &expression, &self.api.messages), references));
        };
        let described = self.api.go.marker("k8s:openapi-gen") == Some("true")
            && declared.markers.value("k8s:openapi-gen") != Some("false");
        let context = StructContext {
            openapi: if described { OpenApi::Described } else { OpenApi::Absent },
            is_union: declared.markers.has("union"),
            package: &self.source.go,
        };
        let mut row = row::struct_row(declared, kind);
        let mut all_facts = Vec::new();
        for field in fields {
            let Some(facts) = FieldFacts::of(field, &context)? else { continue };
            row.fields.push(facts.line(&self.expression(&field.expr, &field.location, &mut references)?));
            all_facts.push(facts);
        }
        row::check_message(declared, &all_facts, &self.api.messages)?;
        Ok((row, references))
    }

    /// A type expression in the syntax of the table; adds the types that it refers to.
    fn expression(&self, expr: &TypeExpr, location: &Location, found: &mut Vec<TypeName>) -> Result<String> {
        Ok(match expr {
            TypeExpr::Pointer(inner) => format!("*{}", self.expression(inner, location, found)?),
            TypeExpr::Slice(inner) => format!("[]{}", self.expression(inner, location, found)?),
            TypeExpr::Map(key, value) => {
                format!("map[{}]{}", self.expression(key, location, found)?, self.expression(value, location, found)?)
            }
            TypeExpr::Name { package: None, name } => match name.as_str() {
                "string" | "bool" | "int32" | "int64" | "float64" => name.clone(),
                "byte" | "uint8" => "uint8".to_owned(),
                _ => match self.source.go.declared(name) {
                    Some(declared) if declared.is_alias => {
                        self.expression(&declared.definition, &declared.location, found)?
                    }
                    Some(_) => self.reference(self.source_path.to_owned(), name, location, found)?,
                    None => bail!("{location}: the table has no word for {name}"),
                },
            },
            TypeExpr::Name { package: Some(package), name } => {
                let import_path = import(&self.source.go, package, location)?;
                self.reference(import_path.to_owned(), name, location, found)?
            }
            TypeExpr::Struct(_) => bail!("{location}: a struct without a name"),
            TypeExpr::Other(what) => bail!("{location}: an API type refers to {what}"),
        })
    }

    /// The table's name of a type, as seen from the package of the row.
    fn reference(
        &self,
        import_path: String,
        name: &str,
        location: &Location,
        found: &mut Vec<TypeName>,
    ) -> Result<String> {
        let Some(package) = tree::table_name(&import_path) else {
            bail!("{location}: an API type refers to {name} of {import_path}, which is not part of the API");
        };
        let is_own = import_path == self.import_path;
        found.push(TypeName { import_path, name: name.to_owned() });
        Ok(if is_own { name.to_owned() } else { format!("{package}.{name}") })
    }
}
