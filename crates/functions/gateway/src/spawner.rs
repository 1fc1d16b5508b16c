//! The thread that starts processes and hears of their end.
//!
//! One thread that lives as long as the service starts all of them: the kernel ends a process when the *thread* that started it
//! is gone.

use crate::cache::Cache;
use crate::desk::Desk;
use crate::logs::Line;
use crate::pipes::Pipes;
use crate::runner::{self, Order};
use functions::{Function, InstanceId};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

/// What to do.
pub(crate) enum Job {
    Start(Box<StartOrder>),
    Kill(InstanceId),
    Gone(InstanceId),
}

pub(crate) struct StartOrder {
    pub(crate) instance: InstanceId,
    pub(crate) function: Function,
    /// `HOST:PORT` of its Runtime API.
    pub(crate) runtime_api: String,
    /// What has it find its GPU.
    pub(crate) gpu: Option<Vec<(String, String)>>,
}

/// How instances are started.
pub(crate) struct Spawner {
    pub(crate) cache: Cache,
    pub(crate) users: Arc<crate::users::Users>,
    pub(crate) python: String,
    pub(crate) region: String,
    pub(crate) desk: Weak<Desk>,
    /// A name for control groups that no other service of this machine has.
    pub(crate) name: String,
}

impl Spawner {
    pub(crate) fn start(self) -> std::io::Result<Sender<Job>> {
        let (jobs, orders) = channel();
        let own = jobs.clone();
        std::thread::Builder::new()
            .name("functions-spawner".to_owned())
            .spawn(move || self.run(&orders, &own))?;
        Ok(jobs)
    }

    fn run(self, orders: &Receiver<Job>, own: &Sender<Job>) {
        let mut groups: HashMap<InstanceId, Pid> = HashMap::new();
        while let Ok(job) = orders.recv() {
            match job {
                Job::Start(order) => match self.spawn(&order, own) {
                    Ok(pid) => {
                        groups.insert(order.instance, pid);
                    }
                    Err(error) => {
                        let key = &order.function.key;
                        tracing::warn!(%key, %error, "an instance cannot be started");
                        self.tell_end(order.instance, format!("cannot be started: {error}"));
                    }
                },
                Job::Kill(instance) => {
                    if let Some(pid) = groups.get(&instance) {
                        let _ = kill_process_group(*pid, Signal::KILL);
                    }
                }
                Job::Gone(instance) => {
                    groups.remove(&instance);
                }
            }
        }
        // The service ends: so do all instances.
        for pid in groups.into_values() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    fn tell_end(&self, instance: InstanceId, how: String) {
        if let Some(desk) = self.desk.upgrade() {
            desk.ended(instance, how);
        }
    }

    fn spawn(&self, order: &StartOrder, own: &Sender<Job>) -> std::io::Result<Pid> {
        let desk = self.desk.upgrade().ok_or_else(|| std::io::Error::other("the service ends"))?;
        let function = &order.function;
        let code = self.cache.code(&function.key.tenant, &function.code);
        if !code.is_dir() {
            // A restarted service, or another machine: the store has it.
            let zip =
                desk.keeper.code(&function.key.tenant, &function.code).map_err(std::io::Error::other)?;
            self.cache.put(&function.key, &function.code, &zip).map_err(std::io::Error::other)?;
        }
        let home = self.cache.instance(order.instance)?;
        let name = format!("{}-{}", self.name, order.instance.0);
        let runner = Order {
            name: name.clone(),
            program: self.program(function, &code),
            environment: self.environment(order, &code, &home),
            folder: code,
            user: self.users.user(order.instance).zip(self.users.group(&function.key.tenant)),
            memory_bytes: u64::from(function.configuration.memory_mb) << 20,
        };
        let mut command = machine::this_program();
        command.arg("function-runner").env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(serde_json::to_string(&runner)?.as_bytes())?;
        }
        self.attend(order, child, name, own.clone())?;
        Ok(pid)
    }

    fn program(&self, function: &Function, code: &std::path::Path) -> Vec<String> {
        if function.configuration.runtime.starts_with("provided") {
            return vec![code.join("bootstrap").display().to_string()];
        }
        let handler = function.configuration.handler.clone();
        vec![self.python.clone(), "-m".to_owned(), "awslambdaric".to_owned(), handler]
    }

    fn environment(
        &self,
        order: &StartOrder,
        code: &std::path::Path,
        home: &std::path::Path,
    ) -> BTreeMap<String, String> {
        let function = &order.function;
        let own = &function.configuration;
        let mut environment = own.environment.clone();
        let (code, home) = (code.display().to_string(), home.display().to_string());
        let python_path = match environment.get("PYTHONPATH") {
            Some(more) => format!("{code}:{more}"),
            None => code.clone(),
        };
        let settings = [
            ("AWS_LAMBDA_RUNTIME_API", order.runtime_api.clone()),
            ("AWS_LAMBDA_FUNCTION_NAME", function.key.name.clone()),
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", own.memory_mb.to_string()),
            ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{}", function.key.name)),
            ("AWS_LAMBDA_LOG_STREAM_NAME", order.instance.to_string()),
            ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
            ("AWS_EXECUTION_ENV", format!("AWS_Lambda_{}", own.runtime)),
            ("AWS_REGION", self.region.clone()),
            ("AWS_DEFAULT_REGION", self.region.clone()),
            ("_HANDLER", own.handler.clone()),
            ("LAMBDA_TASK_ROOT", code),
            ("PYTHONPATH", python_path),
            ("PYTHONUNBUFFERED", "1".to_owned()),
            ("HOME", home.clone()),
            ("TMPDIR", home),
            ("LANG", "C.UTF-8".to_owned()),
            ("TZ", ":UTC".to_owned()),
        ];
        environment.extend(settings.map(|(name, value)| (name.to_owned(), value)));
        environment.entry("PATH".to_owned()).or_insert_with(|| "/usr/local/bin:/usr/bin:/bin".to_owned());
        environment.extend(order.gpu.iter().flatten().cloned());
        environment
    }

    /// Threads that read what the instance prints, and hear of its end.
    fn attend(
        &self,
        order: &StartOrder,
        mut child: Child,
        name: String,
        own: Sender<Job>,
    ) -> std::io::Result<()> {
        let key = order.function.key.clone();
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        let pipes = Arc::new(Pipes::new(stdout.into_iter().chain(stderr).collect()));
        if let Some(desk) = self.desk.upgrade() {
            desk.prints_to(order.instance, &pipes);
        }
        let mut readers = Vec::new();
        for which in 0..pipes.count() {
            let (desk, key, instance, pipes) =
                (self.desk.clone(), key.clone(), order.instance, pipes.clone());
            let read = move || {
                pipes.read(which, |text| {
                    if let Some(desk) = desk.upgrade() {
                        let line = Line { at_ms: desk.now_ms(), request: desk.running(instance), text };
                        desk.logs.add(&key, line);
                    }
                })
            };
            readers.push(std::thread::Builder::new().name("functions-log".to_owned()).spawn(read)?);
        }
        let (desk, cache, instance) = (self.desk.clone(), self.cache.clone(), order.instance);
        let wait = move || {
            let pid = Pid::from_child(&child);
            let status = child.wait();
            // What the function started in the same group, where no namespace has ended it.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = own.send(Job::Gone(instance));
            readers.into_iter().for_each(|reader| drop(reader.join()));
            runner::forget_cgroup(&name);
            cache.forget_instance(instance);
            if let Some(desk) = desk.upgrade() {
                desk.ended(instance, status.map_or_else(|error| error.to_string(), in_words));
            }
        };
        std::thread::Builder::new().name("functions-wait".to_owned()).spawn(wait)?;
        Ok(())
    }
}

/// Lambda's words.
fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "Runtime exited without providing a reason".to_owned(),
        // As shells say that the program was killed.
        (Some(137), _) | (None, Some(9)) => "Runtime exited with error: signal: killed".to_owned(),
        (Some(code), _) => format!("Runtime exited with error: exit status {code}"),
        (None, signal) => format!("Runtime exited with error: signal: {}", signal.unwrap_or(0)),
    }
}
