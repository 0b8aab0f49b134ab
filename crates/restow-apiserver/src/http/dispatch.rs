//! From a request to its response: authentication, impersonation, flow control, authorization, then the handler.

use crate::aggregator::KnownApiService;
use crate::audit::RequestOrigin;
use crate::error::ApiError;
use crate::flow_control::fair_queue::{self, Flow, FlowHandle};
use crate::flow_control::limits::{self, InFlightPermit};
use crate::handlers::{self, Call, HandlerResponse};
use crate::http::aggregated::{self, Ends, Proxied};
use crate::http::body::Body;
use crate::http::compress::compress;
use crate::http::connections::Peer;
use crate::http::deadline;
use crate::http::non_resource;
use crate::http::record::{RecordedRequest, RecordedResource, RequestRecord};
use crate::http::render;
use crate::http::request_body;
use crate::request::Request as ResourceRequest;
use crate::request::headers;
use crate::request::negotiation::{self, IncludeObject, Media, Representation};
use crate::request::options;
use crate::request::query::Query;
use crate::request::request_info::{RequestTarget, ResourceTarget, target};
use crate::resource::Protobuf;
use crate::resource::{Resource, Verb};
use crate::server::ApiServer;
use crate::serving::{Connection, ResponseGuard};
use bytes::Bytes;
use http::{Request, Response, header};
use restow_api::GroupVersion;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::selector::FieldSelector;
use restow_auth::user::ANONYMOUS;
use restow_auth::{Attributes, ResourceAttributes, User};
use serde_json::Value;
use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Responds to a request; errors become a `Status`.
pub(crate) async fn handle<B>(server: &ApiServer, request: Request<B>, peer: &Peer) -> Response<Body>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let accept = headers::text(request.headers(), header::ACCEPT).map(Cow::into_owned);
    let media =
        negotiation::accept(accept.as_deref(), Protobuf::Possible).map_or(Media::Json, |accepted| accepted.media);
    let query = Query::parse(request.uri().query());
    let target = target(request.method(), request.uri().path(), query.is_on("watch"));
    let proxied = aggregated::find(server, &target);
    let served = match &target {
        RequestTarget::Resource(target) if proxied.is_none() => find(server, target),
        _ => None,
    };
    let mut record = RequestRecord::begin(
        server,
        RecordedRequest {
            origin: RequestOrigin {
                method: request.method(),
                uri: request.uri(),
                headers: request.headers(),
                address: peer.address,
            },
            target: &target,
            resource: recorded(server, &target, served.as_ref(), proxied.as_deref()),
            dry_run: query.has("dryRun"),
        },
    );
    let encodings = headers::text(request.headers(), header::ACCEPT_ENCODING).map(Cow::into_owned);
    let timeout = Timeout::of(server, &target, &request, proxied.as_deref());
    let head = RequestHead { target, served, proxied, timeout, query, accept, encodings };
    let response = match with_timeout(server, request, head, peer, &mut record).await {
        Ok(response) => response,
        Err(error) => {
            record.failed(&error);
            render::failure(&error, media)
        }
    };
    record.respond(response)
}

/// What the head of a request says.
struct RequestHead {
    target: RequestTarget,
    served: Option<ServedResource>,
    /// The APIService, if another server serves the target.
    proxied: Option<Arc<KnownApiService>>,
    timeout: Timeout,
    query: Query,
    accept: Option<String>,
    encodings: Option<String>,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timeout {
    /// As long as its client wants: a watch.
    None,
    /// So long.
    Of(Duration),
}

impl Timeout {
    fn of<B>(
        server: &ApiServer,
        target: &RequestTarget,
        request: &Request<B>,
        proxied: Option<&KnownApiService>,
    ) -> Self {
        let lasting = match (proxied, target) {
            (Some(_), _) => aggregated::lasts(target, request),
            (None, RequestTarget::Resource(target)) => target.verb == Verb::Watch,
            (None, RequestTarget::Path(_)) => false,
        };
        if lasting { Timeout::None } else { Timeout::Of(server.limits().request_timeout) }
    }
}

/// A request for a resource, without its user and body.
struct ResourceHead {
    target: Arc<ResourceTarget>,
    served: ServedResource,
    query: Query,
    accept: Option<String>,
}

/// The user of a request, and its part in flow control.
struct Requester<'a> {
    user: User,
    permit: &'a mut Option<InFlightPermit>,
    flow: Flow,
}

/// A resource that is served, and the requested version.
struct ServedResource {
    resource: Arc<Resource>,
    version: GroupVersion,
}

fn find(server: &ApiServer, target: &ResourceTarget) -> Option<ServedResource> {
    let version = GroupVersion::new(&*target.group, &*target.version).ok()?;
    let resource = server.registry().find(&version, &target.resource)?.clone();
    Some(ServedResource { resource, version })
}

/// The resource of a request for its record, if it is one that exists: clients must not be able to create labels.
fn recorded(
    server: &ApiServer,
    target: &RequestTarget,
    served: Option<&ServedResource>,
    proxied: Option<&KnownApiService>,
) -> RecordedResource {
    match (target, served, proxied) {
        (_, Some(served), _) => RecordedResource::Served(served.resource.clone()),
        (RequestTarget::Resource(target), None, Some(service)) => {
            let aggregation = server.aggregator().aggregation(&server.registry());
            let known = aggregation.versions.get(service.version());
            let subresource = target.subresource.split('/').next().unwrap_or_default();
            RecordedResource::Proxied(known.and_then(|known| known.knows(&target.resource, subresource)))
        }
        _ => RecordedResource::None,
    }
}

/// Responds within the timeout of the request. A watch has its own.
async fn with_timeout<B>(
    server: &ApiServer,
    request: Request<B>,
    head: RequestHead,
    peer: &Peer,
    record: &mut RequestRecord,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Timeout::Of(limit) = head.timeout else { return route(server, request, head, peer, record).await };
    let mut time = deadline::allowed(head.query.text("timeout"), limit)?;
    if head.proxied.is_some() {
        time = aggregated::timeout(&head.target, time);
    }
    let head = RequestHead { timeout: Timeout::Of(time), ..head };
    let response = tokio::time::timeout(time, route(server, request, head, peer, record)).await;
    match response {
        Ok(response) => response,
        Err(_) => {
            record.terminated(504);
            Err(deadline::exceeded())
        }
    }
}

async fn route<B>(
    server: &ApiServer,
    request: Request<B>,
    head: RequestHead,
    peer: &Peer,
    record: &mut RequestRecord,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = request.extensions().get::<Connection>();
    if let Some(reserved) = connection.filter(|connection| connection.is_reserved()) {
        // A connection of the reserve is for one response only, so that nobody can occupy the reserve.
        reserved.close();
    }
    let user = server.access().authenticate(&peer.certificates, request.headers(), request.uri().path())?;
    record.set_user(&user, None);
    if let Some(connection) = connection.filter(|_| user.name != ANONYMOUS) {
        connection.set_authenticated();
    }
    let impersonated = server.access().impersonate(&user, request.headers())?;
    record.set_user(&user, impersonated.as_ref());
    let user = impersonated.unwrap_or(user);
    if connection.is_some_and(Connection::is_reserved) && !limits::is_urgent(&user, &head.target) {
        return Err(limits::too_many_requests());
    }
    let mut permit = server.in_flight().acquire(&user, &head.target).await?;
    server.access().authorize(&user, &attributes(&head.target, request.method(), &head.query))?;
    record.set_allowed();
    if let Some(service) = head.proxied.as_deref() {
        aggregated::check_path(&head.target)?;
        let ends = match (head.timeout, &head.target) {
            (Timeout::Of(time), _) => Ends::By(Instant::now() + time),
            (Timeout::None, RequestTarget::Resource(target)) if target.verb == Verb::Watch => Ends::Watch,
            (Timeout::None, _) => Ends::Incomplete,
        };
        let proxied = Proxied { service, peer, user: &user, ends };
        return Ok(aggregated::handle(server, proxied, request, permit, record).await);
    }
    let flow = limits::flow(&user, &head.target);
    let response = match head.target {
        RequestTarget::Path(path) => {
            let response = non_resource::handle(server, &path, &head.query, head.accept.as_deref(), request.headers());
            server.fair_queue().run(&flow, response).await?
        }
        RequestTarget::Resource(target) => {
            let served = head.served.ok_or_else(|| not_served(server, &target))?;
            let head = ResourceHead { target, served, query: head.query, accept: head.accept };
            let requester = Requester { user, permit: &mut permit, flow: flow.clone() };
            handle_resource(server, requester, head, request, record).await?
        }
    };
    let mut response = server.fair_queue().run(&flow, compress(response, head.encodings.as_deref())).await;
    if let Some(mut permit) = permit {
        permit.release_shared();
        response.extensions_mut().insert(ResponseGuard::new(permit));
    }
    Ok(response)
}

async fn handle_resource<B>(
    server: &ApiServer,
    requester: Requester<'_>,
    head: ResourceHead,
    request: Request<B>,
    record: &mut RequestRecord,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let ResourceHead { target, served: ServedResource { resource, version }, query, accept } = head;
    if matches!(target.verb, Verb::Update | Verb::Patch) && target.name.is_empty() {
        return Err(ApiError::MethodNotAllowed);
    }
    options::check(target.verb, &query)?;
    let mut accepted = negotiation::accept(accept.as_deref(), resource.protobuf(&version))?;
    if let Representation::Table(beside) = &mut accepted.shape {
        *beside = IncludeObject::read(query.text("includeObject"))?;
    }
    if accepted.shape != Representation::Whole && resource.storage.is_none() {
        // A kind that is not stored, such as a review, has no metadata.
        return Err(negotiation::not_acceptable());
    }
    server.agreement().admit(&resource, &target)?;
    let content_type = headers::text(request.headers(), header::CONTENT_TYPE).map(Cow::into_owned);
    let user_agent = headers::text(request.headers(), header::USER_AGENT).unwrap_or_default().into_owned();
    let timeout = server.limits().body_timeout;
    let (body, incoming) = match target.verb {
        // A body is ignored. It is read, so that a client that is still sending does not lose the response.
        Verb::Get | Verb::List | Verb::Watch => {
            let _ = tokio::time::timeout(timeout, request_body::discard(Box::pin(request.into_body()))).await;
            (Bytes::new(), None)
        }
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
            let length = request_body::expected_length(request.body());
            let incoming = server.fair_queue().acquire_incoming_memory(&requester.flow, length).await;
            (request_body::read(request, timeout).await?, incoming)
        }
    };
    // Only a body that is decoded needs a known media type.
    let decoded = match target.verb {
        Verb::Create | Verb::Update => true,
        Verb::Delete | Verb::DeleteCollection => !body.is_empty(),
        Verb::Get | Verb::List | Verb::Watch | Verb::Patch => false,
    };
    let content = match content_type.as_deref().filter(|_| decoded) {
        Some(text) => Some(negotiation::content_media(Some(text))?),
        None => None,
    };
    let patch_type = content_type.as_deref().and_then(|text| text.split(';').next()).unwrap_or_default();
    let request = ResourceRequest {
        user: requester.user,
        resource: resource.clone(),
        version: version.clone(),
        target,
        query,
        accepted: accepted.clone(),
        content,
        patch_type: patch_type.trim().to_string(),
        user_agent,
        body,
        warnings: Mutex::default(),
        annotations: Mutex::default(),
    };
    let call = Call { handlers: &server.handlers, request };
    let work = async {
        let _memory = server.fair_queue().acquire_body_memory(&requester.flow, call.body.len()).await;
        drop(incoming);
        fair_queue::wait_for_turn(call.body.len()).await;
        Ok(match handlers::handle(&call).await? {
            HandlerResponse::Bytes { code, body, media } => render::bytes_response(code, body, media.content_type()),
            HandlerResponse::Empty => render::nothing(),
            HandlerResponse::Object { code, object } => render::object(code, &resource, object, &accepted),
            HandlerResponse::List { objects, metadata } => {
                render::list(&resource, &version, objects, metadata, &accepted)
            }
            HandlerResponse::Stream(list) => {
                let queue = FlowHandle { queue: server.fair_queue().clone(), flow: requester.flow.clone() };
                render::chunks(list.start(requester.permit.take(), queue, server.limits().stall_timeout))
            }
            HandlerResponse::Watch(changes) => {
                let queue = FlowHandle { queue: server.fair_queue().clone(), flow: requester.flow.clone() };
                render::watch(*changes, queue, server.core.stopping())
            }
        })
    };
    let response: Result<_, ApiError> = server.fair_queue().run(&requester.flow, work).await;
    record.annotate(call.annotations());
    let mut response = response?;
    for warning in call.warnings() {
        let quoted = format!("299 - {}", Value::from(warning));
        if let Ok(value) = http::HeaderValue::from_str(&quoted) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}

/// The error for a resource that is not served. Kubernetes has another one if the group is unknown.
fn not_served(server: &ApiServer, target: &ResourceTarget) -> ApiError {
    match target.group.is_empty() || server.registry().groups().contains_key(&target.group) {
        true => ApiError::NoSuchResource,
        false => ApiError::NoSuchPath,
    }
}

/// The attributes of a request for authorization.
fn attributes(target: &RequestTarget, method: &http::Method, query: &Query) -> Attributes {
    match target {
        RequestTarget::Path(path) => Attributes::path(method.as_str().to_ascii_lowercase(), path.clone()),
        RequestTarget::Resource(target) => Attributes::Resource(ResourceAttributes {
            verb: target.verb.to_string(),
            group: target.group.clone(),
            version: target.version.clone(),
            resource: target.resource.clone(),
            // Paths below a subresource are not authorized separately.
            subresource: target.subresource.split('/').next().unwrap_or_default().to_string(),
            namespace: match target.resource.as_str() {
                // A namespace counts as in itself, so that a role in it can grant access to it.
                "namespaces" if target.namespace.is_empty() => target.name.clone(),
                _ => target.namespace.clone(),
            },
            name: match (target.verb, target.name.as_str()) {
                (Verb::List | Verb::Watch, "") => selected_name(query).unwrap_or_default(),
                (_, name) => name.to_string(),
            },
        }),
    }
}

/// The name that the field selector of a list or watch requires.
fn selected_name(query: &Query) -> Option<String> {
    let selector = FieldSelector::parse(query.text("fieldSelector")).ok()?;
    let name = selector.required("metadata.name")?;
    NameRule::PathSegment.check(name).is_empty().then(|| name.to_string())
}

#[cfg(test)]
mod kubernetes_messages;
#[cfg(test)]
mod large_lists;
#[cfg(test)]
mod memory_limits;
#[cfg(test)]
pub(crate) mod tests;
