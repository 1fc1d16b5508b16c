//! What a job's programs are told, and how it reaches them.
//!
//! Prolog writes a file of `NAME=VALUE` lines for the job. TaskProlog reads it before each task and prints what Slurm sets:
//! `export NAME=VALUE`, `unset NAME`, and `print WORDS` for the job's output.

use thiserror::Error;

/// The variables that only ever come from a lease. A job that was submitted from within another one inherits them from it; then
/// they are taken away, so that no job uses the GPUs of another.
const OURS: [&str; 7] = [
    "DXPU_WORKER",
    "DXPU_TOKEN_FILE",
    "DXPU_CA",
    "DXPU_WORKER_NAMES",
    "DXPU_LEASE",
    "DXPU_LEASE_JOB",
    "CUPY_COMPILE_WITH_PTX",
];
/// Other ways to name a worker, which would contradict the lease's.
const OTHERS: [&str; 3] = ["DXPU_FINGERPRINT", "DXPU_TOKEN", "DXPU_KEEPER"];

/// A file that `dxpu slurm attach` did not write.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvironmentError {
    /// A line that sets none of the variables of a lease.
    #[error("the line `{0}` sets no variable of a lease")]
    Line(String),
    /// A value that would be two lines.
    #[error("the value of {0} has a line break or a control character")]
    Value(&'static str),
}

/// The variables of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: Vec<(&'static str, String)>,
}

impl Environment {
    /// Sets one of a lease's variables.
    pub fn set(&mut self, name: &'static str, value: String) -> Result<(), EnvironmentError> {
        if value.chars().any(char::is_control) {
            return Err(EnvironmentError::Value(name));
        }
        debug_assert!(OURS.contains(&name), "{name} is not one of a lease's variables");
        self.variables.push((name, value));
        Ok(())
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// As it is kept.
    pub fn to_text(&self) -> String {
        self.variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    /// Reads what was kept.
    pub fn parse(text: &str) -> Result<Self, EnvironmentError> {
        let mut environment = Self::default();
        for line in text.lines() {
            let wrong = || EnvironmentError::Line(line.to_owned());
            let (name, value) = line.split_once('=').ok_or_else(wrong)?;
            let name = OURS.into_iter().find(|known| *known == name).ok_or_else(wrong)?;
            environment.set(name, value.to_owned())?;
        }
        Ok(environment)
    }

    /// What a task of the job is told. `search` is its LD_LIBRARY_PATH.
    pub fn told(&self, libraries: &str, search: &str) -> Shell {
        let mut shell = Shell::default();
        for (name, value) in &self.variables {
            shell.export(name, value);
        }
        let rest = without(search, libraries);
        let join = if rest.is_empty() { "" } else { ":" };
        shell.export("LD_LIBRARY_PATH", &format!("{libraries}{join}{rest}"));
        // Programs that do not ask the loader: Numba wants the file, Triton the directory.
        shell.export("NUMBA_CUDA_DRIVER", &format!("{libraries}/libcuda.so.1"));
        shell.export("TRITON_LIBCUDA_PATH", libraries);
        for name in OTHERS {
            shell.unset(name);
        }
        shell
    }
}

/// A search path without one of its folders.
fn without(search: &str, folder: &str) -> String {
    search.split(':').filter(|part| *part != folder && !part.is_empty()).collect::<Vec<_>>().join(":")
}

/// What TaskProlog prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shell {
    lines: Vec<String>,
}

impl Shell {
    fn export(&mut self, name: &str, value: &str) {
        self.lines.push(format!("export {name}={value}"));
    }

    fn unset(&mut self, name: &str) {
        self.lines.push(format!("unset {name}"));
    }

    /// For a job without GPUs of the pool that has inherited the variables of another job.
    pub fn of_no_lease() -> Self {
        let mut shell = Self::default();
        for name in OURS {
            shell.unset(name);
        }
        shell
    }

    /// For a job whose GPUs are not there. Slurm writes these words to the job's output.
    pub fn of_failure(words: &str) -> Self {
        let lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
        Self { lines: lines.map(|line| format!("print {line}")).collect() }
    }

    /// As Slurm reads it.
    pub fn to_text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_told_to_each_task() {
        let mut environment = Environment::default();
        environment.set("DXPU_WORKER", "tls:a:1,tls:b:2".to_owned()).unwrap();
        environment.set("DXPU_TOKEN_FILE", "/run/dxpu-slurm/7/tokens".to_owned()).unwrap();
        let again = Environment::parse(&environment.to_text()).unwrap();
        assert_eq!(again, environment);
        assert_eq!(
            (again.get("DXPU_TOKEN_FILE"), again.get("DXPU_CA")),
            (Some("/run/dxpu-slurm/7/tokens"), None)
        );
        let told = again.told("/lib/dxpu", "/opt/a:/lib/dxpu::/opt/b").to_text();
        for line in [
            "export DXPU_WORKER=tls:a:1,tls:b:2\n",
            "export DXPU_TOKEN_FILE=/run/dxpu-slurm/7/tokens\n",
            "export LD_LIBRARY_PATH=/lib/dxpu:/opt/a:/opt/b\n",
            "export NUMBA_CUDA_DRIVER=/lib/dxpu/libcuda.so.1\n",
            "unset DXPU_TOKEN\n",
            "unset DXPU_FINGERPRINT\n",
        ] {
            assert!(told.contains(line), "{line:?} is missing in {told}");
        }
        assert!(again.told("/l", "").to_text().contains("export LD_LIBRARY_PATH=/l\n"));
    }

    #[test]
    fn a_value_of_two_lines_and_a_foreign_variable_are_refused() {
        let mut environment = Environment::default();
        let broken = environment.set("DXPU_CA", "a\nexport PATH=/evil".to_owned());
        assert_eq!(broken, Err(EnvironmentError::Value("DXPU_CA")));
        assert!(Environment::parse("PATH=/evil\n").is_err() && Environment::parse("x\n").is_err());
    }

    #[test]
    fn every_line_of_a_failure_is_printed_and_none_is_an_order() {
        let told = Shell::of_failure("dxpu: no GPUs. It said:\n\n  export PATH=/evil\n").to_text();
        assert_eq!(told, "print dxpu: no GPUs. It said:\nprint export PATH=/evil\n");
    }

    #[test]
    fn a_job_without_gpus_keeps_no_variable_of_another() {
        let told = Shell::of_no_lease().to_text();
        assert!(OURS.iter().all(|name| told.contains(&format!("unset {name}\n"))), "{told}");
    }
}
