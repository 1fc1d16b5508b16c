"""What happens to pods with GPUs of the pool: when all goes well, when there is no GPU, and when parts of it die."""
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import time

import etcd
import kit
import yaml
from cluster import Cluster
from pool import Pool
from watch import Watch
from world import PATIENCE, World, render


def tell(record, options):
    with contextlib.ExitStack() as stack:
        members = stack.enter_context(etcd.Cluster())
        pool = stack.enter_context(Pool(managers=2, store=members.location()))
        pool.box("soft-a", "--soft", "2", "--memory", "512MiB")
        cluster = stack.enter_context(Cluster(options.bin))
        cases = Cases(pool, cluster, pathlib.Path(options.built))
        stack.callback(cases.end)
        print("\n".join(f"  {name}: {version}" for name, version in cluster.versions().items()), flush=True)
        parts = [
            ("the chart is installed, GPUs are published, the plugin is registered", cases.install),
            ("the chart's accounts may do what they need and no more", cases.privileges),
            ("a pod with a claim template runs a CUDA program, and its lease is returned", cases.one_pod),
            ("an extended resource is enough, also under the name nvidia.com/gpu", cases.extended_resource),
            ("two GPUs of one box", cases.two_gpus),
            ("a pod waits while no GPU is free", cases.no_gpu_free),
            ("a pod is not bound before its GPU is granted", cases.not_granted),
            ("another borrower has the GPUs: the allocation is refused, and taken back", cases.refused),
            ("a GPU breaks: taint, eviction, and the pod's owner gets another", cases.breaks),
            ("a GPU breaks under a pod that stays: its status says so", cases.breaks_and_stays),
            ("the plugin is killed under a running pod", cases.plugin_killed),
            ("the controller is killed while a pod waits", cases.controller_killed),
            ("the leading manager is killed under a running pod", cases.manager_killed),
            ("the kubelet and the plugin are killed, and the pod is deleted meanwhile", cases.node_killed),
            ("from scheduling to bound, bound when granted", cases.times_when_granted),
            ("from scheduling to bound, bound at once", cases.times_at_once),
            ("the chart's own pods serve a pod", cases.in_pods),
        ]
        for name, body in parts:
            if options.only in name or body == cases.install:
                record.part(name, body)
        if options.report:
            cases.report(options.report, record)


class Cases(World):
    def __init__(self, pool, cluster, built):
        super().__init__(pool, cluster)
        self.built, self.figures, self.notes = built, [], []

    def privileges(self):
        """The roles of the chart are what the other parts run with; this holds what they must not have."""
        resources = "resource.k8s.io"
        may = lambda account, *what: self.cluster.api.may(f"system:serviceaccount:dxpu:{account}", *what)
        for account in ("dxpu-controller", "dxpu-node"):
            kit.hold(may(account, "get", "resourceclaims", resources), account, "reads no claims")
            for what in (("get", "secrets"), ("list", "pods"), ("create", "pods"), ("update", "nodes"), ("delete", "resourceclaims", resources), ("*", "*", "*")):
                kit.hold(not may(account, *what), account, "may", *what)
        kit.hold(not may("dxpu-node", "update", "resourceclaims", resources), "the plugin may change claims")
        kit.hold(not may("dxpu-node", "create", "resourceslices", resources), "the plugin may publish devices")

    def one_pod(self):
        self.counts(self.start_pod("devices"), 1)

    def counts(self, name, gpus):
        """The pod's program sees so many GPUs and works on each; then all goes back."""
        self.succeeds(name)
        kit.hold(f"devices {gpus}" in self.log_of(name), self.log_of(name))
        self.delete(name)
        self.all_returned()

    def extended_resource(self):
        self.counts(self.start_pod("devices", extended="dxpu.dev/gpu"), 1)
        # Another class for the same devices, as the chart makes it with the name that pods already use.
        rendered = yaml.safe_load_all(render("deviceClass.extendedResourceName=nvidia.com/gpu", "deviceClass.name=nvidia.dxpu.dev"))
        self.cluster.api.apply(next(one for one in rendered if one["kind"] == "DeviceClass"))
        try:
            self.counts(self.start_pod("devices", extended="nvidia.com/gpu"), 1)
        finally:
            self.cluster.api.delete("DeviceClass", "nvidia.dxpu.dev")

    def two_gpus(self):
        self.counts(self.start_pod("devices", gpus=2, same_box=True), 2)

    def no_gpu_free(self):
        first = self.start_pod("steady", gpus=2)
        self.works(first)
        second = self.start_pod("devices")
        self.unschedulable(second)
        kit.hold(len(self.leases()) == 1, "a pod that cannot be scheduled asks for no GPU:", self.leases())
        self.delete(first)
        self.counts(second, 1)

    @contextlib.contextmanager
    def controller_stopped(self):
        os.kill(self.cluster.processes["controller"].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.cluster.processes["controller"].pid, signal.SIGCONT)

    def not_granted(self):
        """As long as nobody asks for the lease, the scheduler waits with an allocated claim."""
        with self.controller_stopped():
            name = self.start_pod("devices")
            kit.until(self.why(name), lambda: self.gpus_of(name), PATIENCE)
            conditions = self.claim_of(name)["status"]["allocation"]["devices"]["results"][0].get("bindingConditions", [])
            time.sleep(7)
            bound = self.pod(name)["spec"].get("nodeName")
        if conditions:
            kit.hold(not bound, "the pod was bound before its GPU was granted")
        self.counts(name, 1)
        return f"binding conditions: {', '.join(conditions) or 'not served; the plugin waited instead'}"

    def refused(self):
        """A borrower beside Kubernetes has the GPUs, and the slices do not show it yet."""
        with self.controller_stopped():
            borrower = self.pool.borrow(kit.program("steady"), gpus=2)
            with borrower:
                kit.until(lambda: f"the borrower works: {borrower.said()}", lambda: "working" in borrower.said(), PATIENCE)
                name = self.start_pod("devices")
                kit.until(self.why(name), lambda: self.gpus_of(name), PATIENCE)
                os.kill(self.cluster.processes["controller"].pid, signal.SIGCONT)
                # The lease waits for a while; then the driver refuses, and the scheduler finds no device in the slices.
                kit.until(self.why(name), lambda: not self.gpus_of(name), PATIENCE)
                kit.hold(not self.pod(name)["spec"].get("nodeName"), "the pod was bound")
                kit.until(lambda: f"no lease waits for it: {self.leases()}", lambda: not self.leases(), PATIENCE)
                borrower.process.send_signal(signal.SIGTERM)
                borrower.ends(0)
        self.counts(name, 1)

    @contextlib.contextmanager
    def broken(self, gpu):
        kit.hold(self.pool.ask("gpu", "break", gpu).returncode == 0, self.pool.last.stderr)
        try:
            yield
        finally:
            kit.until(lambda: f"the repair is ordered: {self.pool.last.stderr}", lambda: self.pool.ask("gpu", "repair", gpu).returncode == 0, PATIENCE)

    def taints(self, gpu):
        return [(one["key"], one["effect"]) for one in self.devices()[gpu.replace("/", "-")].get("taints", [])]

    def breaks(self):
        # A program that does nothing: one that works would see an error and end by itself.
        name = self.start_pod("idle")
        self.runs(name)
        [gpu] = self.gpus_of(name)
        with self.broken(gpu):
            kit.until(lambda: f"{gpu} is tainted: {self.taints(gpu)}\n{self.logs()}", lambda: ("dxpu.dev/lost", "NoExecute") in self.taints(gpu), PATIENCE)
            kit.until(lambda: f"{name} is evicted: {self.why(name)()}", lambda: name not in self.pods(), PATIENCE)
            second = self.start_pod("devices")
            self.succeeds(second)
            kit.hold(gpu not in self.gpus_of(second), "the broken GPU was allocated again")
            self.delete(second)
        self.all_returned()

    def health(self, name):
        """What the pod's status says of its devices."""
        statuses = self.pod(name)["status"].get("containerStatuses", [])
        return [resource for status in statuses for of in status.get("allocatedResourcesStatus", []) for resource in of.get("resources", [])]

    def breaks_and_stays(self):
        name = self.start_pod("idle", config={"survive": "on", "onLoss": "survive"})
        self.runs(name)
        kit.until(lambda: f"healthy: {self.health(name)}\n{self.logs()}", lambda: [one["health"] for one in self.health(name)] == ["Healthy"], PATIENCE)
        [gpu] = self.gpus_of(name)
        with self.broken(gpu):
            kit.until(lambda: f"unhealthy: {self.health(name)}\n{self.logs()}", lambda: [one["health"] for one in self.health(name)] == ["Unhealthy"], PATIENCE)
            told = self.health(name)[0]
            kit.hold(self.taints(gpu) == [("dxpu.dev/lost", "NoSchedule")], self.taints(gpu))
            kit.hold(not self.pod(name)["metadata"].get("deletionTimestamp"), "the pod is evicted")
            self.delete(name)
        self.all_returned()
        return told.get("message", "the status has no message")

    def plugin_killed(self):
        name = self.start_pod("steady")
        self.works(name)
        self.cluster.kill("plugin")
        time.sleep(1)
        kit.hold(self.phase(name) == "Running", self.why(name)())
        self.start_plugin()
        second = self.start_pod("devices")
        self.succeeds(second)
        kit.hold(self.phase(name) == "Running", self.why(name)())
        self.delete(name)
        self.delete(second)
        self.all_returned()

    def controller_killed(self):
        self.cluster.kill("controller")
        name = self.start_pod("devices")
        time.sleep(2)
        self.start_controller()
        self.succeeds(name)
        self.cluster.kill("controller")
        self.delete(name, wait=False)
        time.sleep(2)
        self.start_controller()
        self.all_returned()

    def manager_killed(self):
        name = self.start_pod("steady")
        self.works(name)
        leader = next(manager for manager in self.pool.managers if manager.leads())
        leader.kill()
        second = self.start_pod("devices")
        self.succeeds(second)
        kit.hold(self.phase(name) == "Running", self.why(name)())
        leader.start()
        self.delete(name)
        self.delete(second)
        self.all_returned()

    def node_killed(self):
        name = self.start_pod("steady")
        self.works(name)
        self.cluster.kill("kubelet")
        self.cluster.kill("plugin")
        self.delete(name, gracePeriodSeconds=0)
        kit.until(lambda: f"the lease of a node that is gone is returned: {self.leases()}\n{self.logs()}", lambda: not self.leases(), PATIENCE)
        self.cluster.start_kubelet()
        self.start_plugin()
        ready = lambda: any(one["type"] == "Ready" and one["status"] == "True" for one in self.cluster.node_conditions())
        kit.until(lambda: f"the node is back: {self.cluster.log('kubelet')}", ready, PATIENCE)
        left = lambda: [*self.cluster.cdi_dir.glob("*")]
        kit.until(lambda: f"files go: {left()}\n{self.logs()}", lambda: not left(), PATIENCE)
        self.counts(self.start_pod("devices"), 1)

    # Times.

    def measure(self, rounds=10):
        """Seconds after the allocation, as a watch shows each: the driver's word, the binding, a container that runs."""
        told = {"granted": [], "bound": [], "running": []}
        for _ in range(rounds):
            watch = Watch(self.cluster)
            name = self.start_pod("devices")
            kit.until(self.why(name), lambda: watch.running(name) is not None and watch.granted(name) is not None, PATIENCE)
            for what in told:
                told[what].append(getattr(watch, what)(name) - watch.allocated(name))
            watch.end()
            self.counts(name, 1)
        return told

    def tell_times(self, how, told):
        for what, seconds in told.items():
            self.figures.append((how, what, statistics.median(seconds), max(seconds), sorted(seconds)))
        return "; ".join(f"{what}: median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s" for what, seconds in told.items())

    def times_when_granted(self):
        """The driver's part must take less than a second. The scheduler of 1.36 then looks at the condition every 5 s."""
        told = self.measure()
        kit.hold(max(told["granted"]) <= 1.0, "from allocation to the driver's word it took (s)", told["granted"])
        return self.tell_times("when granted", told)

    def times_at_once(self):
        """Without binding conditions the scheduler does not wait, and the plugin does."""
        self.stop_controller()
        self.start_controller("--bind", "at-once")
        try:
            kit.until(lambda: f"slices without conditions: {self.devices()}", lambda: not any(one.get("bindingConditions") for one in self.devices().values()), PATIENCE)
            told = self.measure()
        finally:
            self.stop_controller()
            self.start_controller()
        kit.until(lambda: f"slices with conditions: {self.devices()}", lambda: all(one.get("bindingConditions") for one in self.devices().values()), PATIENCE)
        kit.hold(max(told["bound"]) <= 1.0, "from allocation to binding it took (s)", told["bound"])
        return self.tell_times("at once", told)

    # The chart's own pods.

    def in_pods(self):
        """With the image of deploy/image, and the chart's accounts, mounts and privileges. Only the network is the node's."""
        self.stop_controller()
        self.cluster.kill("plugin")
        image = self.cluster.import_layout("localhost/dxpu", self.built)
        for name, path in (("borrower", self.borrower), ("viewer", self.viewer)):
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"dxpu-{name}", "namespace": "dxpu"}}
            self.cluster.api.apply(secret | {"stringData": {"credential.json": pathlib.Path(path).read_text()}})
        settings = [f"image={image}", "imagePullPolicy=Never", f"node.kubeletDir={self.cluster.kubelet_dir}", f"node.cdiDir={self.cluster.cdi_dir}"]
        objects = list(yaml.safe_load_all(render(*settings)))
        for one in objects:
            if one["kind"] in ("Deployment", "DaemonSet"):
                spec = one["spec"]["template"]["spec"]
                # There is no network between pods here, and no proxy for the service of the API server.
                spec["hostNetwork"] = True
                where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.cluster.port)}
                spec["containers"][0].setdefault("env", []).extend({"name": name, "value": value} for name, value in where.items())
        try:
            for one in objects:
                self.cluster.api.apply(one)
            up = lambda: self.cluster.api.find("Deployment", "dxpu-controller", "dxpu")["status"].get("readyReplicas") == 1 \
                and self.cluster.api.find("DaemonSet", "dxpu-node", "dxpu")["status"].get("numberReady") == 1
            kit.until(lambda: f"the chart's pods are up: {self.pod_logs()}", up, PATIENCE)
            name = self.start_pod("devices")
            try:
                self.counts(name, 1)
            except kit.Wrong as wrong:
                raise kit.Wrong(f"{wrong}\n{self.pod_logs()}") from None
        finally:
            self.uninstall_pods()
            kit.until("the chart's pods end", lambda: not self.cluster.api.list("Pod", "dxpu"), PATIENCE)
            self.start_controller()
            self.start_plugin()

    def pod_logs(self):
        logs = (self.cluster.folder / "pod-logs").glob("dxpu_*/*/*.log")
        states = [one["status"].get("containerStatuses", one["status"].get("conditions")) for one in self.cluster.api.list("Pod", "dxpu")]
        return "\n".join([json.dumps(states), *(path.read_text()[-2000:] for path in logs)])

    def report(self, path, record):
        machine = f"{os.cpu_count()} cores, Linux {os.uname().release}"
        date = time.strftime("%Y-%m-%d")
        lines = ["# The driver for Kubernetes in a real cluster", "", f"`tests/kube/run --bin DIR --report FILE`, {date}; one node, two GPUs in software; {machine}.", ""]
        lines += ["| part | version |", "|---|---|", *(f"| {name} | {version} |" for name, version in self.cluster.versions().items())]
        lines += [f"| dxpu | {subprocess.run([kit.dxpu, '--version'], capture_output=True, text=True).stdout.strip()} |", ""]
        rows = [f"| {name} | {result} | {seconds:.1f} | {note} |" for name, result, seconds, note in record.parts]
        lines += ["| what | result | s | |", "|---|---|---:|---|", *rows, ""]
        lines += ["Seconds from the claim's allocation, which the scheduler writes, as one watcher of the API server saw them:", ""]
        lines += ["| pods are bound | until | median | worst | all |", "|---|---|---:|---:|---|"]
        lines += [f"| {how} | {what} | {median:.3f} | {worst:.3f} | {', '.join(f'{one:.3f}' for one in every)} |" for how, what, median, worst, every in self.figures]
        pathlib.Path(path).write_text("\n".join(lines) + "\n")
