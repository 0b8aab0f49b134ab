//! Removing all objects that match.

use crate::error::ApiError;
use crate::handlers::delete::{self, Admission, delete_one};
use crate::handlers::{Answer, Call, list};
use crate::request::Request;
use crate::storage::deletion::IGNORE_READ_ERROR;
use restow_apimachinery::field::FieldError;

pub(super) async fn delete_collection(call: &Call<'_>) -> Result<Answer, ApiError> {
    let options = delete::options(call)?;
    if options.ignore_read_error {
        let detail = "is not allowed with DELETECOLLECTION, try again after removing the option";
        return Err(delete::invalid_options(vec![FieldError::invalid(IGNORE_READ_ERROR, &true.into(), detail)]));
    }
    let (objects, metadata) = list::matching(call).await?;
    for object in &objects {
        let place = crate::request::request_info::ResourceTarget {
            namespace: object.namespace().to_string(),
            name: object.name().to_string(),
            ..(*call.target).clone()
        };
        let request = Request {
            user: call.user.clone(),
            resource: call.resource.clone(),
            version: call.version.clone(),
            target: place.into(),
            query: call.query.clone(),
            accepted: call.accepted.clone(),
            content: call.content,
            patch_type: String::new(),
            user_agent: String::new(),
            body: call.body.clone(),
            warnings: Default::default(),
            annotations: Default::default(),
        };
        let single = Call { handlers: call.handlers, request };
        // One that is gone meanwhile is what was wanted.
        let deleted = delete_one(&single, object.name(), &options, Admission::Due).await;
        single.warnings().into_iter().for_each(|warning| call.warn(warning));
        single.annotations().into_iter().for_each(|(key, value)| call.annotate(key, value));
        deleted?;
    }
    Ok(Answer::List { objects, metadata })
}
