//! The text of the table: its packages and types, read and written in one form.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};

/// Basic types; every other name in a type expression refers to a type of the table.
const BASIC: [&str; 6] = ["string", "bool", "int32", "int64", "float64", "uint8"];

/// The comment above the packages and kinds that the release no longer has.
const KEPT: &str = "# kept from an earlier release";

/// A package's name in the table, and a type's name in the package.
type TypeName = (String, String);

/// The table without the comments at its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) packages: BTreeMap<String, PackageRows>,
}

/// A package and its types by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackageRows {
    pub(crate) openapi: String,
    pub(crate) group: Option<String>,
    pub(crate) types: BTreeMap<String, TypeRow>,
}

/// A type: its line after the name, and the lines of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypeRow {
    /// `struct`, `scalar`, `alias`, `list` or `special`.
    pub(crate) what: String,
    /// The words after the name.
    pub(crate) words: Vec<String>,
    pub(crate) fields: Vec<String>,
    /// The release does not have it; it comes from the table of an earlier one.
    pub(crate) kept: bool,
}

impl TypeRow {
    fn is_kind(&self) -> bool {
        self.words.iter().any(|word| word == "kind" || word.starts_with("kind="))
    }

    /// The type expressions of the row.
    fn expressions(&self) -> impl Iterator<Item = &str> {
        let own = self.words.iter().filter(|_| matches!(self.what.as_str(), "alias" | "list")).map(String::as_str);
        own.chain(self.fields.iter().filter_map(|field| field.split(' ').nth(2)))
    }
}

impl Table {
    /// Reads the text of a table.
    pub(crate) fn parse(text: &str) -> Result<Table> {
        let mut reader = Reader::default();
        for (index, line) in text.lines().enumerate() {
            reader.line(line).with_context(|| format!("line {}", index + 1))?;
        }
        reader.table.packages.extend(reader.package.take());
        Ok(reader.table)
    }

    /// Adds the kinds of an earlier table that this one lacks, with all that they refer to: a server that speaks an
    /// older release still needs them. The types of this table stay unchanged.
    pub(crate) fn keep_kinds_of(&mut self, earlier: &Table) -> Result<()> {
        let mut wanted: Vec<TypeName> = earlier.names().filter(|name| earlier.is_kind(name)).collect();
        while let Some(name) = wanted.pop() {
            if self.get(&name).is_some() {
                continue;
            }
            let (package, type_name) = &name;
            let not_there = || format!("{package}.{type_name} is not in the earlier table");
            let row = earlier.get(&name).with_context(not_there)?;
            let rows = earlier.packages.get(package).with_context(not_there)?;
            wanted.extend(row.expressions().flat_map(|expression| references(package, expression)));
            let own = self.packages.entry(package.clone()).or_insert_with(|| PackageRows {
                openapi: rows.openapi.clone(),
                group: rows.group.clone(),
                types: BTreeMap::new(),
            });
            own.types.insert(type_name.clone(), TypeRow { kept: true, ..row.clone() });
        }
        Ok(())
    }

    /// The names of the packages and kinds that the release does not have.
    pub(crate) fn kept(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (package, rows) in &self.packages {
            if rows.is_kept() {
                names.push(package.clone());
            } else {
                let kept = rows.types.iter().filter(|(_, row)| row.kept && row.is_kind());
                names.extend(kept.map(|(name, _)| format!("{package}.{name}")));
            }
        }
        names
    }

    pub(crate) fn type_count(&self) -> usize {
        self.packages.values().map(|rows| rows.types.len()).sum()
    }

    fn get(&self, (package, name): &TypeName) -> Option<&TypeRow> {
        self.packages.get(package)?.types.get(name)
    }

    fn is_kind(&self, name: &TypeName) -> bool {
        self.get(name).is_some_and(TypeRow::is_kind)
    }

    fn names(&self) -> impl Iterator<Item = TypeName> {
        self.packages.iter().flat_map(|(package, rows)| rows.types.keys().map(|name| (package.clone(), name.clone())))
    }
}

impl PackageRows {
    fn is_kept(&self) -> bool {
        self.types.values().all(|row| row.kept)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, rows) in &self.packages {
            writeln!(f)?;
            if rows.is_kept() {
                writeln!(f, "{KEPT}")?;
            }
            write!(f, "package {name} openapi={}", rows.openapi)?;
            match &rows.group {
                Some(group) => writeln!(f, " group={group}")?,
                None => writeln!(f)?,
            }
            for (name, row) in &rows.types {
                if row.kept && row.is_kind() && !rows.is_kept() {
                    writeln!(f, "{KEPT}")?;
                }
                write!(f, "{} {name}", row.what)?;
                row.words.iter().try_for_each(|word| write!(f, " {word}"))?;
                writeln!(f)?;
                row.fields.iter().try_for_each(|field| writeln!(f, " {field}"))?;
            }
        }
        Ok(())
    }
}

/// Reads a table line by line.
#[derive(Default)]
struct Reader {
    table: Table,
    package: Option<(String, PackageRows)>,
    /// The name of the type above.
    last: String,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<()> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.starts_with("package ") {
            self.table.packages.extend(self.package.take());
            self.package = Some(read_package(line)?);
            self.last.clear();
            return Ok(());
        }
        let Some((_, rows)) = self.package.as_mut() else { bail!("a line outside a package") };
        if let Some(field) = line.strip_prefix(' ') {
            let row = rows.types.get_mut(&self.last).context("a field outside a struct")?;
            row.fields.push(field.to_owned());
            return Ok(());
        }
        let mut words = line.split(' ').map(str::to_owned);
        let what = words.next().unwrap_or_default();
        self.last = words.next().context("a type needs a name")?;
        let row = TypeRow { what, words: words.collect(), ..TypeRow::default() };
        match rows.types.insert(self.last.clone(), row) {
            Some(_) => bail!("{} is there twice", self.last),
            None => Ok(()),
        }
    }
}

fn read_package(line: &str) -> Result<(String, PackageRows)> {
    let mut words = line.split(' ').skip(1);
    let name = words.next().context("a package needs a name")?.to_owned();
    let mut rows = PackageRows::default();
    for word in words {
        match word.split_once('=') {
            Some(("openapi", prefix)) => prefix.clone_into(&mut rows.openapi),
            Some(("group", group)) => rows.group = Some(group.to_owned()),
            _ => bail!("unknown word `{word}` after a package's name"),
        }
    }
    Ok((name, rows))
}

/// The types that an expression in `package` refers to.
fn references(package: &str, expression: &str) -> Vec<TypeName> {
    let names = expression.split(['*', '[', ']']);
    names
        .filter(|name| !name.is_empty() && *name != "map" && !BASIC.contains(name))
        .map(|name| name.split_once('.').unwrap_or((package, name)))
        .map(|(package, name)| (package.to_owned(), name.to_owned()))
        .collect()
}
