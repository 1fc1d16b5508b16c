//! The head of the API's document.

use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};

/// The document, without its paths: those come from the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "dxpu manager",
        description = "Leases GPUs out of boxes. Times are milliseconds since 1970 by the manager's clock. \
            Connections are TLS; callers prove who they are by a certificate of the pool's authority or by a bearer token.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "leases", description = "GPUs bound to a borrower"),
        (name = "gpus", description = "What can be borrowed"),
        (name = "boxes", description = "Machines that hold GPUs"),
        (name = "tenants", description = "Who GPUs are for"),
        (name = "spares", description = "GPUs held back for when others break"),
        (name = "events", description = "What happened"),
        (name = "audit", description = "Who did what"),
        (name = "access", description = "Who is let in"),
        (name = "manager", description = "The manager itself"),
    )
)]
struct Document;

pub(super) fn head() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let components = document.components.get_or_insert_default();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.add_security_scheme("token", bearer);
    components.add_security_scheme(
        "certificate",
        SecurityScheme::MutualTls {
            description: Some("A certificate of the pool's authority".into()),
            deprecated: None,
            extensions: None,
        },
    );
    document.security = Some(vec![
        SecurityRequirement::new("token", Vec::<String>::new()),
        SecurityRequirement::new("certificate", Vec::<String>::new()),
    ]);
    document
}
