//! Reads the text of `kubernetes.types`.

use std::collections::HashMap;

use super::{
    Definition, Field, FieldExtra, FieldFlags, KindScope, ListType, MapType, Package, PatchStrategy, Scalar, Shape,
    ShapeId, Special, TypeEntry, TypeId, Types,
};
use crate::{TableError, significant_lines};

impl Types {
    /// Reads a whole table. Packages must be sorted by name, and types by name within their package.
    ///
    /// # Errors
    /// A line that does not fit the format, a name that is there twice, a type that is not there, or no types at all.
    pub fn parse(text: &'static str) -> Result<Types, TableError> {
        let mut reader = Reader { extras: HashMap::from([(FieldExtra::default(), 0)]), ..Reader::default() };
        reader.types.extras.push(FieldExtra::default());
        let read = reader.read_names(text).and_then(|()| reader.read_definitions(text));
        read.map_err(|problem| TableError::new(reader.line.max(1), problem))?;
        reader.types.resolve_unset();
        Ok(reader.types)
    }
}

#[derive(Default)]
struct Reader {
    types: Types,
    shapes: HashMap<Shape, ShapeId>,
    extras: HashMap<FieldExtra, u16>,
    line: usize,
    package: u16,
}

impl Reader {
    /// The first pass: packages and names, so that the second can refer to types that come later.
    fn read_names(&mut self, text: &'static str) -> Result<(), String> {
        for (line, row) in significant_lines(text).filter(|(_, row)| !row.starts_with(' ')) {
            self.line = line;
            let mut words = row.split(' ');
            match words.next() {
                Some("package") => self.read_package(words)?,
                _ => self.read_name(words.next())?,
            }
        }
        if self.types.types.is_empty() { Err("the table has no types".into()) } else { Ok(()) }
    }

    fn read_package(&mut self, mut words: impl Iterator<Item = &'static str>) -> Result<(), String> {
        let name = words.next().filter(|name| !name.is_empty()).ok_or("a package needs a name")?;
        let mut package = Package { name, openapi_prefix: "", group: None };
        for word in words {
            match word.split_once('=') {
                Some(("openapi", prefix)) => package.openapi_prefix = prefix,
                Some(("group", group)) => package.group = Some(group),
                _ => {
                    return Err(format!(
                        "unknown word {word:?} after a package; expected openapi=PREFIX or group=GROUP"
                    ));
                }
            }
        }
        if package.openapi_prefix.is_empty() {
            return Err("a package needs openapi=PREFIX".into());
        }
        if self.types.packages.last().is_some_and(|last| last.name >= name) {
            return Err(format!("package {name} is not sorted, or there twice"));
        }
        self.package = index(self.types.packages.len())?;
        self.types.packages.push(package);
        Ok(())
    }

    fn read_name(&mut self, name: Option<&'static str>) -> Result<(), String> {
        let name = name.filter(|name| !name.is_empty()).ok_or("a type needs a name")?;
        if self.types.packages.is_empty() {
            return Err("a type before the first package".into());
        }
        let package = self.package;
        if self.types.types.last().is_some_and(|last| (last.package, last.name) >= (package, name)) {
            return Err(format!("type {name} is not sorted, or there twice"));
        }
        self.types.types.push(TypeEntry {
            name,
            package,
            scope: KindScope::NotAKind,
            union: false,
            map_type: None,
            definition: Definition::Scalar(Scalar::String),
        });
        Ok(())
    }

    /// The second pass: what each type is. Types come in the same order as in the first pass.
    fn read_definitions(&mut self, text: &'static str) -> Result<(), String> {
        let (mut next_type, mut next_package) = (0, 0);
        for (line, row) in significant_lines(text) {
            self.line = line;
            if let Some(field) = row.strip_prefix(' ') {
                self.read_field(next_type, field)?;
            } else if row.starts_with("package ") {
                self.package = next_package;
                next_package += 1;
            } else {
                self.close_struct(next_type);
                self.read_type(next_type, row)?;
                next_type += 1;
            }
        }
        self.close_struct(next_type);
        Ok(())
    }

    fn read_type(&mut self, index_of_type: usize, row: &'static str) -> Result<(), String> {
        let words: Vec<&'static str> = row.split(' ').collect();
        let definition = match *words.as_slice() {
            ["struct", _, ref rest @ ..] => {
                self.read_struct_words(index_of_type, rest)?;
                Definition::Struct { first_field: index(self.types.fields.len())?, field_count: 0 }
            }
            ["scalar", _, word] => Definition::Scalar(Scalar::parse(word)?),
            ["alias", _, shape] => Definition::Alias(self.read_shape(shape)?),
            ["list", _, shape] => Definition::WrappedList(self.read_shape(shape)?),
            ["special", _, word] => Definition::Special(Special::parse(word)?),
            ["scalar" | "alias" | "list" | "special", ..] => return Err("expected a name and one definition".into()),
            _ => return Err(format!("unknown line {row:?}; expected package, struct, scalar, alias, list or special")),
        };
        self.types.types[index_of_type].definition = definition;
        Ok(())
    }

    fn read_struct_words(&mut self, index_of_type: usize, words: &[&'static str]) -> Result<(), String> {
        let entry = &mut self.types.types[index_of_type];
        for word in words {
            match (*word, word.strip_prefix("map=")) {
                ("kind", _) => entry.scope = KindScope::OwnGroup,
                ("kind=core", _) => entry.scope = KindScope::CoreGroup,
                ("kind=every", _) => entry.scope = KindScope::EveryGroup,
                ("union", _) => entry.union = true,
                (_, Some(map_type)) => entry.map_type = Some(MapType::parse(map_type)?),
                _ => {
                    let known = "kind, kind=core, kind=every, map=TYPE, union";
                    return Err(format!("unknown word {word:?} after a struct's name; expected one of: {known}"));
                }
            }
        }
        Ok(())
    }

    /// A field belongs to the type before `next_type`.
    fn read_field(&mut self, next_type: usize, row: &'static str) -> Result<(), String> {
        let mut words = row.split(' ');
        let (Some(number), Some(name), Some(shape)) = (words.next(), words.next(), words.next()) else {
            return Err("expected NUMBER NAME TYPE".into());
        };
        let number = number.parse().map_err(|_| format!("{number:?} is not the number of a field"))?;
        let shape = self.read_shape(shape)?;
        let (name, required) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        let mut flags = FieldFlags { required, inline: name == "<inline>", ..FieldFlags::default() };
        let mut extra = FieldExtra::default();
        for word in words {
            read_field_word(word, &mut flags, &mut extra)?;
        }
        let extra = self.intern_extra(extra)?;
        let owner = next_type.checked_sub(1).and_then(|index| self.types.types.get_mut(index));
        let Some(Definition::Struct { first_field, field_count }) = owner.map(|entry| &mut entry.definition) else {
            return Err("a field outside a struct".into());
        };
        let earlier = &self.types.fields[usize::from(*first_field)..];
        if earlier.iter().any(|field| field.name == name && !flags.inline) {
            return Err(format!("the field {name} is there twice"));
        }
        if earlier.iter().any(|field| field.number == number && number != 0) {
            return Err(format!("the number {number} is there twice"));
        }
        *field_count += 1;
        self.types.by_number.push(index(self.types.fields.len())?);
        self.types.fields.push(Field { name, number, shape, extra, flags });
        Ok(())
    }

    /// Sorts the finished struct's fields by number, for protobuf's sake.
    fn close_struct(&mut self, next_type: usize) {
        let Some(entry) = next_type.checked_sub(1).and_then(|index| self.types.types.get(index)) else { return };
        if let Definition::Struct { first_field, field_count } = entry.definition {
            let first = usize::from(first_field);
            let fields = &self.types.fields;
            self.types.by_number[first..first + usize::from(field_count)]
                .sort_by_key(|index| fields[usize::from(*index)].number);
        }
    }

    fn read_shape(&mut self, text: &'static str) -> Result<ShapeId, String> {
        let shape = if text == "[]uint8" {
            Shape::Bytes
        } else if let Some(inner) = text.strip_prefix('*') {
            Shape::Pointer(self.read_shape(inner)?)
        } else if let Some(inner) = text.strip_prefix("[]") {
            Shape::List(self.read_shape(inner)?)
        } else if let Some(rest) = text.strip_prefix("map[") {
            let (key, value) = rest.split_once(']').ok_or("a map type without its bracket")?;
            Shape::Map { key: self.read_shape(key)?, value: self.read_shape(value)? }
        } else if let Some(scalar) = scalar(text) {
            Shape::Scalar(scalar)
        } else {
            Shape::Named(self.read_type_name(text)?)
        };
        if let Some(id) = self.shapes.get(&shape) {
            return Ok(*id);
        }
        let id = ShapeId(index(self.types.shapes.len())?);
        self.types.shapes.push(shape);
        self.shapes.insert(shape, id);
        Ok(id)
    }

    fn read_type_name(&self, text: &str) -> Result<TypeId, String> {
        let (package, name) = match text.split_once('.') {
            None => (self.package, text),
            Some((package, name)) => {
                let known = self.types.package_index(package);
                (known.ok_or_else(|| format!("unknown package {package:?}"))?, name)
            }
        };
        self.types.find(package, name).ok_or_else(|| format!("unknown type {text:?}"))
    }

    fn intern_extra(&mut self, extra: FieldExtra) -> Result<u16, String> {
        if let Some(index) = self.extras.get(&extra) {
            return Ok(*index);
        }
        let index = index(self.types.extras.len())?;
        self.types.extras.push(extra);
        self.extras.insert(extra, index);
        Ok(index)
    }
}

fn read_field_word(word: &'static str, flags: &mut FieldFlags, extra: &mut FieldExtra) -> Result<(), String> {
    match word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value))) {
        ("omit", None) => flags.omit_empty = true,
        ("omitzero", None) => flags.omit_zero = true,
        ("discriminator", None) => flags.discriminator = true,
        ("patch", Some(strategy)) => extra.patch_strategy = Some(PatchStrategy::parse(strategy)?),
        ("key", Some(key)) => extra.merge_key = Some(key),
        ("list", Some(list_type)) => extra.list_type = Some(ListType::parse(list_type)?),
        ("keys", Some(keys)) => extra.list_keys = Some(keys),
        ("map", Some(map_type)) => extra.map_type = Some(MapType::parse(map_type)?),
        ("default", Some(value)) => extra.default = Some(value),
        _ => {
            let known = "omit, omitzero, discriminator, patch=, key=, list=, keys=, map=, default=";
            return Err(format!("unknown word {word:?} after a field's type; expected one of: {known}"));
        }
    }
    Ok(())
}

fn index(index: usize) -> Result<u16, String> {
    u16::try_from(index).map_err(|_| "more entries than 16 bits can count".into())
}

/// Most words are names of types, so the error that `Scalar::parse` writes is not made here.
fn scalar(word: &str) -> Option<Scalar> {
    Scalar::ALL.iter().copied().find(|scalar| scalar.word() == word)
}
