//! The cluster's name, as `slurm.conf` has it.

use crate::job::Job;
use thiserror::Error;

/// Why the name is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfError {
    /// There is no such line.
    #[error("it has no line ClusterName=NAME; an included file is not read, so give --cluster NAME")]
    Missing,
    /// The line has no name of a cluster.
    #[error(transparent)]
    Name(#[from] crate::JobError),
}

/// The value of `ClusterName` in the text of a `slurm.conf`. The last line counts, as for Slurm; case does not matter.
pub fn cluster_name(conf: &str) -> Result<String, ConfError> {
    let mut found = None;
    for line in conf.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let Some((name, value)) = line.split_once('=') else { continue };
        if name.trim().eq_ignore_ascii_case("ClusterName") {
            found = Some(value.trim().trim_matches('"').to_owned());
        }
    }
    let name = found.ok_or(ConfError::Missing)?;
    Job::new(&name, 1)?;
    Ok(name)
}

/// The user by whose number slurmctld runs, from what `scontrol show config` prints (`SlurmUser = slurm(64030)`).
pub fn slurm_user(config: &str) -> Option<u32> {
    let line = config.lines().find(|line| line.trim_start().starts_with("SlurmUser "))?;
    let (_, number) = line.split_once('(')?;
    number.trim_end().strip_suffix(')')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_a_name_counts() {
        assert_eq!(cluster_name("# ClusterName=no\nclustername = lab # ours\n").as_deref(), Ok("lab"));
        assert_eq!(cluster_name("ClusterName=a\nClusterName=\"b\"\n").as_deref(), Ok("b"));
        assert_eq!(cluster_name("SlurmctldHost=a\n"), Err(ConfError::Missing));
        assert!(matches!(cluster_name("ClusterName=a b"), Err(ConfError::Name(_))));
    }

    #[test]
    fn the_user_of_slurmctld_is_read() {
        let config =
            "SlurmSchedLogLevel      = 0\nSlurmUser               = slurm(64030)\nSlurmdUser = root(0)\n";
        assert_eq!(slurm_user(config), Some(64030));
        assert_eq!(slurm_user("SlurmdUser = root(0)\n"), None);
    }
}
