//! Which store, as an operator writes it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::OpenError;
use crate::etcd::{Etcd, EtcdSettings};
use crate::sqlite::Sqlite;
use crate::store::Store;

/// A file (`PATH` or `sqlite:PATH`) or a cluster (`etcd:URL,URL,URL`).
#[derive(Clone, Debug)]
pub enum Location {
    /// A file on this machine.
    Sqlite(PathBuf),
    /// A cluster. Certificates and other settings can be added before it is opened.
    Etcd(EtcdSettings),
}

impl Location {
    /// Opens it. For a cluster, this does not yet ask whether it is there.
    pub fn open(&self) -> Result<Arc<dyn Store>, OpenError> {
        Ok(match self {
            Self::Sqlite(path) => Arc::new(Sqlite::open(path)?),
            Self::Etcd(settings) => Arc::new(Etcd::open(settings)?),
        })
    }
}

impl FromStr for Location {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let location = match text.strip_prefix("etcd:") {
            Some(urls) => {
                let urls: Vec<&str> = urls.split(',').map(str::trim).filter(|url| !url.is_empty()).collect();
                Self::Etcd(EtcdSettings::new(urls))
            }
            None => Self::Sqlite(text.strip_prefix("sqlite:").unwrap_or(text).into()),
        };
        let is_empty = match &location {
            Self::Sqlite(path) => path.as_os_str().is_empty(),
            Self::Etcd(settings) => settings.endpoints.is_empty(),
        };
        if is_empty {
            let what = format!("not a store: {text:?} (expected a file, or etcd:URL,URL,URL)");
            return Err(OpenError::Setting { what, source: None });
        }
        Ok(location)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Etcd(settings) => write!(f, "etcd:{}", settings.endpoints.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let shown = match text.parse::<Location>() {
            Ok(location) => location.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_location_is_a_file_or_a_cluster() {
        check("/var/lib/pool.db", "sqlite:/var/lib/pool.db");
        check("sqlite:pool.db", "sqlite:pool.db");
        check("etcd:http://a:2379, https://b:2379,", "etcd:http://a:2379,https://b:2379");
        check("etcd:", r#"not a store: "etcd:" (expected a file, or etcd:URL,URL,URL)"#);
        check("", r#"not a store: "" (expected a file, or etcd:URL,URL,URL)"#);
    }

    #[test]
    fn endpoints_that_make_no_sense_are_refused_when_opened() {
        for text in ["etcd:10.0.0.1:2379", "etcd:http://", "etcd:https://10.0.0.1:2379"] {
            let result = text.parse::<Location>().unwrap().open();
            assert!(matches!(result, Err(OpenError::Setting { .. })), "{text}");
        }
    }
}
