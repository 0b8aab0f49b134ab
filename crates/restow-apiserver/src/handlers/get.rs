//! Reading one object.

use crate::error::ApiError;
use crate::flow_control::fair_queue;
use crate::handlers::{Answer, Call, list};
use crate::resource::codec;

pub(super) async fn get(call: &Call<'_>) -> Result<Answer, ApiError> {
    let name = &call.target.name;
    let wanted = list::wanted_revision(call)?.unwrap_or(0);
    let entry = call.handlers.objects().get(call.place(name)).await?.ok_or_else(|| call.not_found(name))?;
    // What was read is the latest there is; whoever has seen more has seen another store.
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
        && let Some(answer) = call.spliced(200, &entry.value, entry.mod_revision)
    {
        return Ok(answer);
    }
    let _room = fair_queue::acquire_stored_memory(entry.value.len()).await;
    let object = call.resource.decode(&entry, &call.version).await?;
    Ok(Answer::Object { code: 200, object })
}
