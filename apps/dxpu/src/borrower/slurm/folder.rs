//! A job's files on one of its nodes.
//!
//! ```text
//! ROOT/JOB/tokens        one line for each GPU; the job's user alone can read it
//! ROOT/JOB/ca.pem        by which boxes are known
//! ROOT/JOB/environment   what tasks are told
//! ROOT/JOB/why-not       why Prolog failed; there instead of the others
//! ROOT/lock              held while files of any job are written or removed
//! ```
//!
//! The folders belong to root, so that no user puts a link where root writes. Prolog, Epilog and the health check run at once, also for
//! two runs of one job: each of them looks, under the lock, at which lease the files are for.

use anyhow::Context;
use pool_api::LeaseId;
use pool_slurm::Environment;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Words of a Prolog whose job has no Epilog any more, because its node died, are kept no longer than this.
const WORDS_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// The user that may read a job's files.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What tasks need.
pub(super) struct Access {
    pub(super) lease: LeaseId,
    pub(super) tokens: String,
    pub(super) authority: String,
    pub(super) environment: Environment,
}

/// The folder of a job.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// That of a job below a root. It need not be there.
    pub(super) fn of(root: &Path, job: u32) -> Self {
        Self { path: root.join(job.to_string()) }
    }

    /// Where a file of the job is.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What tasks are told; `None` while there is nothing.
    pub(super) fn environment(&self) -> anyhow::Result<Option<Environment>> {
        let file = self.file("environment");
        let Some(text) = text_of(&file)? else { return Ok(None) };
        Ok(Some(Environment::parse(&text).with_context(|| file.display().to_string())?))
    }

    /// The lease that the files are for, and their owner.
    pub(super) fn lease(&self) -> anyhow::Result<Option<(LeaseId, Owner)>> {
        let Some(environment) = self.environment()? else { return Ok(None) };
        let seen = std::fs::metadata(self.file("environment"))?;
        let lease = environment.get("DXPU_LEASE").unwrap_or_default().parse()?;
        Ok(Some((lease, Owner { uid: seen.uid(), gid: seen.gid() })))
    }

    /// Why Prolog failed, if it said so.
    pub(super) fn why_not(&self) -> anyhow::Result<Option<String>> {
        text_of(&self.file("why-not"))
    }

    /// Writes the files of a run, instead of any that an earlier run has left.
    pub(super) fn give(&self, access: &Access, owner: Owner) -> anyhow::Result<()> {
        let _alone = self.alone()?;
        self.make()?;
        self.write(access, owner)
    }

    /// Writes the files anew if they are still for this lease: Epilog may have removed them, and Prolog may have written those of the
    /// job's next run.
    pub(super) fn renew(&self, access: &Access, owner: Owner) -> anyhow::Result<()> {
        if !self.path.exists() {
            return Ok(());
        }
        let _alone = self.alone()?;
        match self.lease()? {
            Some((lease, _)) if lease == access.lease => self.write(access, owner),
            _ => Ok(()),
        }
    }

    fn write(&self, access: &Access, owner: Owner) -> anyhow::Result<()> {
        give(&self.file("ca.pem"), owner, &access.authority)?;
        give(&self.file("tokens"), owner, &access.tokens)?;
        // Last: a task that finds it finds the others too.
        give(&self.file("environment"), owner, &access.environment.to_text())?;
        match std::fs::remove_file(self.file("why-not")) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("cannot remove why-not"),
            _ => Ok(()),
        }
    }

    /// Leaves the words of a Prolog that failed where TaskProlog finds them, and nothing else: no task gets what an earlier run had.
    pub(super) fn say_why_not(&self, words: &str, owner: Owner) -> anyhow::Result<()> {
        let _alone = self.alone()?;
        machine::files::remove_directory(&self.path)?;
        self.make()?;
        give(&self.file("why-not"), owner, words)
    }

    /// Removes all files of the job.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        self.remove_if(|| Ok(true))
    }

    /// Removes the files if they are still for this lease.
    pub(super) fn remove_those_of(&self, lease: LeaseId) -> anyhow::Result<()> {
        self.remove_if(|| Ok(self.lease()?.is_some_and(|(found, _)| found == lease)))
    }

    /// Removes words that no Epilog will remove.
    pub(super) fn remove_old_words(&self) -> anyhow::Result<()> {
        let age = |path: &Path| {
            SystemTime::now().duration_since(std::fs::metadata(path).ok()?.modified().ok()?).ok()
        };
        self.remove_if(|| {
            let is_old = age(&self.path).is_some_and(|age| age > WORDS_KEPT_FOR);
            Ok(is_old && self.lease()?.is_none())
        })
    }

    fn remove_if(&self, is_to_go: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        // Most jobs have none, and a node that never had one has no lock either.
        if !self.path.exists() {
            return Ok(());
        }
        let _alone = self.alone()?;
        if is_to_go()? {
            machine::files::remove_directory(&self.path)?;
        }
        Ok(())
    }

    /// All may enter, because the files have owners of their own.
    fn make(&self) -> anyhow::Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.path);
        made.with_context(|| format!("cannot make {}", self.path.display()))
    }

    /// No other command of this node writes or removes files of jobs while this is open.
    fn alone(&self) -> anyhow::Result<File> {
        let path = self.path.with_file_name("lock");
        if let Some(root) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(root);
            made.with_context(|| format!("cannot make {}", root.display()))?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}

fn text_of(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes a file that its new owner alone can read; a reader sees the old one or the new one, whole.
fn give(path: &Path, owner: Owner, content: &str) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new().prefix(".unfinished-").tempfile_in(folder)?;
        file.as_file().set_permissions(Permissions::from_mode(0o400))?;
        fchown(file.as_file(), Some(owner.uid), Some(owner.gid))?;
        file.write_all(content.as_bytes())?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    };
    write().with_context(|| format!("cannot write {} for user {}", path.display(), owner.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node {
        root: tempfile::TempDir,
        owner: Owner,
    }

    impl Node {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let seen = std::fs::metadata(root.path()).unwrap();
            Self { owner: Owner { uid: seen.uid(), gid: seen.gid() }, root }
        }

        fn job(&self) -> Folder {
            Folder::of(self.root.path(), 7)
        }
    }

    fn access(lease: &str) -> Access {
        let mut environment = Environment::default();
        environment.set("DXPU_LEASE", lease.to_owned()).unwrap();
        let tokens = format!("token of {lease}\n");
        Access { lease: lease.parse().unwrap(), tokens, authority: String::new(), environment }
    }

    fn lease(folder: &Folder) -> Option<String> {
        folder.lease().unwrap().map(|(lease, _)| lease.to_string())
    }

    const FIRST: &str = "l-0000000000000001";
    const SECOND: &str = "l-0000000000000002";

    #[test]
    fn a_health_check_that_is_late_changes_nothing_of_the_next_run() {
        let node = Node::new();
        let folder = node.job();
        folder.give(&access(FIRST), node.owner).unwrap();
        // The health check has asked for the first lease. Meanwhile the job is requeued, and comes back here.
        folder.remove().unwrap();
        folder.renew(&access(FIRST), node.owner).unwrap();
        assert_eq!(lease(&folder), None, "Epilog has removed them for good");
        folder.give(&access(SECOND), node.owner).unwrap();
        folder.renew(&access(FIRST), node.owner).unwrap();
        folder.remove_those_of(FIRST.parse().unwrap()).unwrap();
        assert_eq!(lease(&folder).as_deref(), Some(SECOND));
        assert_eq!(std::fs::read_to_string(folder.file("tokens")).unwrap(), format!("token of {SECOND}\n"));
        folder.renew(&access(SECOND), node.owner).unwrap();
        folder.remove_those_of(SECOND.parse().unwrap()).unwrap();
        assert!(!folder.path.exists());
    }

    #[test]
    fn the_words_of_a_prolog_that_failed_replace_what_an_earlier_run_left_and_go_when_one_succeeds() {
        let node = Node::new();
        let folder = node.job();
        folder.give(&access(FIRST), node.owner).unwrap();
        folder.say_why_not("no manager answers", node.owner).unwrap();
        assert_eq!(
            (lease(&folder), folder.why_not().unwrap().as_deref()),
            (None, Some("no manager answers"))
        );
        assert!(!folder.file("tokens").exists());
        folder.remove_old_words().unwrap();
        assert!(folder.why_not().unwrap().is_some(), "they are fresh");
        folder.give(&access(SECOND), node.owner).unwrap();
        assert_eq!((lease(&folder).as_deref(), folder.why_not().unwrap()), (Some(SECOND), None));
        folder.remove().unwrap();
        folder.remove().unwrap();
    }

    #[test]
    fn a_node_that_never_had_a_job_of_the_pool_stays_as_it_is() {
        let node = Node::new();
        let folder = Folder::of(&node.root.path().join("not there"), 7);
        folder.remove().unwrap();
        folder.remove_old_words().unwrap();
        assert!(folder.why_not().unwrap().is_none() && !node.root.path().join("not there").exists());
    }
}
