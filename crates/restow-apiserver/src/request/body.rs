//! Decodes the body of a request.

use crate::error::ApiError;
use crate::request::Request;
use crate::request::negotiation::Media;
use crate::resource::Origin;
use restow_apimachinery::MAX_DEPTH;
use restow_apimachinery::field::FieldProblem;
use restow_apimachinery::managed_fields::Given;
use restow_apimachinery::object::Object;
use restow_apimachinery::types;
use restow_apimachinery::untyped;
use serde_json::Value;

/// The object in a request's body, which must be of the request's kind and version.
pub(crate) fn object(call: &Request) -> Result<Object, ApiError> {
    let (value, problems) = match (call.resource.type_id(&call.version), call.content.unwrap_or(Media::Json)) {
        // The type determines how the text is parsed, so that duplicate fields are found.
        (Some(kind), Media::Json) => {
            let decoded = types::decode_json(kind, &call.body);
            if decoded.is_err() || !call.body.trim_ascii_start().starts_with(b"{") {
                untyped_kind(call, &call.body)?;
            }
            let decoded = decoded.map_err(|error| undecodable(call, &error))?;
            (decoded.value, decoded.problems)
        }
        (Some(kind), media) => {
            let (value, problems) = value_and_problems(call, media)?;
            let given = as_object(value)?;
            check_type(call, &mut given.clone())?;
            let decoded = types::normalize(kind, given.into_value()).map_err(|error| undecodable(call, &error))?;
            (decoded.value, [problems, decoded.problems].concat())
        }
        (None, media) => value_and_problems(call, media)?,
    };
    let mut object = as_object(value)?;
    check_type(call, &mut object)?;
    let unknown = read_custom(call, &mut object)?;
    report(call, &[problems, unknown].concat())?;
    Ok(object)
}

/// Normalizes the result of a patch by its type.
pub(crate) fn normalized(call: &Request, value: Value) -> Result<Object, ApiError> {
    let Some(kind) = call.resource.type_id(&call.version) else {
        let mut object = as_object(value)?;
        let unknown = read_custom(call, &mut object)?;
        report(call, &unknown)?;
        return Ok(object);
    };
    let decoded = types::normalize(kind, value).map_err(|error| undecodable(call, &error))?;
    report(call, &decoded.problems)?;
    as_object(decoded.value)
}

/// Prunes and defaults a custom resource by its schema, and its metadata by the type of metadata, since clients may
/// read the metadata of all kinds alike. Returns the unknown fields.
fn read_custom(call: &Request, object: &mut Object) -> Result<Vec<FieldProblem>, ApiError> {
    if call.resource.type_id(&call.version).is_some() {
        return Ok(call.resource.strategy.read(object));
    }
    let unknown = call.resource.strategy.read(object);
    let metadata = read_metadata(object).map_err(|error| undecodable(call, &error))?;
    Ok([metadata, unknown].concat())
}

/// Normalizes the metadata of an object of any kind; returns its unknown fields.
pub(crate) fn read_metadata(object: &mut Object) -> Result<Vec<FieldProblem>, types::JsonError> {
    let table = types::TypeTable::shared();
    let kind = table.metadata_shape().and_then(|shape| table.struct_of(shape));
    let (Some(kind), Some(metadata)) = (kind, object.get("metadata")) else { return Ok(Vec::new()) };
    let decoded = types::normalize(kind, metadata.clone())?;
    object.set("metadata", Some(decoded.value));
    let placed = |problem: FieldProblem| match problem {
        FieldProblem::Unknown(path) => FieldProblem::Unknown(format!("metadata.{path}")),
        FieldProblem::Duplicate(path) => FieldProblem::Duplicate(format!("metadata.{path}")),
        undecodable @ FieldProblem::Undecodable(_) => undecodable,
    };
    Ok(decoded.problems.into_iter().map(placed).collect())
}

fn as_object(value: Value) -> Result<Object, ApiError> {
    Object::from_value(value)
        .map_err(|_| ApiError::bad_request("the object provided is unrecognized (must be of type object)"))
}

/// Refuses an object of another kind before it is decoded as one of this kind.
fn untyped_kind(call: &Request, text: &[u8]) -> Result<(), ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct TypeMeta {
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        kind: String,
    }
    let given = match serde_json::from_slice::<TypeMeta>(text) {
        Ok(given) => given,
        // Invalid JSON, or a value that is not an object, has no kind. Other wrong types are reported with their field.
        Err(error) if !error.is_data() || !text.trim_ascii_start().starts_with(b"{") => {
            return Err(unrecognized(call, &error));
        }
        Err(_) => return Ok(()),
    };
    let mut object = Object::default();
    object.set("apiVersion", (!given.api_version.is_empty()).then(|| given.api_version.into()));
    object.set("kind", (!given.kind.is_empty()).then(|| given.kind.into()));
    check_type(call, &mut object)
}

/// The error for a body that is not an object.
fn unrecognized(call: &Request, error: &serde_json::Error) -> ApiError {
    let problem = match () {
        () if error.is_eof() => "unexpected end of JSON input".to_string(),
        () => error.to_string(),
    };
    let kind = &call.resource.names.kind;
    ApiError::BadRequest(format!(
        "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: \
         {problem} ({})",
        preview(&call.body)
    ))
}

/// The beginning of a body for an error message: as text if it may be JSON, else in hexadecimal.
fn preview(body: &[u8]) -> String {
    const MOST: usize = 30;
    let shown = &body[..body.len().min(MOST)];
    let text = match std::str::from_utf8(shown) {
        _ if body.is_empty() => return "<empty>".into(),
        Ok(text) if text.starts_with('{') => text.to_string(),
        _ => shown.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > MOST { format!("{text} ...") } else { text }
}

fn undecodable(call: &Request, error: &types::JsonError) -> ApiError {
    ApiError::BadRequest(format!("{}{error}", unhandled(call)))
}

/// The beginning of Kubernetes' message for a body that is not of its kind.
pub(crate) fn unhandled(call: &Request) -> String {
    let kind = &call.resource.names.kind;
    format!("{kind} in version {:?} cannot be handled as a {kind}: ", call.version.version())
}

/// Ignores, reports as warnings, or refuses unknown and duplicate fields, as `fieldValidation` requests.
fn report(call: &Request, problems: &[FieldProblem]) -> Result<(), ApiError> {
    match call.query.text("fieldValidation") {
        "Ignore" => {}
        "" | "Warn" => problems.iter().for_each(|problem| call.warn(problem.to_string())),
        "Strict" => {
            if let Some(error) = types::strict_decoding_error(problems) {
                return Err(ApiError::BadRequest(format!("{}{error}", unhandled(call))));
            }
        }
        other => {
            return Err(ApiError::BadRequest(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            )));
        }
    }
    Ok(())
}

/// The managed fields in the request. An empty list would be lost when an object is decoded by its type.
pub(crate) fn given_entries(call: &Request) -> Result<Given, ApiError> {
    const FIELD: &[u8] = b"managedFields";
    if !call.body.windows(FIELD.len()).any(|window| window == FIELD) {
        return Ok(Given::Object);
    }
    Ok(Given::of(&value(call)?))
}

/// The JSON value in a request's body; `null` if the body is empty.
pub(crate) fn value(call: &Request) -> Result<Value, ApiError> {
    value_and_problems(call, call.content.unwrap_or(Media::Json)).map(|(value, _)| value)
}

fn value_and_problems(call: &Request, media: Media) -> Result<(Value, Vec<FieldProblem>), ApiError> {
    if call.body.is_empty() { Ok((Value::Null, Vec::new())) } else { read(&call.body, media) }
}

/// Parses a body.
pub(crate) fn parse(body: &[u8], media: Media) -> Result<Value, ApiError> {
    read(body, media).map(|(value, _)| value)
}

/// Parses a body, and returns what strict decoding would refuse: duplicate fields.
pub(crate) fn read(body: &[u8], media: Media) -> Result<(Value, Vec<FieldProblem>), ApiError> {
    let (value, problems) = match media {
        Media::Json => untyped::read(body).map_err(|error| unreadable(&error))?,
        Media::Yaml => {
            let text = std::str::from_utf8(body).map_err(|error| unreadable(&error))?;
            let (value, problem) = yaml(text).map_err(|error| unreadable(&error))?;
            (value, problem.into_iter().collect())
        }
        Media::Protobuf => (types::decode_protobuf(body).map_err(|error| unreadable(&error))?, Vec::new()),
    };
    if types::exceeds_depth(&value, MAX_DEPTH) {
        return Err(ApiError::BadRequest(format!("the object provided is nested more than {MAX_DEPTH} levels deep")));
    }
    Ok((value, problems))
}

/// Parses YAML. Of duplicate keys the last one wins; the first duplicate is reported in the words of Go's parser.
fn yaml(text: &str) -> Result<(Value, Option<FieldProblem>), serde_saphyr::Error> {
    let error = match serde_saphyr::from_str(text) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), location } = error.without_snippet() else {
        return Err(error);
    };
    let line = location.line();
    let problem = format!(
        "error converting YAML to JSON: yaml: unmarshal errors:\n  line {line}: key {key:?} already set in map"
    );
    let lenient = serde_saphyr::options! { duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins };
    Ok((serde_saphyr::from_str_with_options(text, lenient)?, Some(FieldProblem::Undecodable(problem))))
}

fn unreadable(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::BadRequest(format!("the object provided is unrecognized: couldn't parse the body: {error}"))
}

fn check_type(call: &Request, object: &mut Object) -> Result<(), ApiError> {
    let expected_version = call.version.to_string();
    let expected_kind = &call.resource.names.kind;
    // For a built-in kind, the path determines the type.
    let builtin = call.resource.origin == Origin::Builtin;
    if object.kind().is_empty() && (builtin || object.api_version().is_empty()) {
        object.set("kind", Some(expected_kind.clone().into()));
    }
    if object.api_version().is_empty() {
        object.set("apiVersion", Some(expected_version.clone().into()));
    }
    if object.kind().is_empty() {
        return Err(ApiError::bad_request("Object 'Kind' is missing in the object provided"));
    }
    if object.api_version() != expected_version || object.kind() != expected_kind {
        return Err(ApiError::BadRequest(wrong_type(call, object)));
    }
    if object.get("metadata").is_some_and(|metadata| !metadata.is_object()) {
        return Err(ApiError::bad_request("the metadata of the object provided is not an object"));
    }
    Ok(())
}

/// The message for an object of another kind or version. Kubernetes has different messages for known and unknown kinds.
fn wrong_type(call: &Request, object: &Object) -> String {
    let (expected, wanted) = (call.version.to_string(), &call.resource.names.kind);
    let (given, kind) = (object.api_version(), object.kind());
    let (group, version) = given.rsplit_once('/').unwrap_or(("", given));
    let known = types::TypeTable::shared().kind(given, kind).is_some();
    match () {
        () if kind == wanted && (known || call.resource.origin == Origin::Custom) && group == call.version.group() => {
            format!("the API version in the data ({given}) does not match the expected API version ({expected})")
        }
        () if known => {
            let inner = match call.version.group().split('.').next().unwrap_or_default() {
                "" => "core",
                group => group,
            };
            format!(
                "{kind} in version {version:?} cannot be handled as a {wanted}: converting ({version}.{kind}) to \
                 ({inner}.{wanted}): unknown conversion"
            )
        }
        () => format!(
            "{kind} in version {version:?} cannot be handled as a {wanted}: no kind {kind:?} is registered for version \
             {given:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn duplicate_keys_in_yaml_are_reported_with_their_line() {
        let (value, problems) = read(b"\nspec:\n  foo: 1\n  foo: 2\n", Media::Yaml).unwrap();
        assert_eq!(value, json!({"spec": {"foo": 2}}));
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let expected =
            "error converting YAML to JSON: yaml: unmarshal errors:\n  line 4: key \"foo\" already set in map";
        assert_eq!(problems, [expected]);
        assert!(read(b"a: [", Media::Yaml).is_err());
    }

    #[test]
    fn yaml_that_resembles_json_is_parsed() {
        let (value, problems) = read(b"{\n\t\"a\": [{\n\t\t\"b\": 1,\n\t}]\n}", Media::Yaml).unwrap();
        assert_eq!((value, problems), (json!({"a": [{"b": 1}]}), vec![]));
    }
}
