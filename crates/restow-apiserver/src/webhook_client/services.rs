//! Resolves services of the cluster, for webhooks that are configured with a service.

use crate::core::Core;
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::webhook_client::ServiceResolver;
use async_trait::async_trait;
use restow_api::GroupVersion;
use serde_json::Value;
use std::sync::Arc;

/// Resolves services from the server's own objects.
pub(crate) struct Services(pub(crate) Arc<Core>);

#[async_trait]
impl ServiceResolver for Services {
    async fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<String, String> {
        let object = |plural: &'static str| read(&self.0, plural, namespace, name);
        let service = object("services").await.map_err(|error| error.to_string())?;
        let Some(service) = service else { return Err(format!("service {name:?} not found")) };
        let external = service["spec"]["externalName"].as_str().unwrap_or_default();
        if service["spec"]["type"] == "ExternalName" && !external.is_empty() {
            return Ok(format!("{external}:{port}"));
        }
        // Prefer endpoints: without kube-proxy a cluster IP is not reachable.
        let endpoints = object("endpoints").await.map_err(|error| error.to_string())?.unwrap_or_default();
        if let Some(address) = endpoint(&service, &endpoints, port) {
            return Ok(address);
        }
        match service["spec"]["clusterIP"].as_str() {
            Some(address) if !matches!(address, "" | "None") => Ok(joined(address, u64::from(port))),
            _ => Ok(format!("{name}.{namespace}.svc:{port}")),
        }
    }
}

/// The first ready address behind a service's port.
fn endpoint(service: &Value, endpoints: &Value, port: u16) -> Option<String> {
    let ports = service["spec"]["ports"].as_array()?;
    let wanted = ports.iter().find(|it| it["port"] == u64::from(port))?;
    let name = wanted["name"].as_str().unwrap_or_default();
    endpoints["subsets"].as_array()?.iter().find_map(|subset| {
        let address = subset["addresses"].as_array()?.first()?["ip"].as_str()?;
        let ports = subset["ports"].as_array()?;
        let target = ports.iter().find(|it| it["name"].as_str().unwrap_or_default() == name)?["port"].as_u64()?;
        Some(joined(address, target))
    })
}

fn joined(address: &str, port: u64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

async fn read(core: &Core, plural: &str, namespace: &str, name: &str) -> Result<Option<Value>, ApiError> {
    let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let registry = core.registry();
    let Some(resource) = registry.find(&version, plural) else { return Ok(None) };
    let reference = ObjectRef { resource, version: &version, namespace, name };
    let Some(entry) = core.objects().get(reference).await? else { return Ok(None) };
    Ok(Some(resource.decode(&entry, &version).await?.into_value()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_service_port_resolves_to_the_port_of_its_endpoints() {
        let service = json!({"spec": {"ports": [{"name": "web", "port": 443, "targetPort": 9443}]}});
        let endpoints = json!({"subsets": [{
            "addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "other", "port": 1}, {"name": "web", "port": 9443}],
        }]});
        assert_eq!(endpoint(&service, &endpoints, 443).as_deref(), Some("127.0.0.1:9443"));
        assert_eq!(endpoint(&service, &endpoints, 80), None);
        assert_eq!(endpoint(&service, &json!({}), 443), None);
        assert_eq!(joined("::1", 443), "[::1]:443");
    }
}
