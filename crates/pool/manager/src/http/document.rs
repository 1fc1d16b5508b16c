//! The API's document: its head, and what its generator cannot say.

use serde_json::{Value, json};
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
        (name = "survival", description = "Leases whose programs outlive the loss of a GPU"),
        (name = "gpus", description = "What can be borrowed"),
        (name = "boxes", description = "Machines that hold GPUs"),
        (name = "hosts", description = "Machines that show GPUs to their guests, on the PCIe plane"),
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

/// The whole document, with numbers and pages as narrow as they are.
pub(super) fn finished(document: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("the document can be written as JSON");
    name_operations(&mut document);
    say_unsigned(&mut document);
    say_where_pages_begin(&mut document);
    document
}

/// Handlers are named within their module; operations are named in the whole document.
fn name_operations(document: &mut Value) {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    for operation in paths.filter_map(Value::as_object_mut).flat_map(|operations| operations.values_mut()) {
        if let (Some(tag), Some(name)) = (operation["tags"][0].as_str(), operation["operationId"].as_str()) {
            operation["operationId"] = json!(format!("{tag}_{name}"));
        }
    }
}

/// The generator calls unsigned numbers `int32` and `int64`, which end at half of what we take and give.
fn say_unsigned(value: &mut Value) {
    match value {
        Value::Object(schema) => {
            let most = match (schema.get("format").and_then(Value::as_str), schema.get("minimum")) {
                (Some("int32"), Some(least)) if is_unsigned(least) => Some(u64::from(u32::MAX)),
                (Some("int64"), Some(least)) if is_unsigned(least) => Some(u64::MAX),
                _ => None,
            };
            if let Some(most) = most {
                schema.remove("format");
                schema.entry("maximum").or_insert(json!(most));
            }
            schema.values_mut().for_each(say_unsigned);
        }
        Value::Array(items) => items.iter_mut().for_each(say_unsigned),
        _ => {}
    }
}

fn is_unsigned(least: &Value) -> bool {
    least.as_f64().is_some_and(|least| least >= 0.0)
}

/// Every list begins after one of its own items.
fn say_where_pages_begin(document: &mut Value) {
    let pattern = |name: &str| document["components"]["schemas"][name]["pattern"].clone();
    let (gpu, name, lease) = (pattern("GpuId"), pattern("Name"), pattern("LeaseId"));
    let number = json!("^(0|[1-9][0-9]{0,17})$");
    for (path, pattern) in [
        ("/v1/gpus", gpu),
        ("/v1/boxes", name.clone()),
        ("/v1/hosts", name.clone()),
        ("/v1/tenants", name.clone()),
        ("/v1/usage", name),
        ("/v1/leases", lease),
        ("/v1/events", number),
    ] {
        let parameters = document["paths"][path]["get"]["parameters"].as_array_mut();
        for parameter in parameters.into_iter().flatten().filter(|parameter| parameter["name"] == "after") {
            if let Some(schema) = parameter["schema"].as_object_mut() {
                schema.remove("maxLength");
                schema.insert("pattern".to_owned(), pattern.clone());
            }
        }
    }
}
