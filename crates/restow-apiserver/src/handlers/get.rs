//! Get: reads one object.

use crate::error::ApiError;
use crate::flow_control::fair_queue;
use crate::handlers::{Call, HandlerResponse, list};
use crate::resource::codec;

pub(super) async fn get(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let name = &call.target.name;
    let wanted = list::requested_resource_version(call)?.unwrap_or(0);
    let entry = call.handlers.objects().get(call.object_ref(name)).await?.ok_or_else(|| call.not_found(name))?;
    // The read was linearizable. A client that knows a higher revision has seen another store.
    let latest = entry.mod_revision.get().max(call.handlers.watch_cache().reached().get());
    if wanted > latest {
        let latest = call.handlers.objects().store().status().await?.revision.get();
        if wanted > latest {
            return Err(ApiError::TooLargeResourceVersion { requested: wanted, current: latest });
        }
    }
    fair_queue::wait_for_turn(entry.value.len()).await;
    if call.resource.reads_as_stored()
        && codec::check(&entry.value).is_ok()
        && let Some(response) = call.response_as_stored(200, &entry.value, entry.mod_revision)
    {
        return Ok(response);
    }
    let _room = fair_queue::acquire_stored_memory(entry.value.len()).await;
    let object = call.resource.decode(&entry, &call.version).await?;
    Ok(HandlerResponse::Object { code: 200, object })
}
