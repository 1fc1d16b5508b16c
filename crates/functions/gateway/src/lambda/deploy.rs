//! Functions come, change and go.

use super::shapes::{self, Code, Wanted, configuration as shown};
use super::{Asked, Method};
use crate::answer::{Problem, bytes_response, json_response};
use axum::response::Response;
use base64::Engine;
use functions::{CODE_BYTES_MAX, Function, FunctionKey, VERSION, sha256_hex};
use serde::Deserialize;
use serde_json::json;

pub(super) fn found(asked: &Asked, name: &str) -> Result<Function, Problem> {
    let key = asked.key(name)?;
    asked.desk.function(&key).ok_or_else(|| Problem::no_function(&super::arn(&asked.desk.region, &key)))
}

/// The bytes of the zip file.
fn zip_of(code: &Code) -> Result<Vec<u8>, Problem> {
    if code.s3_bucket.is_some() || code.image_uri.is_some() {
        return Err(Problem::invalid("code comes as ZipFile; S3 and container images are not supported"));
    }
    let text = code.zip_file.as_deref().ok_or_else(|| Problem::invalid("Code has no ZipFile"))?;
    let zip = base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|_| Problem::invalid("ZipFile is not in base64"))?;
    if zip.len() > CODE_BYTES_MAX {
        let message = format!("the zip file has {} bytes; it may have {CODE_BYTES_MAX}", zip.len());
        return Err(Problem::new(400, "CodeStorageExceededException", message));
    }
    Ok(zip)
}

/// Unpacks code, so that a bad zip file is refused now.
async fn unpack(asked: &Asked, key: &FunctionKey, zip: Vec<u8>) -> Result<(String, Vec<u8>), Problem> {
    let (cache, key) = (asked.desk.cache.clone(), key.clone());
    let unpacked = tokio::task::spawn_blocking(move || {
        let code = sha256_hex(&zip);
        cache.put(&key, &code, &zip).map(|_| (code, zip))
    });
    let unpacked = unpacked.await.map_err(|_| Problem::service("the code could not be unpacked"))?;
    unpacked.map_err(|error| match error {
        crate::cache::CacheError::Archive(error) => Problem::invalid(error.to_string()),
        crate::cache::CacheError::Write(error) => {
            tracing::error!(%error, "code cannot be written to the cache");
            Problem::service("the code could not be written")
        }
    })
}

pub(super) async fn create(asked: &Asked) -> Result<Response, Problem> {
    let mut wanted: Wanted = shapes::read(&asked.body)?;
    wanted.check()?;
    let name = wanted.function_name.take().unwrap_or_default();
    let key = asked.key(&name)?;
    if asked.desk.function(&key).is_some() {
        let message = format!("Function already exist: {name}");
        return Err(Problem::new(409, "ResourceConflictException", message));
    }
    let zip = zip_of(wanted.code.as_ref().unwrap_or(&Code::default()))?;
    let configuration = wanted.changed(shapes::defaults()).check()?;
    let (code, zip) = unpack(asked, &key, zip).await?;
    let function = Function {
        version: VERSION,
        key,
        configuration,
        code,
        code_bytes: zip.len() as u64,
        // Never that of a function of the same name that was deleted.
        revision: asked.desk.now_ms(),
        modified_ms: asked.desk.now_ms(),
    };
    asked.desk.keeper.put_function(&function, Some(&zip)).await?;
    asked.desk.deploy(function.clone());
    Ok(json_response(201, &shown(&asked.desk.region, &function)))
}

pub(super) fn list(asked: &Asked) -> Result<Response, Problem> {
    /// As Lambda.
    const PAGE: usize = 50;
    let all = asked.desk.functions_of(&asked.tenant);
    let after = asked.query("Marker").unwrap_or_default();
    let most = asked.query("MaxItems").and_then(|text| text.parse().ok()).unwrap_or(PAGE).clamp(1, 10_000);
    let mut rest = all.into_iter().filter(|function| function.key.name > after);
    let page: Vec<Function> = rest.by_ref().take(most).collect();
    let next = page.last().filter(|_| rest.next().is_some()).map(|function| function.key.name.clone());
    let functions: Vec<_> = page.iter().map(|function| shown(&asked.desk.region, function)).collect();
    let mut body = json!({"Functions": functions});
    if let Some(next) = next {
        body["NextMarker"] = json!(next);
    }
    Ok(json_response(200, &body))
}

pub(super) fn get(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let function = found(asked, name)?;
    let mut body = json!({
        "Configuration": shown(&asked.desk.region, &function),
        "Code": {"RepositoryType": "dxpu"},
        "Tags": {},
    });
    if let Some(limit) = function.configuration.concurrency {
        body["Concurrency"] = json!({"ReservedConcurrentExecutions": limit});
    }
    Ok(json_response(200, &body))
}

pub(super) fn configuration(asked: &Asked, name: &str) -> Result<Response, Problem> {
    Ok(json_response(200, &shown(&asked.desk.region, &found(asked, name)?)))
}

/// Writes a changed function and has its instances follow.
pub(super) async fn save(
    asked: &Asked,
    mut function: Function,
    zip: Option<&[u8]>,
) -> Result<Function, Problem> {
    function.modified_ms = asked.desk.now_ms();
    asked.desk.keeper.put_function(&function, zip).await?;
    asked.desk.deploy(function.clone());
    Ok(function)
}

pub(super) async fn update(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let mut function = found(asked, name)?;
    let wanted: Wanted = shapes::read(&asked.body)?;
    wanted.check()?;
    function.configuration = wanted.changed(function.configuration).check()?;
    function.revision += 1;
    let function = save(asked, function, None).await?;
    Ok(json_response(200, &shown(&asked.desk.region, &function)))
}

pub(super) async fn update_code(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let mut function = found(asked, name)?;
    let wanted: Code = shapes::read(&asked.body)?;
    let (code, zip) = unpack(asked, &function.key, zip_of(&wanted)?).await?;
    let before = std::mem::replace(&mut function.code, code);
    function.code_bytes = zip.len() as u64;
    if wanted.dry_run {
        return Ok(json_response(200, &shown(&asked.desk.region, &function)));
    }
    function.revision += 1;
    let function = save(asked, function, Some(&zip)).await?;
    forget_code(asked, &before);
    Ok(json_response(200, &shown(&asked.desk.region, &function)))
}

fn forget_code(asked: &Asked, code: &str) {
    if !asked.desk.is_code_used(&asked.tenant, code) {
        asked.desk.keeper.forget_code(&asked.tenant, code);
        asked.desk.cache.forget(&asked.tenant, code);
    }
}

pub(super) async fn delete(asked: &Asked, name: &str) -> Result<Response, Problem> {
    let function = found(asked, name)?;
    asked.desk.keeper.remove_function(&function).await?;
    asked.desk.remove(&function.key);
    forget_code(asked, &function.code);
    Ok(bytes_response(204, ""))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Concurrency {
    reserved_concurrent_executions: u32,
}

pub(super) async fn concurrency(asked: &Asked, name: &str, method: &Method) -> Result<Response, Problem> {
    let mut function = found(asked, name)?;
    match *method {
        Method::PUT => {
            let wanted: Concurrency = shapes::read(&asked.body)?;
            function.configuration.concurrency = Some(wanted.reserved_concurrent_executions);
            function = save(asked, function, None).await?;
        }
        Method::DELETE => {
            function.configuration.concurrency = None;
            save(asked, function, None).await?;
            return Ok(bytes_response(204, ""));
        }
        _ => {}
    }
    let body = match function.configuration.concurrency {
        Some(limit) => json!({"ReservedConcurrentExecutions": limit}),
        None => json!({}),
    };
    Ok(json_response(200, &body))
}
