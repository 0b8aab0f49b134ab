//! `checks.txt`: what the values of single fields may be.

use crate::defaults::When;
use crate::kubernetes_types::{Form, Scalar, ShapeId, Special, TypeId, Types};
use crate::words::words;
use crate::{TableError, not_empty, path, significant_lines};

#[cfg(test)]
mod tests;

/// A check of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check<'t> {
    /// Its line in the table.
    pub line: usize,
    /// The type that it holds for, as in `core/v1.PodSpec`.
    pub type_name: &'t str,
    /// The way from there to the field; none leads to the value itself.
    pub steps: Vec<PathStep<'t>>,
    /// What is done about a value that is not set.
    pub unset: Unset,
    /// What the value must be.
    pub rule: CheckRule<'t>,
    /// The message, where it is not the rule's own.
    pub detail: Option<&'t str>,
    /// When it holds.
    pub when: Option<When<'t>>,
}

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStep<'t> {
    /// The field.
    pub name: &'t str,
    /// Whether it goes on to the items of a list.
    pub items: Items,
}

/// Whether a step leads to the items of a list, and whether errors name the item or the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Items {
    /// It leads to the field itself.
    None,
    /// To each item, and errors name the item.
    Each,
    /// To each item, and errors name the list.
    AsOne,
}

/// What is done about a value that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unset {
    /// It passes, and so does an empty text or a zero.
    Passes,
    /// It passes, but an empty text or a zero is a value.
    PassesIfMissing,
    /// It is checked as an empty text, or a zero.
    Counts,
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckRule<'t> {
    /// There must be something.
    Needed,
    /// It must be set.
    Present,
    /// One of these texts.
    OneOf(Vec<&'t str>),
    /// A number from here to there.
    Within(Option<i64>, Option<i64>),
    /// A text of a certain form.
    Text(TextForm),
    /// The number of a port, or its name.
    Port,
    /// A number or a percentage; and whether that ends at 100%.
    Share {
        /// Whether more than 100% is too much.
        whole: bool,
    },
    /// Labels, or what selects them.
    Labels,
    /// A list without two items that are the same, or that have the same in this field.
    Unique(Option<&'t str>),
    /// One of these fields must be set.
    AnyOf(Vec<&'t str>),
}

words! {
    /// The names of rules.
    RuleName, "rule" {
        /// There must be something.
        Needed = "needed",
        /// It must be set.
        Present = "present",
        /// One of these texts.
        OneOf = "one-of",
        /// A number from here to there.
        Within = "within",
        /// The number of a port, or its name.
        Port = "port",
        /// A number or a percentage.
        Share = "share",
        /// Labels.
        Labels = "labels",
        /// A list without duplicates.
        Unique = "unique",
        /// One of these fields.
        AnyOf = "any-of",
    }
}

words! {
    /// The forms of texts.
    TextForm, "form" {
        /// A DNS label.
        Label = "label",
        /// A DNS subdomain.
        Subdomain = "subdomain",
        /// A DNS label that begins with a letter.
        ServiceLabel = "service-label",
        /// A segment of a path.
        PathSegment = "path-segment",
        /// A qualified name, as the key of a label.
        Qualified = "qualified",
        /// The value of a label.
        LabelValue = "label-value",
        /// A key of a ConfigMap or Secret.
        ConfigKey = "config-key",
        /// The name of a port.
        PortName = "port-name",
        /// The name of a host, perhaps with a wildcard.
        Host = "host",
        /// An IP address.
        Ip = "ip",
        /// An IP network.
        Cidr = "cidr",
        /// An absolute path.
        Absolute = "absolute",
        /// A path that begins with a domain.
        DomainPath = "domain-path",
    }
}

/// Reads the table.
///
/// # Errors
/// A line is not a check, or there is none.
pub fn parse(text: &str) -> Result<Vec<Check<'_>>, TableError> {
    let rows = significant_lines(text);
    let rows = rows.map(|(line, row)| check_of(line, row).map_err(|problem| TableError::new(line, problem)));
    not_empty(rows.collect::<Result<_, _>>()?)
}

/// `TYPE PATH RULE [: WORDS] [when PATH=TEXT]`. The words may contain "when" themselves.
fn check_of(line: usize, row: &str) -> Result<Check<'_>, String> {
    let is_condition = |when: &str| when.contains('=') && !when.contains(' ');
    let condition = row.rsplit_once(" when ").filter(|(head, when)| is_condition(when) || !head.contains(" :"));
    let (row, when) = condition.map_or((row, None), |(row, when)| (row, Some(when)));
    let (row, detail) = row.split_once(" : ").map_or((row, None), |(row, detail)| (row, Some(detail)));
    let mut words = row.split_whitespace();
    let (Some(type_name), Some(at), Some(rule)) = (words.next(), words.next(), words.next()) else {
        return Err("expected TYPE PATH RULE [: WORDS] [when PATH=TEXT]".into());
    };
    let (at, unset) = match (at.strip_suffix('!'), at.strip_suffix('?')) {
        (Some(at), _) => (at, Unset::Counts),
        (_, Some(at)) => (at, Unset::PassesIfMissing),
        _ => (at, Unset::Passes),
    };
    let steps = if at == "." { Ok(Vec::new()) } else { at.split('.').map(step).collect::<Result<Vec<_>, _>>() }?;
    let rule = parse_rule(rule, words.collect())?;
    if steps.is_empty() != matches!(rule, CheckRule::AnyOf(_)) {
        return Err("any-of checks the value itself, at \".\", and all other rules check fields".into());
    }
    Ok(Check { line, type_name, steps, unset, rule, detail, when: when.map(When::parse).transpose()? })
}

fn step(text: &str) -> Result<PathStep<'_>, String> {
    let (name, items) = match (text.strip_suffix("[]"), text.strip_suffix("[*]")) {
        (Some(name), _) => (name, Items::Each),
        (_, Some(name)) => (name, Items::AsOne),
        _ => (text, Items::None),
    };
    path(name).map(|_| PathStep { name, items })
}

fn parse_rule<'t>(name: &str, words: Vec<&'t str>) -> Result<CheckRule<'t>, String> {
    let Ok(known) = RuleName::parse(name) else {
        let form = TextForm::parse(name).map_err(|forms| match RuleName::parse(name) {
            Err(rules) => format!("{rules}; or {}", forms.rsplit(": ").next().unwrap_or_default()),
            Ok(_) => forms,
        })?;
        return if words.is_empty() { Ok(CheckRule::Text(form)) } else { Err(format!("{name} takes no words")) };
    };
    Ok(match (known, words.as_slice()) {
        (RuleName::Needed, []) => CheckRule::Needed,
        (RuleName::Present, []) => CheckRule::Present,
        // An empty text is written as "".
        (RuleName::OneOf, [_, ..]) => {
            CheckRule::OneOf(words.into_iter().map(|word| if word == "\"\"" { "" } else { word }).collect())
        }
        (RuleName::Within, [low, high]) => CheckRule::Within(bound(low)?, bound(high)?),
        (RuleName::Port, []) => CheckRule::Port,
        (RuleName::Share, []) => CheckRule::Share { whole: false },
        (RuleName::Share, ["whole"]) => CheckRule::Share { whole: true },
        (RuleName::Labels, []) => CheckRule::Labels,
        (RuleName::Unique, []) => CheckRule::Unique(None),
        (RuleName::Unique, [field]) => CheckRule::Unique(Some(field)),
        (RuleName::AnyOf, [_, ..]) => CheckRule::AnyOf(words),
        (_, words) => return Err(format!("{name} cannot be followed by {:?}", words.join(" "))),
    })
}

fn bound(word: &str) -> Result<Option<i64>, String> {
    match word {
        "*" => Ok(None),
        _ => word.parse().map(Some).map_err(|_| format!("{word:?} is neither a number nor *")),
    }
}

/// What the build script checks beyond the form of the rows.
///
/// # Errors
/// A type or field is not there, a rule does not fit its field, or a check is there twice.
pub fn check(checks: &[Check<'_>], types: &Types) -> Result<(), TableError> {
    for (index, check) in checks.iter().enumerate() {
        let fits = types.find_struct(check.type_name).and_then(|id| {
            check.when.as_ref().map_or(Ok(()), |when| when.check(types, id))?;
            fits(check, types, id)
        });
        fits.map_err(|problem| TableError::new(check.line, problem))?;
        let same = |other: &&Check<'_>| {
            (other.type_name, &other.steps, &other.rule, &other.when)
                == (check.type_name, &check.steps, &check.rule, &check.when)
        };
        if let Some(earlier) = checks[..index].iter().find(same) {
            return Err(TableError::new(check.line, format!("the check is already in line {}", earlier.line)));
        }
    }
    Ok(())
}

fn fits(check: &Check<'_>, types: &Types, id: TypeId) -> Result<(), String> {
    let Some(at) = follow(check, types, id)? else {
        let CheckRule::AnyOf(names) = &check.rule else { return Ok(()) };
        return names.iter().try_for_each(|name| types.follow(id, &[name]).map(drop));
    };
    let form = types.target_form(at);
    let is_number = matches!(form, Form::Scalar(Scalar::Int32 | Scalar::Int64));
    let is_number_or_text = matches!(form, Form::Special(Special::IntOrString, _));
    let fits = match &check.rule {
        CheckRule::Needed | CheckRule::Present => true,
        CheckRule::OneOf(_) | CheckRule::Text(_) => matches!(form, Form::Scalar(Scalar::String)),
        CheckRule::Within(..) => is_number,
        CheckRule::Port => is_number || is_number_or_text,
        CheckRule::Share { .. } => is_number_or_text,
        CheckRule::Labels => matches!(form, Form::Map(_)),
        CheckRule::Unique(field) => {
            let item = types.shape_of_item(at).ok_or("unique is only for lists")?;
            match field.filter(|field| types.shape_inside(item, field).is_none()) {
                Some(field) => return Err(format!("the items have no field {field:?}")),
                None => true,
            }
        }
        CheckRule::AnyOf(_) => false,
    };
    if fits { Ok(()) } else { Err(format!("the rule does not fit the field, which is {}", types.form_name(form))) }
}

/// The type of the field that a check leads to; none where it checks the value itself.
fn follow(check: &Check<'_>, types: &Types, id: TypeId) -> Result<Option<ShapeId>, String> {
    let mut at: Option<ShapeId> = None;
    for step in &check.steps {
        let found = match at {
            None => types.shape_of_field(id, step.name),
            Some(outer) => types.shape_inside(outer, step.name),
        };
        let shape = found.ok_or_else(|| format!("{} has no field {:?} on the path", check.type_name, step.name))?;
        at = Some(match step.items {
            Items::None => shape,
            Items::Each | Items::AsOne => {
                types.shape_of_item(shape).ok_or_else(|| format!("{:?} is not a list", step.name))?
            }
        });
    }
    Ok(at)
}
