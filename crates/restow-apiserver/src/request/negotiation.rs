//! Content negotiation: the `Accept` and `Content-Type` headers.

use crate::error::ApiError;
use crate::resource::Protobuf;

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Kubernetes' protobuf, for built-in kinds only.
    Protobuf,
}

/// The result of content negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The encoding.
    pub media: Media,
    /// What is sent of an object.
    pub shape: Representation,
}

/// What is sent of an object or a list of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Representation {
    /// The complete objects.
    Whole,
    /// Only their metadata (`PartialObjectMetadata`).
    MetadataOnly,
    /// A `Table`, as `kubectl get` requests it.
    Table(IncludeObject),
}

/// The `includeObject` option: what each row of a table has besides its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    Nothing,
    /// The metadata of the object.
    #[default]
    Metadata,
    /// The complete object.
    Object,
}

impl IncludeObject {
    /// Parses the value of the option.
    pub(crate) fn read(text: &str) -> Result<Self, ApiError> {
        match text {
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "Object" => Ok(IncludeObject::Object),
            "None" => Ok(IncludeObject::Nothing),
            other => Err(ApiError::BadRequest(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

impl Media {
    /// The media type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// The supported media types, for the error when a client accepts none of them.
const OFFERED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Chooses the first possible media type in the client's order of preference.
pub(crate) fn accept(header: Option<&str>, protobuf: Protobuf) -> Result<Accepted, ApiError> {
    let header = header.unwrap_or("*/*");
    let mut clauses: Vec<(f32, Clause<'_>)> = header.split(',').filter_map(Clause::parse).collect();
    // A stable sort keeps the client's order among equal preferences.
    clauses.sort_by(|one, other| other.0.total_cmp(&one.0));
    clauses.iter().find_map(|(_, clause)| clause.accepted(protobuf)).ok_or_else(|| {
        let known = clauses.iter().any(|(_, clause)| clause.is_known_media());
        match known {
            true => not_acceptable(),
            false => ApiError::NotAcceptable(format!("406: Not Acceptable\n\nAvailable representations: {OFFERED}")),
        }
    })
}

/// No requested media type is possible.
pub(crate) fn not_acceptable() -> ApiError {
    ApiError::NotAcceptable(format!("only the following media types are accepted: {OFFERED}"))
}

/// The encoding of a request's body.
pub(crate) fn content_media(header: Option<&str>) -> Result<Media, ApiError> {
    let media = header.unwrap_or("application/json").split(';').next().unwrap_or_default().trim();
    match media {
        "" | "application/json" => Ok(Media::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Media::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Media::Protobuf),
        _ => Err(ApiError::UnsupportedMediaType(format!(
            "the body of the request was in an unknown format - accepted media types include: {OFFERED}"
        ))),
    }
}

struct Clause<'a> {
    media: &'a str,
    shape: Option<&'a str>,
    group: Option<&'a str>,
    version: Option<&'a str>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<(f32, Self)> {
        let mut parts = text.split(';').map(str::trim);
        let mut clause = Clause { media: parts.next()?, shape: None, group: None, version: None };
        let mut quality = 1.0;
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim() {
                "q" => quality = value.trim().parse().unwrap_or(0.0),
                "as" => clause.shape = Some(value.trim()),
                "g" => clause.group = Some(value.trim()),
                "v" => clause.version = Some(value.trim()),
                _ => {}
            }
        }
        (quality > 0.0).then_some((quality, clause))
    }

    fn wants_metadata(&self) -> bool {
        matches!(self.shape, Some("PartialObjectMetadata" | "PartialObjectMetadataList"))
    }

    fn is_known_media(&self) -> bool {
        OFFERED.split(", ").any(|media| media == self.media) || matches!(self.media, "*/*" | "application/*")
    }

    fn accepted(&self, protobuf: Protobuf) -> Option<Accepted> {
        let media = match self.media {
            "application/json" | "*/*" | "application/*" => Media::Json,
            "application/yaml" => Media::Yaml,
            // Metadata of all kinds can be sent as protobuf. Tables are sent as JSON, which every client that requests
            // them accepts too.
            "application/vnd.kubernetes.protobuf" if self.version == Some("v1") && self.wants_metadata() => {
                Media::Protobuf
            }
            "application/vnd.kubernetes.protobuf" if protobuf == Protobuf::Possible && self.shape.is_none() => {
                Media::Protobuf
            }
            _ => return None,
        };
        let shape = match (self.shape, self.group, self.version) {
            (None, ..) => Representation::Whole,
            (Some("Table"), Some("meta.k8s.io"), Some("v1" | "v1beta1")) => {
                Representation::Table(IncludeObject::default())
            }
            (
                Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
                Some("meta.k8s.io"),
                Some("v1" | "v1beta1"),
            ) => Representation::MetadataOnly,
            _ => return None,
        };
        Some(Accepted { media, shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &str, expected: Option<(Media, Representation)>) {
        let found = accept(Some(header), Protobuf::Possible).ok().map(|accepted| (accepted.media, accepted.shape));
        assert_eq!(found, expected, "{header}");
    }

    #[test]
    fn the_first_possible_media_type_is_chosen_in_the_clients_order() {
        check("*/*", Some((Media::Json, Representation::Whole)));
        check("application/yaml", Some((Media::Yaml, Representation::Whole)));
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            Some((Media::Json, Representation::Table(IncludeObject::default()))),
        );
        check(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Some((Media::Json, Representation::MetadataOnly)),
        );
        check("application/vnd.unknown, application/json;q=0.5", Some((Media::Json, Representation::Whole)));
        check("application/json;q=0.1, application/yaml;q=0.9", Some((Media::Yaml, Representation::Whole)));
        check("application/json;as=Picture;g=meta.k8s.io;v=v1", None);
        check("text/html", None);
        check("application/vnd.kubernetes.protobuf,application/json", Some((Media::Protobuf, Representation::Whole)));
        check(
            "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json;as=Table;g=meta.k8s.io;v=v1",
            Some((Media::Json, Representation::Table(IncludeObject::default()))),
        );
        check(
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
            Some((Media::Protobuf, Representation::MetadataOnly)),
        );
        let json = accept(Some("application/vnd.kubernetes.protobuf,application/json"), Protobuf::Impossible);
        assert_eq!(json.map(|accepted| accepted.media), Ok(Media::Json));
    }
}
