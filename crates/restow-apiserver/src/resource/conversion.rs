//! Conversion of objects between versions.

use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use thiserror::Error;

/// Converts the objects of one resource.
#[async_trait]
pub trait Converter: Send + Sync {
    /// Converts each object to `target` from its version, and keeps their order and number.
    async fn convert(&self, objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError>;

    /// Whether the conversion calls a webhook, which may fail. Then nothing is sent before all objects are converted.
    fn calls_webhook(&self) -> bool {
        false
    }
}

/// A failed conversion.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("conversion of {object} to {target} failed: {reason}")]
pub struct ConversionError {
    /// The namespace and name of the object, or another description of it.
    pub object: String,
    /// The requested version.
    pub target: String,
    /// The reason.
    pub reason: String,
}

/// The converter of kinds whose versions have the same fields: it replaces only `apiVersion`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenameVersion;

/// The converter of kinds whose versions have different fields: it calls a function, and then replaces `apiVersion`.
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
