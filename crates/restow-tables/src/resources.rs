//! `resources.txt`: the built-in resources, through all releases.

use crate::kubernetes_types::Types;
use crate::words::words;
use crate::{TableError, group, list, not_empty, significant_lines};

#[cfg(test)]
mod tests;

/// The number after "1." of the oldest release that is known.
pub const OLDEST_MINOR: u16 = 28;
/// The number after "1." of the newest release that is known.
pub const NEWEST_MINOR: u16 = 37;

/// One resource through all releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource<'t> {
    /// Its line in the table.
    pub line: usize,
    /// Its group; empty for the core group.
    pub group: &'t str,
    /// Its name in paths.
    pub resource: &'t str,
    /// Its kind.
    pub kind: &'t str,
    /// Its name in the singular.
    pub singular: &'t str,
    /// Whether its objects are in namespaces.
    pub scope: Scope,
    /// What can be done with its objects.
    pub verbs: Vec<Verb>,
    /// Its short names.
    pub short: Vec<&'t str>,
    /// The categories that it belongs to.
    pub categories: Vec<&'t str>,
    /// What lies beneath its objects.
    pub subresources: Vec<Subresource<'t>>,
    /// What a field selector may name beside name and namespace.
    pub fields: Vec<&'t str>,
    /// What its strategy does beyond the usual.
    pub rules: Vec<StrategyRule>,
    /// The group and resource whose objects it shares.
    pub shares: Option<(&'t str, &'t str)>,
    /// What the newest release can decode.
    pub decodable: Vec<Version<'t>>,
    /// What it is from each release on.
    pub history: Vec<ReleaseVersions<'t>>,
}

/// A version of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version<'t> {
    /// The group; empty for the core group.
    pub group: &'t str,
    /// The version.
    pub version: &'t str,
}

/// Something beneath the objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource<'t> {
    /// Its name in paths.
    pub name: &'t str,
    /// What can be done with it.
    pub verbs: Vec<Verb>,
    /// Its kind, where that is not the resource's own.
    pub kind: Option<SubresourceKind<'t>>,
}

/// The kind of a subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubresourceKind<'t> {
    /// Its version, where that is not the resource's own.
    pub version: Option<Version<'t>>,
    /// The kind.
    pub kind: &'t str,
}

/// What a resource is from one release on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseVersions<'t> {
    /// The number after "1." of the release.
    pub since_minor: u16,
    /// The versions that it has; none where the resource is gone.
    pub versions: Vec<Version<'t>>,
    /// The version that objects are stored in, if they are.
    pub stored: Option<Version<'t>>,
}

words! {
    /// Whether objects are in namespaces.
    Scope, "scope" {
        /// They are.
        Namespaced = "namespaced",
        /// They are not.
        Cluster = "cluster",
    }
}

words! {
    /// What can be done with objects.
    Verb, "verb" {
        /// Create a new object.
        Create = "create",
        /// Remove one object.
        Delete = "delete",
        /// Remove all objects that match.
        DeleteCollection = "deletecollection",
        /// Read one object.
        Get = "get",
        /// Read all objects that match.
        List = "list",
        /// Change part of an object.
        Patch = "patch",
        /// Replace an object.
        Update = "update",
        /// Follow changes.
        Watch = "watch",
    }
}

words! {
    /// What a resource's strategy does beyond the usual.
    StrategyRule, "rule" {
        /// Replacing an object that does not exist creates it.
        CreateOnUpdate = "create-on-update",
        /// It has the strategy of CustomResourceDefinitions.
        CustomResourceDefinition = "crd",
        /// Changes of its spec are counted in metadata.generation.
        Generation = "generation",
        /// Names are DNS labels.
        NameLabel = "name-label",
        /// Names are segments of paths.
        NamePath = "name-path",
        /// Names are those of services.
        NameService = "name-service",
        /// A write of the status changes nothing else.
        StatusAlone = "status-alone",
        /// The status can be set when an object is created.
        StatusOnCreate = "status-on-create",
        /// Objects can be replaced without their resource version.
        UnconditionalUpdate = "unconditional-update",
    }
}

impl Version<'_> {
    /// As in `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// Reads the table.
///
/// # Errors
/// A line does not fit the format, or there is no resource.
pub fn parse(text: &str) -> Result<Vec<Resource<'_>>, TableError> {
    let mut resources: Vec<Resource<'_>> = Vec::new();
    for (line, row) in significant_lines(text) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let read = match (row.starts_with(' '), resources.last_mut()) {
            (false, _) => head(line, &words).map(|resource| resources.push(resource)),
            (true, Some(resource)) => detail(resource, &words),
            (true, None) => Err("a detail before the first resource".into()),
        };
        read.map_err(|problem| TableError::new(line, problem))?;
    }
    not_empty(resources)
}

fn head<'t>(line: usize, words: &[&'t str]) -> Result<Resource<'t>, String> {
    let &[written, resource, kind, singular, scope] = words else {
        return Err("expected GROUP RESOURCE KIND SINGULAR SCOPE".into());
    };
    Ok(Resource {
        line,
        group: group(written)?,
        resource: lower_case(resource)?,
        kind: kind_name(kind)?,
        singular: lower_case(singular)?,
        scope: Scope::parse(scope)?,
        verbs: Verb::ALL.to_vec(),
        short: Vec::new(),
        categories: Vec::new(),
        subresources: Vec::new(),
        fields: Vec::new(),
        rules: Vec::new(),
        shares: None,
        decodable: Vec::new(),
        history: Vec::new(),
    })
}

fn detail<'t>(resource: &mut Resource<'t>, words: &[&'t str]) -> Result<(), String> {
    let own = resource.group;
    match words {
        ["verbs", verbs] => resource.verbs = parse_verbs(verbs)?,
        ["short", names] => resource.short = list(names)?,
        ["categories", names] => resource.categories = list(names)?,
        ["fields", names] => resource.fields = list(names)?,
        ["rules", rules] => {
            resource.rules = list(rules)?.into_iter().map(StrategyRule::parse).collect::<Result<_, _>>()?
        }
        ["sub", name, verbs] => {
            resource.subresources.push(Subresource { name: lower_case(name)?, verbs: parse_verbs(verbs)?, kind: None });
        }
        ["sub", name, verbs, kind] => {
            let kind = Some(subresource_kind(kind)?);
            resource.subresources.push(Subresource { name: lower_case(name)?, verbs: parse_verbs(verbs)?, kind });
        }
        ["shares", other] => {
            let (written, other) = other.split_once('/').ok_or("expected shares GROUP/RESOURCE")?;
            resource.shares = Some((group(written)?, other));
        }
        ["decodes", versions @ ..] if !versions.is_empty() => {
            resource.decodable = versions.iter().map(|text| version(own, text)).collect::<Result<_, _>>()?;
        }
        [since, "gone"] => resource.history.push(history(since, Vec::new(), None)?),
        [since, known, "unstored"] => resource.history.push(history(since, versions(own, known)?, None)?),
        [since, known, "stored", stored] => {
            resource.history.push(history(since, versions(own, known)?, Some(version(own, stored)?))?);
        }
        _ => return Err(format!("unknown line {:?}; the grammar is at the top of the table", words.join(" "))),
    }
    Ok(())
}

fn history<'t>(
    since: &str,
    versions: Vec<Version<'t>>,
    stored: Option<Version<'t>>,
) -> Result<ReleaseVersions<'t>, String> {
    let minor = since.strip_prefix("1.").and_then(|minor| minor.parse().ok());
    let minor = minor.filter(|minor| (OLDEST_MINOR..=NEWEST_MINOR).contains(minor));
    let unknown = || format!("{since:?} is not a release from 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}");
    Ok(ReleaseVersions { since_minor: minor.ok_or_else(unknown)?, versions, stored })
}

fn versions<'t>(own: &'t str, text: &'t str) -> Result<Vec<Version<'t>>, String> {
    list(text)?.into_iter().map(|text| version(own, text)).collect()
}

/// A version of the row's own group, or one of another group when it is written with its group.
fn version<'t>(own: &'t str, text: &'t str) -> Result<Version<'t>, String> {
    let (group, version) = match text.split_once('/') {
        Some((written, version)) => (group(written)?, version),
        None => (own, text),
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = version.strip_prefix('v').is_some_and(|rest| {
        let level = rest.split_once("alpha").or_else(|| rest.split_once("beta"));
        level.map_or_else(|| number(rest), |(major, minor)| number(major) && number(minor))
    });
    if is_version { Ok(Version { group, version }) } else { Err(format!("{text:?} is not a version")) }
}

fn subresource_kind(text: &str) -> Result<SubresourceKind<'_>, String> {
    match text.rsplit_once('/') {
        None => Ok(SubresourceKind { version: None, kind: kind_name(text)? }),
        Some((api_version, kind)) => {
            let version = Some(version("", api_version)?);
            Ok(SubresourceKind { version, kind: kind_name(kind)? })
        }
    }
}

fn parse_verbs(text: &str) -> Result<Vec<Verb>, String> {
    list(text)?.into_iter().map(Verb::parse).collect()
}

fn lower_case(text: &str) -> Result<&str, String> {
    let is_name = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase());
    if is_name { Ok(text) } else { Err(format!("{text:?} is not a name in lower case")) }
}

fn kind_name(text: &str) -> Result<&str, String> {
    let is_kind = text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_kind { Ok(text) } else { Err(format!("{text:?} is not a kind")) }
}

/// Groups whose kinds are not in `kubernetes.types`, because they are not Kubernetes' own.
const OWN_GROUPS: [&str; 1] = ["kube-apiserver.internal.k8s.io"];

/// What the build script checks beyond the form of the rows.
///
/// # Errors
/// A resource is there twice, its releases are not in order, it shares or names what is not there, or a version that the
/// newest release has lacks its kind in `kubernetes.types`.
pub fn check(resources: &[Resource<'_>], types: &Types) -> Result<(), TableError> {
    for (index, resource) in resources.iter().enumerate() {
        check_resource(resource, &resources[..index], resources, types)
            .map_err(|problem| TableError::new(resource.line, problem))?;
    }
    Ok(())
}

fn check_resource(
    resource: &Resource<'_>,
    earlier: &[Resource<'_>],
    all: &[Resource<'_>],
    types: &Types,
) -> Result<(), String> {
    let is_same = |other: &&Resource<'_>| (other.group, other.resource) == (resource.group, resource.resource);
    if let Some(earlier) = earlier.iter().find(is_same) {
        return Err(format!("{} is already in line {}", resource.resource, earlier.line));
    }
    if let Some(name) =
        resource.short.iter().find(|name| earlier.iter().any(|it| it.short.contains(name) && it.kind != resource.kind))
    {
        return Err(format!("the short name {name} is that of another kind"));
    }
    if let Some((group, name)) = resource.shares
        && !all.iter().any(|other| (other.group, other.resource) == (group, name))
    {
        return Err(format!("there is no resource {name} to share objects with"));
    }
    if resource.history.is_empty() {
        return Err(format!("{} is in no release", resource.resource));
    }
    if !resource.history.is_sorted_by(|one, next| one.since_minor < next.since_minor) {
        return Err(format!("the releases of {} are not in order", resource.resource));
    }
    check_kinds(resource, types)
}

fn check_kinds(resource: &Resource<'_>, types: &Types) -> Result<(), String> {
    if OWN_GROUPS.contains(&resource.group) {
        return Ok(());
    }
    let lacks = |version: &Version<'_>, kind: &str| types.kind(&version.api_version(), kind).is_none();
    let missing = |version: &Version<'_>, kind: &str| {
        Err(format!("there is no kind {kind} of {} in kubernetes.types", version.api_version()))
    };
    let newest = resource.history.last();
    for version in newest.into_iter().flat_map(|history| history.versions.iter().chain(&history.stored)) {
        if lacks(version, resource.kind) {
            return missing(version, resource.kind);
        }
        for kind in resource.subresources.iter().filter_map(|sub| sub.kind.as_ref()) {
            if lacks(kind.version.as_ref().unwrap_or(version), kind.kind) {
                return missing(kind.version.as_ref().unwrap_or(version), kind.kind);
            }
        }
    }
    Ok(())
}
