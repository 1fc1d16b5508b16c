//! The first start of a pool: its authority, its first lease key, the secret of its PCIe plane, and its first admin.
//!
//! Managers that start at the same moment on one store agree: the authority is put only if there is none, and
//! the manager that comes second takes what it finds.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pool_auth::{
    Authority, AuthorityError, BearerToken, Credential, FabricSecret, Identity, LeaseKey, Secret, TokenKind,
    TokenRecord,
};
use pool_store::{Condition, Outcome, Store, StoreError, Transaction};

use crate::access::{AUTHORITY_KEY, FABRIC_KEY, lease_key_key, token_key};
use crate::backup::{UNFINISHED, UNFINISHED_KEY};
use crate::records::{self, StoredAuthority, StoredFabric, StoredLeaseKey};

/// Why a pool cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The store.
    #[error("cannot read or write the pool's authority in the store")]
    Store(#[from] StoreError),
    /// The authority.
    #[error("the pool's authority cannot be used")]
    Authority(#[from] AuthorityError),
    /// What is stored.
    #[error("the pool's authority cannot be read from the store")]
    Damaged(#[from] pool::records::ReadError),
    /// A restore of the store was interrupted.
    #[error("{UNFINISHED}")]
    Unfinished,
    /// The admin's file.
    #[error("cannot write the admin's credential to {path}")]
    AdminFile {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// An admin's token lasts for a year; `dxpu manager admin` makes a new one from the store.
const ADMIN_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The pool's authority, as it is or made now.
///
/// The manager that makes it also makes the first admin, and writes that credential to `admin_file` for its
/// owner alone.
pub fn begin(
    store: &dyn Store,
    managers: &[String],
    admin_file: &Path,
    now_ms: u64,
) -> Result<Arc<Authority>, BootstrapError> {
    if store.read(UNFINISHED_KEY)?.is_some() {
        return Err(BootstrapError::Unfinished);
    }
    if let Some(authority) = find(store)? {
        return Ok(authority);
    }
    let authority = Authority::make(now_ms)?;
    let stored = StoredAuthority {
        certificate: authority.certificate_pem().to_owned(),
        key: authority.key_pem().clone(),
    };
    let key = LeaseKey::make();
    let lease_key =
        StoredLeaseKey { secret: key.secret().clone(), created_ms: now_ms, signs_from_ms: now_ms };
    let fabric = StoredFabric { secret: FabricSecret::make().secret().clone() };
    let (credential, record) = admin(&authority, managers, "first", now_ms);
    // The file first: a pool without a known admin credential would be of no use.
    write_private(admin_file, &credential)?;
    let transaction = Transaction::new()
        .when(Condition::absent(AUTHORITY_KEY))
        .put(AUTHORITY_KEY, records::AUTHORITY.write(&stored))
        .put(lease_key_key(&key), records::LEASE_KEY.write(&lease_key))
        .put(FABRIC_KEY, records::FABRIC.write(&fabric))
        .put(token_key(&record), records::TOKEN.write(&record));
    match store.commit(&transaction) {
        Ok(Outcome::Committed { .. }) => {
            tracing::info!(admin_file = %admin_file.display(), "made a new pool and wrote the credential of its first admin");
            Ok(Arc::new(authority))
        }
        // Another manager was faster: its admin counts.
        Ok(Outcome::Conflict { .. }) => {
            let _ = std::fs::remove_file(admin_file);
            find(store)?.ok_or_else(|| {
                BootstrapError::Store(StoreError::Unavailable {
                    doing: "read the authority another manager made",
                    source: "it is gone".into(),
                })
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes another admin token, for a process that can write to the store: it owns the pool anyway.
pub fn new_admin(
    store: &dyn Store,
    managers: &[String],
    name: &str,
    now_ms: u64,
) -> Result<Option<Credential>, BootstrapError> {
    let Some(authority) = find(store)? else { return Ok(None) };
    let (credential, record) = admin(&authority, managers, name, now_ms);
    let transaction = Transaction::new().put(token_key(&record), records::TOKEN.write(&record));
    let _ = store.commit(&transaction)?;
    Ok(Some(credential))
}

fn admin(authority: &Authority, managers: &[String], name: &str, now_ms: u64) -> (Credential, TokenRecord) {
    let token = BearerToken::make(TokenKind::User);
    let identity = Identity::Admin(name.to_owned());
    let life_ms = u64::try_from(ADMIN_LIFE.as_millis()).unwrap_or(u64::MAX);
    let record =
        TokenRecord::new(&token, identity.clone(), "the manager's first start", now_ms, now_ms + life_ms);
    let credential = Credential {
        managers: managers.to_vec(),
        authority: authority.certificate_pem().to_owned(),
        identity,
        token: Some(token.reveal()),
        certificate: None,
        key: None,
    };
    (credential, record)
}

fn find(store: &dyn Store) -> Result<Option<Arc<Authority>>, BootstrapError> {
    let Some(record) = store.read(AUTHORITY_KEY)? else { return Ok(None) };
    let stored = records::AUTHORITY.read(&record.value)?;
    Ok(Some(Arc::new(Authority::from_pem(stored.certificate, stored.key)?)))
}

/// Writes a credential that only its owner can read, replacing what was there.
pub fn write_private(path: &Path, credential: &Credential) -> Result<(), BootstrapError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let text = serde_json::to_string_pretty(credential).expect("a credential has text keys and texts");
    let text = Secret::new(text);
    let write = || -> std::io::Result<()> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let unfinished = path.with_extension("unfinished");
        let _ = std::fs::remove_file(&unfinished);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.reveal().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    write().map_err(|source| BootstrapError::AdminFile { path: path.display().to_string(), source })
}
