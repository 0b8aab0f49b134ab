//! `columns.txt`: the columns of the tables that kubectl prints.

use crate::kubernetes_types::{ShapeId, TypeId, Types};
use crate::resources::Resource;
use crate::words::words;
use crate::{TableError, group, not_empty, path, significant_lines};

#[cfg(test)]
mod tests;

/// The columns of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'t> {
    /// Its line in the table.
    pub line: usize,
    /// The resource with its group, as in `apps/deployments`; the core group is called `core`.
    pub resource: &'t str,
    /// Its columns, with name and age where they belong.
    pub columns: Vec<Column<'t>>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column<'t> {
    /// What stands above it; underscores stand for spaces.
    pub title: &'t str,
    /// Whether only wide tables have it.
    pub wide: bool,
    /// What stands in its cells.
    pub cell: Cell<'t>,
}

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell<'t> {
    /// The object's name.
    Name,
    /// How old the object is.
    Age,
    /// The value at a path.
    Path(Vec<&'t str>),
    /// A text.
    Text(&'t str),
    /// Something made of the values at a path.
    Of(Function, Vec<&'t str>),
    /// The status of the condition of this type.
    State(Vec<&'t str>, &'t str),
    /// The type of the last condition that is true, or the text.
    Ended(Vec<&'t str>, &'t str),
    /// Two numbers, as in 1/2.
    Parts(Box<Cell<'t>>, Box<Cell<'t>>),
    /// Two texts, as in a/b.
    Inside(Box<Cell<'t>>, Box<Cell<'t>>),
    /// The first of two that says something.
    First(Box<Cell<'t>>, Box<Cell<'t>>),
    /// The cell, or Terminating when the object is being deleted.
    Ending(Box<Cell<'t>>),
    /// What follows from more of the object.
    Special(Special),
}

words! {
    /// What is made of the values at a path.
    Function, "function" {
        /// How many items or fields there are.
        Count = "count",
        /// How many of the values are true.
        True = "true",
        /// The sum of the numbers.
        Sum = "sum",
        /// The names of the fields.
        Keys = "keys",
        /// The texts of a list.
        Join = "join",
        /// The fields of a map, as in a=b,c=d.
        Labels = "labels",
        /// A label selector.
        Selector = "selector",
        /// The fields of a map, as in a: 1, b: 2.
        Amounts = "amounts",
        /// What is used of each bound of a quota.
        Requested = "requested",
        /// The same of the limits of pods.
        Limited = "limited",
        /// The text in lower case.
        Lower = "lower",
        /// The text with a capital letter.
        Title = "title",
        /// The ports of a service.
        Ports = "ports",
        /// Access modes, shortened.
        Modes = "modes",
        /// How long ago a time is.
        Age = "age",
    }
}

words! {
    /// Functions that combine other cells and texts.
    Combination, "function" {
        /// Two numbers, as in 1/2.
        Of = "of",
        /// Two texts, as in a/b.
        In = "in",
        /// The first of two that says something.
        First = "first",
        /// The cell, or Terminating.
        Ending = "ending",
        /// The cell, or the text.
        Or = "or",
        /// The text.
        Is = "is",
        /// What follows from more of the object.
        Special = "special",
        /// The status of a condition.
        State = "state",
        /// The last condition that is true.
        Ended = "ended",
    }
}

words! {
    /// Cells that follow from more of an object than a path leads to.
    Special, "special cell" {
        /// What a HorizontalPodAutoscaler measures, against what is wanted.
        AutoscalerTargets = "autoscaler-targets",
        /// How many entries a ConfigMap has.
        ConfigEntries = "config-entries",
        /// The first few addresses of Endpoints.
        Endpoints = "endpoints",
        /// Which component reports an Event.
        EventSource = "event-source",
        /// The ports of an Ingress.
        IngressPorts = "ingress-ports",
        /// The external address of a Node.
        NodeExternal = "node-external",
        /// The internal address of a Node.
        NodeInternal = "node-internal",
        /// The roles of a Node.
        NodeRoles = "node-roles",
        /// Whether a Node is ready.
        NodeStatus = "node-status",
        /// For how long a certificate is requested.
        RequestedTime = "requested-time",
        /// The external address of a Service.
        ServiceAddress = "service-address",
        /// The service accounts of a binding.
        SubjectAccounts = "subject-accounts",
        /// The groups of a binding.
        SubjectGroups = "subject-groups",
        /// The users of a binding.
        SubjectUsers = "subject-users",
    }
}

/// Reads the table.
///
/// # Errors
/// A line is not the columns of a resource, or there is none.
pub fn parse(text: &str) -> Result<Vec<Row<'_>>, TableError> {
    let rows = significant_lines(text).map(|(line, row)| {
        let (resource, rest) = row.split_once(' ').unwrap_or((row, ""));
        let columns = resource_name(resource).and_then(|_| columns(rest));
        columns.map(|columns| Row { line, resource, columns }).map_err(|problem| TableError::new(line, problem))
    });
    not_empty(rows.collect::<Result<_, _>>()?)
}

/// The columns of a resource that has no row.
pub fn usual() -> Vec<Column<'static>> {
    let column = |title, cell| Column { title, wide: false, cell };
    vec![column("Name", Cell::Name), column("Age", Cell::Age)]
}

/// `GROUP/RESOURCE`, with the group's real name.
fn resource_name(text: &str) -> Result<(&str, &str), String> {
    let (written, resource) = text.split_once('/').ok_or("expected GROUP/RESOURCE TITLE=CELL ...")?;
    Ok((group(written)?, resource))
}

/// The columns that a row names, with the name first and the age last unless the row says otherwise.
fn columns(text: &str) -> Result<Vec<Column<'_>>, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let says = |wanted: &[&str]| words.iter().any(|word| wanted.contains(word));
    let mut columns = Vec::new();
    if !says(&["Name", "+Name"]) {
        columns.push(Column { title: "Name", wide: false, cell: Cell::Name });
    }
    for word in words.iter().filter(|word| **word != "-Age") {
        columns.push(column(word)?);
    }
    if !says(&["Age", "+Age", "-Age"]) {
        columns.push(Column { title: "Age", wide: false, cell: Cell::Age });
    }
    Ok(columns)
}

fn column(word: &str) -> Result<Column<'_>, String> {
    let (wide, word) = word.strip_prefix('+').map_or((false, word), |word| (true, word));
    let (title, cell) = match (word, word.split_once('=')) {
        ("Name", _) => (word, Cell::Name),
        ("Age", _) => (word, Cell::Age),
        (_, Some((title, cell))) if !title.is_empty() => (title, parse_cell(cell)?),
        _ => return Err(format!("expected TITLE=CELL, Name, Age or -Age, found {word:?}")),
    };
    Ok(Column { title, wide, cell })
}

/// Reads a cell: a path, or a function of paths, cells and texts.
///
/// # Errors
/// The text is neither.
pub fn parse_cell(text: &str) -> Result<Cell<'_>, String> {
    let Some((name, rest)) = text.split_once('(') else { return path(text).map(Cell::Path) };
    let inside = rest.strip_suffix(')').ok_or_else(|| format!("{text:?} lacks its closing parenthesis"))?;
    let arguments = split_arguments(inside)?;
    if let Some(function) = Function::ALL.iter().find(|function| function.word() == name) {
        return path(inside).map(|path| Cell::Of(*function, path));
    }
    let boxed = |text| parse_cell(text).map(Box::new);
    let known = Combination::parse(name).map_err(|others| {
        let functions: Vec<&str> = Function::ALL.iter().map(|function| function.word()).collect();
        format!("{others}, {}", functions.join(", "))
    })?;
    Ok(match (known, arguments.as_slice()) {
        (Combination::Of, [part, whole]) => Cell::Parts(boxed(part)?, boxed(whole)?),
        (Combination::In, [outer, inner]) => Cell::Inside(boxed(outer)?, boxed(inner)?),
        (Combination::First, [first, second]) => Cell::First(boxed(first)?, boxed(second)?),
        (Combination::Ending, [cell]) => Cell::Ending(boxed(cell)?),
        (Combination::Or, [cell, text]) => Cell::First(boxed(cell)?, Box::new(Cell::Text(text))),
        (Combination::Is, [text]) => Cell::Text(text),
        (Combination::Special, [name]) => Cell::Special(Special::parse(name)?),
        (Combination::State, [conditions, kind]) => Cell::State(path(conditions)?, kind),
        (Combination::Ended, [conditions, text]) => Cell::Ended(path(conditions)?, text),
        (_, arguments) => return Err(format!("{name} cannot have {} arguments", arguments.len())),
    })
}

/// The arguments between the commas that stand in no further parentheses.
fn split_arguments(text: &str) -> Result<Vec<&str>, String> {
    let mut depth = 0;
    let mut lowest = 0;
    let arguments = text.split(|letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        lowest = lowest.min(depth);
        letter == ',' && depth == 0
    });
    let arguments: Vec<&str> = arguments.collect();
    if depth == 0 && lowest == 0 { Ok(arguments) } else { Err(format!("the parentheses of {text:?} do not match")) }
}

/// What the build script checks beyond the form of the rows.
///
/// # Errors
/// A resource is not there or there twice, a title is there twice, or a path leads nowhere in every version of the kind.
pub fn check(rows: &[Row<'_>], resources: &[Resource<'_>], types: &Types) -> Result<(), TableError> {
    for (index, row) in rows.iter().enumerate() {
        check_row(row, &rows[..index], resources, types).map_err(|problem| TableError::new(row.line, problem))?;
    }
    Ok(())
}

fn check_row(row: &Row<'_>, earlier: &[Row<'_>], resources: &[Resource<'_>], types: &Types) -> Result<(), String> {
    if let Some(earlier) = earlier.iter().find(|earlier| earlier.resource == row.resource) {
        return Err(format!("{} is already in line {}", row.resource, earlier.line));
    }
    let name = resource_name(row.resource)?;
    let resource = resources.iter().find(|resource| (resource.group, resource.resource) == name);
    let resource = resource.ok_or_else(|| format!("there is no resource {} in resources.txt", row.resource))?;
    let versions = resource.history.iter().flat_map(|history| &history.versions);
    let kinds: Vec<TypeId> = versions.filter_map(|version| types.kind(&version.api_version(), resource.kind)).collect();
    for (index, column) in row.columns.iter().enumerate() {
        if row.columns[..index].iter().any(|earlier| earlier.title == column.title) {
            return Err(format!("there are two columns {}", column.title));
        }
        let mut paths = Vec::new();
        column.cell.paths(&mut paths);
        for path in paths {
            if !kinds.iter().any(|kind| leads_somewhere(types, *kind, path)) {
                return Err(format!("{} has no field {:?} in any version", resource.kind, path.join(".")));
            }
        }
    }
    Ok(())
}

/// Whether a path leads to a field. It goes through every list that it meets.
fn leads_somewhere(types: &Types, kind: TypeId, path: &[&str]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    let step = |at: ShapeId, name: &&str| types.shape_inside(types.shape_of_item(at).unwrap_or(at), name);
    types.shape_of_field(kind, first).and_then(|first| rest.iter().try_fold(first, step)).is_some()
}

impl<'t> Cell<'t> {
    /// Every path in a cell.
    fn paths<'c>(&'c self, found: &mut Vec<&'c [&'t str]>) {
        match self {
            Cell::Path(path) | Cell::Of(_, path) | Cell::State(path, _) | Cell::Ended(path, _) => found.push(path),
            Cell::Parts(first, second) | Cell::Inside(first, second) | Cell::First(first, second) => {
                first.paths(found);
                second.paths(found);
            }
            Cell::Ending(cell) => cell.paths(found),
            Cell::Name | Cell::Age | Cell::Text(_) | Cell::Special(_) => {}
        }
    }
}
