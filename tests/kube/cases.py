"""What happens to pods with GPUs of the pool: when all goes well, when there is no GPU, and when parts of it die."""
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import etcd
import kit
from cluster import NODE, PROGRAMS, Cluster
from pool import Pool

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Longer than anything here takes on a busy machine.
PATIENCE = 120


def tell(record, options):
    with contextlib.ExitStack() as stack:
        members = stack.enter_context(etcd.Cluster())
        pool = stack.enter_context(Pool(managers=2, store=members.location()))
        pool.box("soft-a", "--soft", "2", "--memory", "512MiB")
        cluster = stack.enter_context(Cluster(options.bin))
        world = World(pool, cluster)
        stack.callback(world.end)
        print("\n".join(f"  {name}: {version}" for name, version in cluster.versions().items()), flush=True)
        parts = [
            ("the chart is installed, GPUs are published, the plugin is registered", world.install),
            ("a pod with a claim template runs a CUDA program, and its lease is returned", world.one_pod),
            ("an extended resource is enough", world.extended_resource),
            ("two GPUs of one box", world.two_gpus),
            ("a pod waits while no GPU is free", world.no_gpu_free),
            ("a pod is not bound before its GPU is granted", world.not_granted),
            ("the plugin is killed under a running pod", world.plugin_killed),
            ("the controller is killed while a pod waits", world.controller_killed),
            ("the leading manager is killed under a running pod", world.manager_killed),
            ("the kubelet and the plugin are killed, and the pod is deleted meanwhile", world.node_killed),
            ("from scheduling to bound", world.times),
        ]
        for name, body in parts:
            if options.only in name or body == world.install:
                record.part(name, body)
        if options.report:
            world.report(options.report, record)


class World:
    def __init__(self, pool, cluster):
        self.pool, self.cluster, self.count, self.seconds = pool, cluster, 0, []
        self.borrower, self.viewer = pool.file("kube.json"), pool.file("kube-viewer.json")
        for identity, path in (("tenant/kube/cluster", self.borrower), ("viewer/kube", self.viewer)):
            kit.hold(pool.token(identity, path), pool.last.stderr)

    # Our two parts, as the chart starts them.

    def install(self):
        rendered = subprocess.run([sys.executable, ROOT / "deploy/kube/render"], capture_output=True, text=True, check=True).stdout
        self.cluster.kubectl("create", "namespace", "dxpu")
        self.cluster.apply(rendered)
        # The same programs run as processes here: there is no registry to pull their image from.
        self.cluster.kubectl("delete", "-n", "dxpu", "deployment/dxpu-controller", "daemonset/dxpu-node", "--wait=false")
        self.accounts = {name: self.cluster.account(name) for name in ("dxpu-controller", "dxpu-node")}
        self.start_controller()
        self.start_plugin()
        kit.until(lambda: f"slices: {self.logs()}", lambda: len(self.devices()) == 2, PATIENCE)
        return ", ".join(sorted(self.devices()))

    def start_controller(self):
        self.cluster.start("controller", kit.dxpu, "kube", "controller", "--credential", self.borrower, "--viewer", self.viewer,
                           "--namespace", "dxpu", "--kubeconfig", self.accounts["dxpu-controller"], environment=self.pool.environment)

    def start_plugin(self):
        before = self.cluster.log("plugin", 1 << 20).count("has registered the plugin")
        self.cluster.start("plugin", kit.dxpu, "kube", "node", "--credential", self.borrower, "--kubelet-dir", self.cluster.kubelet_dir,
                           "--cdi-dir", self.cluster.cdi_dir, "--run-dir", self.cluster.run_dir, "--library-dir", self.cluster.folder / "libraries",
                           "--api-server", f"https://127.0.0.1:{self.cluster.port}", "--api-authority", self.cluster.folder / "ca.pem",
                           "--api-token-file", self.cluster.folder / "dxpu-node.token", environment=self.pool.environment)
        registered = lambda: self.cluster.log("plugin", 1 << 20).count("has registered the plugin") > before
        kit.until(lambda: f"the kubelet registers the plugin: {self.logs()}", registered, PATIENCE)

    def logs(self):
        return "\n".join(f"{name}: {self.cluster.log(name, 1500)}" for name in ("controller", "plugin", "kubelet"))

    def end(self):
        for pod in self.pods():
            self.cluster.kubectl("delete", "pod", pod, "--force", "--grace-period=0", must=False)

    # What is there.

    def devices(self):
        slices = self.cluster.get("resourceslices")["items"]
        return {device["name"]: device for one in slices if one["spec"]["driver"] == "dxpu.dev" for device in one["spec"].get("devices", [])}

    def pods(self):
        return [pod["metadata"]["name"] for pod in self.cluster.get("pods")["items"]]

    def pod(self, name):
        return self.cluster.get("pod", name)

    def why(self, name):
        return lambda: (self.cluster.kubectl("describe", "pod", name, must=False).stdout[-2500:]
                        + json.dumps([one.get("status") for one in self.cluster.get("resourceclaims")["items"]])[:2000] + "\n" + self.logs())

    def phase(self, name):
        return self.pod(name)["status"].get("phase")

    def log_of(self, name):
        """What the pod's program wrote: the kubelet's own server is not asked, since nothing here signs its certificate."""
        found = list((self.cluster.folder / "pod-logs").glob(f"default_{name}_*/*/*.log"))
        return "\n".join(path.read_text() for path in found)

    def leases(self):
        return [lease for lease in self.pool.live_leases() if lease["tenant"] == "kube"]

    # Pods.

    def start_pod(self, program="steady", gpus=1, same_box=False, extended=False):
        self.count += 1
        name = f"pod-{self.count}"
        container = {"name": "c", "image": PROGRAMS, "imagePullPolicy": "Never", "command": [f"/bin/{program}"], "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"restartPolicy": "Never", "hostNetwork": True, "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False, "containers": [container],
                "tolerations": [{"operator": "Exists"}]}
        if extended:
            container["resources"] = {"limits": {"dxpu.dev/gpu": gpus}}
        else:
            devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.dxpu.dev", "count": gpus}}]}
            if same_box:
                devices["constraints"] = [{"requests": ["gpu"], "matchAttribute": "dxpu.dev/box"}]
            self.cluster.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": {"devices": devices}}})
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        return name

    def works(self, name):
        kit.until(self.why(name), lambda: "working" in self.log_of(name), PATIENCE)

    def succeeds(self, name):
        kit.until(self.why(name), lambda: self.phase(name) in ("Succeeded", "Failed"), PATIENCE)
        kit.hold(self.phase(name) == "Succeeded", name, "failed:", self.log_of(name), self.why(name)())

    def delete(self, name, *options):
        self.cluster.kubectl("delete", "pod", name, *options, seconds=PATIENCE)

    def all_returned(self):
        kit.until(lambda: f"leases are returned: {self.leases()}\n{self.logs()}", lambda: not self.leases(), PATIENCE)
        claims = lambda: [claim["metadata"]["name"] for claim in self.cluster.get("resourceclaims")["items"]]
        kit.until(lambda: f"claims go: {claims()}\n{self.logs()}", lambda: not claims(), PATIENCE)
        self.pool.all_free(PATIENCE)
        left = [*self.cluster.cdi_dir.glob("*"), *(self.cluster.run_dir.glob("*") if self.cluster.run_dir.exists() else [])]
        kit.hold(not left, "the plugin has left", left)

    # The parts.

    def one_pod(self):
        name = self.start_pod("devices")
        self.succeeds(name)
        kit.hold("devices 1" in self.log_of(name), self.log_of(name))
        self.delete(name)
        self.all_returned()

    def extended_resource(self):
        name = self.start_pod("devices", extended=True)
        self.succeeds(name)
        kit.hold("devices 1" in self.log_of(name), self.log_of(name))
        self.delete(name)
        self.all_returned()

    def two_gpus(self):
        name = self.start_pod("devices", gpus=2, same_box=True)
        self.succeeds(name)
        kit.hold("devices 2" in self.log_of(name), self.log_of(name))
        self.delete(name)
        self.all_returned()

    def no_gpu_free(self):
        first = self.start_pod("steady", gpus=2)
        self.works(first)
        second = self.start_pod("devices")
        unschedulable = lambda: any(one.get("reason") == "Unschedulable" for one in self.pod(second)["status"].get("conditions", []))
        kit.until(self.why(second), unschedulable, PATIENCE)
        kit.hold(len(self.leases()) == 1, "a pod that cannot be scheduled asks for no GPU:", self.leases())
        self.delete(first)
        self.succeeds(second)
        self.delete(second)
        self.all_returned()

    def not_granted(self):
        """A borrower beside Kubernetes has the GPUs, and the slices do not show it yet: the claim is allocated, and its lease waits."""
        os.kill(self.cluster.processes["controller"].pid, signal.SIGSTOP)
        try:
            name = self.start_pod("devices")
            allocated = lambda: [c for c in self.cluster.get("resourceclaims")["items"] if c.get("status", {}).get("allocation")]
            kit.until(self.why(name), allocated, PATIENCE)
            result = allocated()[0]["status"]["allocation"]["devices"]["results"][0]
            conditions = result.get("bindingConditions", [])
            time.sleep(2)
            bound = self.pod(name)["spec"].get("nodeName")
        finally:
            os.kill(self.cluster.processes["controller"].pid, signal.SIGCONT)
        if conditions:
            kit.hold(not bound, "the pod was bound before its GPU was granted")
        self.succeeds(name)
        self.delete(name)
        self.all_returned()
        return f"binding conditions: {', '.join(conditions) or 'not served; the plugin waited instead'}"

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
        self.delete(name, "--wait=false")
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
        self.delete(name, "--force", "--grace-period=0")
        kit.until(lambda: f"the lease of a node that is gone is returned: {self.leases()}\n{self.logs()}", lambda: not self.leases(), PATIENCE)
        self.cluster.start_kubelet()
        self.start_plugin()
        ready = lambda: any(one["type"] == "Ready" and one["status"] == "True" for one in self.cluster.node_conditions())
        kit.until(lambda: f"the node is back: {self.cluster.log('kubelet')}", ready, PATIENCE)
        left = lambda: [*self.cluster.cdi_dir.glob("*")]
        kit.until(lambda: f"files go: {left()}\n{self.logs()}", lambda: not left(), PATIENCE)
        second = self.start_pod("devices")
        self.succeeds(second)
        self.delete(second)
        self.all_returned()

    def times(self, rounds=10):
        """From the claim's allocation, which the scheduler writes, to the pod's binding, both as a watch shows them."""
        for _ in range(rounds):
            watch = Watch(self.cluster)
            try:
                name = self.start_pod("devices")
                kit.until(self.why(name), lambda: watch.bound(name) is not None, PATIENCE)
                self.seconds.append(watch.bound(name) - watch.allocated())
            finally:
                watch.end()
            self.succeeds(name)
            self.delete(name)
            self.all_returned()
        told = ", ".join(f"{one:.2f}" for one in sorted(self.seconds))
        kit.hold(statistics.median(self.seconds) <= 1.0, "from allocation to binding it took (s)", told)
        return f"median {statistics.median(self.seconds):.2f} s, all: {told}"

    def report(self, path, record):
        lines = [f"- {name}: {version}" for name, version in self.cluster.versions().items()]
        lines += [f"- {record.passed} parts passed, {record.failed} failed", f"- allocation to binding, s: {sorted(round(one, 3) for one in self.seconds)}"]
        pathlib.Path(path).write_text("\n".join(lines) + "\n")


class Watch:
    """Claims and pods as they change, each with the time at which this process saw it."""

    def __init__(self, cluster):
        self.files, self.processes = {}, []
        for kind in ("pods", "resourceclaims"):
            command = [cluster.tool("kubectl"), "--kubeconfig", str(cluster.folder / "admin.conf"), "get", kind, "-w", "-o", "json", "--output-watch-events"]
            stamp = ("import json,sys,time\nbuffer=''\ndecoder=json.JSONDecoder()\n"
                     "for line in sys.stdin:\n buffer+=line\n try:\n  event,end=decoder.raw_decode(buffer.lstrip())\n except ValueError:\n  continue\n"
                     " buffer=''\n print(json.dumps([time.monotonic(),event]),flush=True)\n")
            self.files[kind] = pathlib.Path(kit.scratch) / f"watch-{kind}-{time.monotonic_ns()}"
            watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            with open(self.files[kind], "wb") as out:
                self.processes += [watch, subprocess.Popen([sys.executable, "-u", "-c", stamp], stdin=watch.stdout, stdout=out)]
        time.sleep(1)

    def events(self, kind):
        for line in self.files[kind].read_text().splitlines():
            with contextlib.suppress(ValueError):
                at, event = json.loads(line)
                yield at, event["object"]

    def bound(self, name):
        return next((at for at, pod in self.events("pods") if pod["metadata"]["name"] == name and pod["spec"].get("nodeName") == NODE), None)

    def allocated(self):
        return next(at for at, claim in self.events("resourceclaims") if claim.get("status", {}).get("allocation") and not claim["metadata"].get("deletionTimestamp"))

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
