//! `--store sqlite:PATH` or `--store etcd:URL,URL`.

use crate::support::exit::{Exit, Failure};
use anyhow::Context;
use machine::files;
use pool_store::{Etcd, EtcdSettings, EtcdTls, Older, OpenError, Sqlite, Store};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Where a manager keeps everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreOption {
    /// One file.
    Sqlite(PathBuf),
    /// A cluster.
    Etcd(Vec<String>),
}

impl FromStr for StoreOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            Some(("etcd", urls)) => {
                let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
                let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
                if urls.iter().all(is_url) {
                    Ok(Self::Etcd(urls))
                } else {
                    Err("write etcd:http://HOST:2379,http://HOST:2379".to_owned())
                }
            }
            _ => Err("write sqlite:PATH or etcd:URL,URL,URL".to_owned()),
        }
    }
}

/// What proves the members of a cluster to this process, and this process to them.
#[derive(clap::Args)]
pub(crate) struct EtcdFiles {
    /// The authority of etcd's certificates, PEM
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// This process's certificate for etcd, PEM
    #[arg(long, value_name = "FILE", requires = "etcd_ca", requires = "etcd_key")]
    etcd_certificate: Option<PathBuf>,
    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    etcd_key: Option<PathBuf>,
}

impl EtcdFiles {
    pub(crate) fn tls(&self) -> anyhow::Result<Option<EtcdTls>> {
        let Some(ca) = &self.etcd_ca else { return Ok(None) };
        let read =
            |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let identity = match (&self.etcd_certificate, &self.etcd_key) {
            (Some(certificate), Some(key)) => {
                Some((read(certificate)?, files::read_secret(key)?.into_bytes()))
            }
            _ => None,
        };
        Ok(Some(EtcdTls { ca: read(ca)?, identity }))
    }
}

impl StoreOption {
    /// Opens it; `tls` is for etcd, whose `https` addresses need it, `older` for a file.
    pub(crate) fn open(&self, tls: Option<EtcdTls>, older: Older) -> anyhow::Result<Arc<dyn Store>> {
        match self {
            Self::Sqlite(path) => {
                let store = Sqlite::open_or(path, older).map_err(|error| {
                    let hint = match &error {
                        OpenError::Older { .. } => {
                            "put the log (its name ends with -wal) back beside the file, or restore a backup that has \
                             both. If the older state is what you want, start once with --accept-older-store: what was \
                             granted since is forgotten"
                        }
                        _ => "check the path: its folder must exist and be writable",
                    };
                    Failure::new(Exit::Failure, "cannot open the store", hint).because(error)
                })?;
                Ok(Arc::new(store))
            }
            Self::Etcd(endpoints) => {
                let settings = EtcdSettings { tls, ..EtcdSettings::new(endpoints.iter().cloned()) };
                let store = Etcd::open(&settings).map_err(|error| {
                    Failure::new(Exit::Failure, "cannot open the store", "check the addresses of etcd")
                        .because(error)
                })?;
                Ok(Arc::new(store))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_named_by_engine_and_place() {
        assert_eq!("sqlite:/a/b.db".parse(), Ok(StoreOption::Sqlite("/a/b.db".into())));
        let two = StoreOption::Etcd(vec!["http://a:2379".into(), "https://b:2379".into()]);
        assert_eq!("etcd:http://a:2379,https://b:2379".parse(), Ok(two));
        for bad in ["", "sqlite:", "etcd:", "etcd:a:2379", "redis:x", "/a/b.db"] {
            assert!(bad.parse::<StoreOption>().is_err(), "{bad}");
        }
    }
}
