//! Reads the text of the type table. It runs once per process, and only on text that is part of the binary.

use std::collections::HashMap;

use super::{
    Definition, Field, FieldExtra, FieldFlags, KindScope, Package, Scalar, Shape, ShapeId, Special, TypeEntry, TypeId,
    TypeTable,
};

/// A line that does not fit the format.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    line: usize,
    problem: &'static str,
}

impl TypeTable {
    /// Reads a whole table. Types must be sorted by name within their package.
    pub fn parse(text: &'static str) -> Result<TypeTable, ParseError> {
        let mut reader = Reader { extras: HashMap::from([(FieldExtra::default(), 0)]), ..Reader::default() };
        reader.table.extras.push(FieldExtra::default());
        reader.read_names(text)?;
        reader.read_definitions(text)?;
        Ok(reader.table)
    }
}

#[derive(Default)]
struct Reader {
    table: TypeTable,
    shapes: HashMap<Shape, ShapeId>,
    extras: HashMap<FieldExtra, u16>,
    line: usize,
    package: u16,
}

impl Reader {
    /// The first pass: packages and names, so that the second can refer to types that come later.
    fn read_names(&mut self, text: &'static str) -> Result<(), ParseError> {
        for (index, line) in significant_lines(text) {
            self.line = index;
            if line.starts_with(' ') {
                continue;
            }
            let mut words = line.split(' ');
            match words.next() {
                Some("package") => self.read_package(words)?,
                Some(_) => {
                    let name = words.next().ok_or(self.error("a type needs a name"))?;
                    let package = self.package;
                    self.table.types.push(TypeEntry {
                        name,
                        package,
                        scope: KindScope::NotAKind,
                        union: false,
                        map_type: None,
                        definition: Definition::Scalar(Scalar::String),
                    });
                }
                None => {}
            }
        }
        let sorted = self.table.types.is_sorted_by_key(|entry| (entry.package, entry.name));
        if sorted { Ok(()) } else { Err(self.error("types are not sorted")) }
    }

    fn read_package(&mut self, mut words: impl Iterator<Item = &'static str>) -> Result<(), ParseError> {
        let name = words.next().ok_or(self.error("a package needs a name"))?;
        let mut package = Package { name, openapi_prefix: "", group: None };
        for word in words {
            match word.split_once('=') {
                Some(("openapi", prefix)) => package.openapi_prefix = prefix,
                Some(("group", group)) => package.group = Some(group),
                _ => return Err(self.error("unknown word after a package's name")),
            }
        }
        self.package = self.index(self.table.packages.len())?;
        self.table.packages.push(package);
        Ok(())
    }

    /// The second pass: what each type is. Types come in the same order as in the first pass.
    fn read_definitions(&mut self, text: &'static str) -> Result<(), ParseError> {
        let mut next_type = 0;
        let mut next_package = 0;
        for (index, line) in significant_lines(text) {
            self.line = index;
            if let Some(field) = line.strip_prefix(' ') {
                self.read_field(next_type, field)?;
                continue;
            }
            if line.starts_with("package ") {
                self.package = next_package;
                next_package += 1;
                continue;
            }
            self.close_struct(next_type);
            self.read_type(next_type, line)?;
            next_type += 1;
        }
        self.close_struct(next_type);
        Ok(())
    }

    fn read_type(&mut self, index: usize, line: &'static str) -> Result<(), ParseError> {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let rest = words.skip(1);
        let definition = match what {
            "struct" => {
                self.read_struct_words(index, rest)?;
                Definition::Struct { first_field: self.index(self.table.fields.len())?, field_count: 0 }
            }
            "scalar" | "alias" | "list" | "special" => {
                let word = rest.last().ok_or(self.error("a type needs a definition"))?;
                self.read_definition(what, word)?
            }
            _ => return Err(self.error("unknown kind of line")),
        };
        self.table.types[index].definition = definition;
        Ok(())
    }

    fn read_definition(&mut self, what: &str, word: &'static str) -> Result<Definition, ParseError> {
        Ok(match what {
            "scalar" => Definition::Scalar(scalar(word).ok_or(self.error("unknown basic type"))?),
            "alias" => Definition::Alias(self.read_shape(word)?),
            "list" => Definition::WrappedList(self.read_shape(word)?),
            _ => Definition::Special(special(word).ok_or(self.error("unknown special type"))?),
        })
    }

    fn read_struct_words(&mut self, index: usize, words: impl Iterator<Item = &'static str>) -> Result<(), ParseError> {
        for word in words {
            let unknown = self.error("unknown word after a struct's name");
            let entry = &mut self.table.types[index];
            match word {
                "kind" => entry.scope = KindScope::OwnGroup,
                "kind=core" => entry.scope = KindScope::CoreGroup,
                "kind=every" => entry.scope = KindScope::EveryGroup,
                "union" => entry.union = true,
                _ => entry.map_type = Some(word.strip_prefix("map=").ok_or(unknown)?),
            }
        }
        Ok(())
    }

    /// A field belongs to the type before `next_type`.
    fn read_field(&mut self, next_type: usize, line: &'static str) -> Result<(), ParseError> {
        let mut words = line.split(' ');
        let number = words.next().and_then(|word| word.parse().ok()).ok_or(self.error("a field needs a number"))?;
        let name = words.next().ok_or(self.error("a field needs a name"))?;
        let shape = words.next().ok_or(self.error("a field needs a type"))?;
        let shape = self.read_shape(shape)?;
        let (name, required) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        let mut flags = FieldFlags { required, inline: name == "<inline>", ..FieldFlags::default() };
        let mut extra = FieldExtra::default();
        for word in words {
            self.read_field_word(word, &mut flags, &mut extra)?;
        }
        let extra = self.intern_extra(extra)?;
        let index = self.index(self.table.fields.len())?;
        self.table.fields.push(Field { name, number, shape, extra, flags });
        self.table.by_number.push(index);
        let unexpected = self.error("a field outside a struct");
        let owner = next_type.checked_sub(1).and_then(|index| self.table.types.get_mut(index));
        match owner.map(|entry| &mut entry.definition) {
            Some(Definition::Struct { field_count, .. }) => *field_count += 1,
            _ => return Err(unexpected),
        }
        Ok(())
    }

    fn read_field_word(
        &self,
        word: &'static str,
        flags: &mut FieldFlags,
        extra: &mut FieldExtra,
    ) -> Result<(), ParseError> {
        match word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value))) {
            ("omit", None) => flags.omit_empty = true,
            ("omitzero", None) => flags.omit_zero = true,
            ("discriminator", None) => flags.discriminator = true,
            ("patch", strategy) => extra.patch_strategy = strategy,
            ("key", key) => extra.merge_key = key,
            ("list", kind) => extra.list_type = kind,
            ("keys", keys) => extra.list_keys = keys,
            ("map", kind) => extra.map_type = kind,
            ("default", value) => extra.default = value,
            _ => return Err(self.error("unknown word after a field's type")),
        }
        Ok(())
    }

    /// Sorts the finished struct's fields by number, for protobuf's sake.
    fn close_struct(&mut self, next_type: usize) {
        let Some(entry) = next_type.checked_sub(1).and_then(|index| self.table.types.get(index)) else { return };
        if let Definition::Struct { first_field, field_count } = entry.definition {
            let first = usize::from(first_field);
            let fields = &self.table.fields;
            self.table.by_number[first..first + usize::from(field_count)]
                .sort_by_key(|index| fields[usize::from(*index)].number);
        }
    }

    fn read_shape(&mut self, text: &'static str) -> Result<ShapeId, ParseError> {
        let shape = if text == "[]uint8" {
            Shape::Bytes
        } else if let Some(inner) = text.strip_prefix('*') {
            Shape::Pointer(self.read_shape(inner)?)
        } else if let Some(inner) = text.strip_prefix("[]") {
            Shape::List(self.read_shape(inner)?)
        } else if let Some(rest) = text.strip_prefix("map[") {
            let (key, value) = rest.split_once(']').ok_or(self.error("a map type without its bracket"))?;
            Shape::Map { key: self.read_shape(key)?, value: self.read_shape(value)? }
        } else if let Some(scalar) = scalar(text) {
            Shape::Scalar(scalar)
        } else {
            Shape::Named(self.read_type_name(text)?)
        };
        if let Some(id) = self.shapes.get(&shape) {
            return Ok(*id);
        }
        let id = ShapeId(self.index(self.table.shapes.len())?);
        self.table.shapes.push(shape);
        self.shapes.insert(shape, id);
        Ok(id)
    }

    fn read_type_name(&self, text: &str) -> Result<TypeId, ParseError> {
        let (package, name) = match text.split_once('.') {
            None => (self.package, text),
            Some((package, name)) => {
                let packages = &self.table.packages;
                let position = packages.binary_search_by(|known| known.name.cmp(package));
                (self.index(position.map_err(|_| self.error("unknown package"))?)?, name)
            }
        };
        self.table.find(package, name).ok_or(self.error("unknown type"))
    }

    fn intern_extra(&mut self, extra: FieldExtra) -> Result<u16, ParseError> {
        if let Some(index) = self.extras.get(&extra) {
            return Ok(*index);
        }
        let index = self.index(self.table.extras.len())?;
        self.table.extras.push(extra);
        self.extras.insert(extra, index);
        Ok(index)
    }

    fn index(&self, index: usize) -> Result<u16, ParseError> {
        u16::try_from(index).map_err(|_| self.error("more entries than an index can count"))
    }

    fn error(&self, problem: &'static str) -> ParseError {
        ParseError { line: self.line, problem }
    }
}

fn significant_lines(text: &'static str) -> impl Iterator<Item = (usize, &'static str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| {
        let line = line.trim_end();
        !line.is_empty() && !line.starts_with('#')
    })
}

fn scalar(word: &str) -> Option<Scalar> {
    Some(match word {
        "string" => Scalar::String,
        "bool" => Scalar::Bool,
        "int32" => Scalar::Int32,
        "int64" => Scalar::Int64,
        "float64" => Scalar::Float64,
        _ => return None,
    })
}

fn special(word: &str) -> Option<Special> {
    Some(match word {
        "time" => Special::Time,
        "microtime" => Special::MicroTime,
        "quantity" => Special::Quantity,
        "intorstring" => Special::IntOrString,
        "raw" => Special::Raw,
        "json" => Special::Json,
        "schemaorbool" => Special::SchemaOrBool,
        "schemaorarray" => Special::SchemaOrArray,
        "schemaorstrings" => Special::SchemaOrStrings,
        _ => return None,
    })
}
