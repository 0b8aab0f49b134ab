//! Delete collection: deletes all objects that match the selectors.

use crate::error::ApiError;
use crate::handlers::delete::{self, DeleteAdmission, delete_one};
use crate::handlers::{Call, HandlerResponse, list};
use crate::request::Request;
use crate::storage::deletion::IGNORE_READ_ERROR;
use restow_apimachinery::field::FieldError;

pub(super) async fn delete_collection(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let options = delete::options(call)?;
    if options.ignore_read_error {
        let detail = "is not allowed with DELETECOLLECTION, try again after removing the option";
        return Err(delete::invalid_options(vec![FieldError::invalid(IGNORE_READ_ERROR, &true.into(), detail)]));
    }
    let (objects, metadata) = list::read_matching(call).await?;
    for object in &objects {
        let target = crate::request::request_info::ResourceTarget {
            namespace: object.namespace().to_string(),
            name: object.name().to_string(),
            ..(*call.target).clone()
        };
        let request = Request {
            user: call.user.clone(),
            resource: call.resource.clone(),
            version: call.version.clone(),
            target: target.into(),
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
        // An object that another client has deleted meanwhile is not an error.
        let deleted = delete_one(&single, object.name(), &options, DeleteAdmission::Run).await;
        single.warnings().into_iter().for_each(|warning| call.warn(warning));
        single.annotations().into_iter().for_each(|(key, value)| call.annotate(key, value));
        deleted?;
    }
    Ok(HandlerResponse::List { objects, metadata })
}
