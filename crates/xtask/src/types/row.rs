//! The rows of one declared type: its line and the lines of its fields.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::table::TypeRow;
use crate::go::{FieldDecl, Markers, Package, TypeDecl, TypeExpr};
use crate::proto::Messages;

/// The facts in the tags and markers of a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FieldFacts {
    /// Protobuf's number and name of the field, where it has one.
    protobuf: Option<(u16, String)>,
    /// The JSON name; `None` where the fields of the struct appear at this level.
    name: Option<String>,
    required: bool,
    words: Vec<String>,
}

/// Whether OpenAPI describes a type, and with it the required fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenApi {
    Described,
    Absent,
}

/// The context that the facts of a field depend on.
pub(super) struct StructContext<'a> {
    pub(super) openapi: OpenApi,
    /// OpenAPI knows discriminators only in structs that are marked as unions.
    pub(super) is_union: bool,
    /// Where constants are declared.
    pub(super) package: &'a Package,
}

impl FieldFacts {
    /// The facts of a field; `None` for a field that JSON omits.
    pub(super) fn of(field: &FieldDecl, context: &StructContext<'_>) -> Result<Option<FieldFacts>> {
        let location = &field.location;
        let json = field.tag.get("json").with_context(|| format!("{location}: a field without a json tag"))?;
        if json == "-" {
            return Ok(None);
        }
        let mut options = json.split(',');
        let name = options.next().unwrap_or_default();
        let mut words = Vec::new();
        for option in options {
            match option {
                "omitempty" => words.push("omit".to_owned()),
                "omitzero" => words.push("omitzero".to_owned()),
                "inline" | "" => {}
                other => bail!("{location}: the json option `{other}` is not understood"),
            }
        }
        let inline = name.is_empty();
        if inline && field.name.is_some() {
            bail!("{location}: a json tag without a name on a field that is not embedded");
        }
        let optional = is_optional(field, words.iter().any(|word| word == "omit"))?;
        words.sort();
        words.extend(merge_words(field)?);
        words.extend(default_word(field, context.package)?);
        if context.is_union && field.markers.has("unionDiscriminator") {
            words.push("discriminator".to_owned());
        }
        let required = context.openapi == OpenApi::Described && !optional && !inline;
        let protobuf = protobuf(field, name)?;
        let name = (!inline).then(|| name.to_owned());
        Ok(Some(FieldFacts { protobuf, name, required, words }))
    }

    /// The field's line; `expression` is its type.
    pub(super) fn line(&self, expression: &str) -> String {
        let number = self.protobuf.as_ref().map_or(0, |(number, _)| *number);
        let name = self.name.as_deref().unwrap_or("<inline>");
        let mark = if self.required { "!" } else { "" };
        let mut line = format!("{number} {name}{mark} {expression}");
        for word in &self.words {
            line.push(' ');
            line.push_str(word);
        }
        line
    }
}

/// The line of a struct without its fields; `kind` says where it is registered.
pub(super) fn struct_row(declared: &TypeDecl, kind: Option<&str>) -> TypeRow {
    let mut words: Vec<String> = kind.map(str::to_owned).into_iter().collect();
    words.extend(map_type(&declared.markers));
    if declared.markers.has("union") {
        words.push("union".to_owned());
    }
    TypeRow { what: "struct".to_owned(), words, ..TypeRow::default() }
}

/// The line of a type that is not a struct.
pub(super) fn named_row(name: &str, definition: &TypeExpr, expression: &str, messages: &Messages) -> TypeRow {
    let what = match definition {
        TypeExpr::Name { .. } => "scalar",
        TypeExpr::Slice(_) if messages.contains_key(name) => "list",
        _ => "alias",
    };
    TypeRow { what: what.to_owned(), words: vec![expression.to_owned()], ..TypeRow::default() }
}

/// Go's tags and `generated.proto` must agree.
pub(super) fn check_message(declared: &TypeDecl, facts: &[FieldFacts], messages: &Messages) -> Result<()> {
    let (location, name) = (&declared.location, &declared.name);
    let numbered: Vec<&(u16, String)> = facts.iter().filter_map(|field| field.protobuf.as_ref()).collect();
    let Some(message) = messages.get(name) else {
        if numbered.is_empty() {
            return Ok(());
        }
        bail!("{location}: {name} has protobuf tags, but generated.proto has no such message");
    };
    for (number, field) in &numbered {
        match message.get(field) {
            Some(known) if known == number => {}
            Some(other) => bail!("{location}: {name}.{field} has number {number}, but {other} in generated.proto"),
            None => bail!("{location}: {name}.{field} is not in generated.proto"),
        }
    }
    if message.len() != numbered.len() {
        let (go, proto) = (numbered.len(), message.len());
        bail!("{location}: {name} has {go} protobuf fields, but {proto} in generated.proto");
    }
    Ok(())
}

/// The rule of Kubernetes' OpenAPI generator: markers decide, and without them `omitempty` does.
fn is_optional(field: &FieldDecl, omits_empty: bool) -> Result<bool> {
    match (field.markers.has("optional"), field.markers.has("required")) {
        (true, true) => bail!("{}: a field that is both optional and required", field.location),
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        (false, false) => Ok(omits_empty),
    }
}

/// `protobuf:"bytes,1,opt,name=metadata"`; without a name, protobuf calls the field as JSON or Go does.
fn protobuf(field: &FieldDecl, json_name: &str) -> Result<Option<(u16, String)>> {
    let Some(tag) = field.tag.get("protobuf").filter(|tag| *tag != "-") else { return Ok(None) };
    let Some(number) = tag.split(',').nth(1).and_then(|number| number.parse().ok()) else {
        bail!("{}: the protobuf tag `{tag}` is not understood", field.location);
    };
    let name = tag.split(',').find_map(|option| option.strip_prefix("name="));
    let name = match (name, &field.name, &field.expr) {
        (Some(name), _, _) => name.to_owned(),
        (None, _, _) if !json_name.is_empty() => json_name.to_owned(),
        (None, Some(name), _) | (None, None, TypeExpr::Name { name, .. }) => lower_first(name),
        (None, None, _) => bail!("{}: the protobuf tag `{tag}` names no field", field.location),
    };
    Ok(Some((number, name)))
}

fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

/// How patches and server-side apply merge the field.
fn merge_words(field: &FieldDecl) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut add = |word: &str, value: Option<&str>| words.extend(value.map(|value| format!("{word}={value}")));
    for (word, key) in [("patch", "patchStrategy"), ("key", "patchMergeKey")] {
        if field.markers.value(key).is_some_and(|value| Some(value) != field.tag.get(key)) {
            bail!("{}: the marker {key} and the tag {key} differ", field.location);
        }
        add(word, field.tag.get(key));
    }
    add("list", field.markers.value("listType"));
    let keys: Vec<&str> = field.markers.values("listMapKey").collect();
    add("keys", Some(keys.join(",").as_str()).filter(|keys| !keys.is_empty()));
    words.extend(map_type(&field.markers));
    match words.iter().find(|word| word.contains(char::is_whitespace) || word.ends_with('=')) {
        Some(word) => bail!("{}: `{word}` cannot be a word of the table", field.location),
        None => Ok(words),
    }
}

fn map_type(markers: &Markers) -> Option<String> {
    markers.value("mapType").or(markers.value("structType")).map(|value| format!("map={value}"))
}

/// `+default=JSON`, or `+default=ref(CONSTANT)`.
fn default_word(field: &FieldDecl, package: &Package) -> Result<Option<String>> {
    let Some(text) = field.markers.value("default") else { return Ok(None) };
    let location = &field.location;
    let value = match text.strip_prefix("ref(").and_then(|text| text.strip_suffix(')')) {
        Some(name) => {
            let value =
                package.constant(name).with_context(|| format!("{location}: {name} is not a string constant"))?;
            Value::from(value)
        }
        None => serde_json::from_str(text).with_context(|| format!("{location}: the default `{text}` is not JSON"))?,
    };
    let word = format!("default={value}");
    if word.contains(char::is_whitespace) {
        bail!("{location}: the default {value} contains a space, which the table cannot say");
    }
    Ok(Some(word))
}
