//! Getting objects from one version to another.

use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use thiserror::Error;

/// Converts the objects of one resource.
#[async_trait]
pub trait Converter: Send + Sync {
    /// Converts each object to `target`, whatever version it is in, keeping their order and number.
    async fn convert(&self, objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError>;

    /// Whether somebody else is asked, who may not answer. Then nothing is sent before everything is converted.
    fn asks_others(&self) -> bool {
        false
    }
}

/// Objects that could not be converted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("conversion of {object} to {target} failed: {reason}")]
pub struct ConversionError {
    /// The object by namespace and name, or what else names it.
    pub object: String,
    /// The version asked for.
    pub target: String,
    /// Why.
    pub reason: String,
}

/// For kinds whose versions differ in name only: the version is replaced, everything else stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenameVersion;

/// For kinds whose versions differ in shape: a function that changes the fields, after which the version is replaced.
pub struct ConvertWith<F>(pub F);

#[async_trait]
impl Converter for RenameVersion {
    async fn convert(&self, mut objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        let version = target.to_string();
        for object in &mut objects {
            object.set("apiVersion", Some(version.as_str().into()));
        }
        Ok(objects)
    }
}

#[async_trait]
impl<F> Converter for ConvertWith<F>
where
    F: Fn(&mut Object, &str, &str) -> Result<(), String> + Send + Sync,
{
    async fn convert(&self, mut objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        let target = target.to_string();
        for object in &mut objects {
            let source = object.api_version().to_string();
            if source == target {
                continue;
            }
            self.0(object, &source, &target).map_err(|reason| ConversionError {
                object: format!("{}/{}", object.namespace(), object.name()),
                target: target.clone(),
                reason,
            })?;
            object.set("apiVersion", Some(target.as_str().into()));
        }
        Ok(objects)
    }
}
