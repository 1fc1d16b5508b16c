"""The pool, the cluster, our two parts between them, and pods."""
import json
import pathlib
import subprocess
import sys

import kit
from cluster import PROGRAMS
from watch import is_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Longer than anything here takes on a busy machine.
PATIENCE = 120


def render(*settings):
    """The chart's own manifests."""
    words = [word for setting in settings for word in ("--set", setting)]
    return subprocess.run([sys.executable, ROOT / "deploy/kube/render", *words], capture_output=True, text=True, check=True).stdout


class World:
    def __init__(self, pool, cluster):
        self.pool, self.cluster, self.count = pool, cluster, 0
        self.borrower, self.viewer = pool.file("kube.json"), pool.file("kube-viewer.json")
        for identity, path in (("tenant/kube/cluster", self.borrower), ("viewer/kube", self.viewer)):
            kit.hold(pool.token(identity, path), pool.last.stderr)

    # Our two parts, as the chart starts them.

    def install(self):
        self.cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dxpu"}})
        self.cluster.api.apply(render())
        # The same programs run as processes here, so that they can be killed and stopped; `in_pods` runs the chart's own pods.
        self.uninstall_pods()
        self.accounts = {name: self.cluster.account(name) for name in ("dxpu-controller", "dxpu-node")}
        self.start_controller()
        self.start_plugin()
        self.published(2)
        # Pods are refused until the controller manager has made the namespace's account.
        kit.until("there is a default account", lambda: self.cluster.api.find("ServiceAccount", "default"), PATIENCE)
        return ", ".join(sorted(self.devices()))

    def uninstall_pods(self):
        for kind, name in (("Deployment", "dxpu-controller"), ("DaemonSet", "dxpu-node")):
            self.cluster.api.delete(kind, name, "dxpu", propagationPolicy="Background")

    def published(self, count):
        kit.until(lambda: f"slices: {self.logs()}", lambda: len(self.devices()) == count, PATIENCE)

    def start_controller(self, *options):
        self.cluster.start("controller", kit.dxpu, "kube", "controller", "--credential", self.borrower, "--viewer", self.viewer,
                           "--namespace", "dxpu", "--kubeconfig", self.accounts["dxpu-controller"], *options, environment=self.pool.environment)

    def stop_controller(self):
        """As Kubernetes stops it: it hands its leadership over."""
        process = self.cluster.processes["controller"]
        process.terminate()
        kit.hold(process.wait(20) == 0, "the controller ended with", process.returncode)

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
            self.cluster.api.delete("Pod", pod, gracePeriodSeconds=0)

    # What is there.

    def devices(self):
        slices = self.cluster.api.list("ResourceSlice")
        return {device["name"]: device for one in slices if one["spec"]["driver"] == "dxpu.dev" for device in one["spec"].get("devices", [])}

    def pods(self):
        return [pod["metadata"]["name"] for pod in self.cluster.api.list("Pod")]

    def pod(self, name):
        found = self.cluster.api.find("Pod", name)
        kit.hold(found, f"there is no {name}")
        return found

    def claim_of(self, name):
        return next((claim for claim in self.cluster.api.list("ResourceClaim") if is_of(claim, name)), {})

    def gpus_of(self, name):
        """The GPUs that the scheduler has allocated to a pod, as the pool calls them."""
        results = self.claim_of(name).get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        return ["/".join(one["device"].rsplit("-", 1)) for one in results]

    def why(self, name):
        def told():
            events = [f"{one['reason']}: {one.get('message', '')}" for one in self.cluster.api.list("Event") if one["involvedObject"]["name"] == name]
            status = (self.cluster.api.find("Pod", name) or {}).get("status")
            claims = [one.get("status") for one in self.cluster.api.list("ResourceClaim")]
            return "\n".join([name, *events[-15:], json.dumps(status)[:1500], json.dumps(claims)[:2000], self.logs()])
        return told

    def phase(self, name):
        return self.pod(name)["status"].get("phase")

    def log_of(self, name):
        """What the pod's program wrote: the kubelet's own server is not asked, since nothing here signs its certificate."""
        found = list((self.cluster.folder / "pod-logs").glob(f"default_{name}_*/*/*.log"))
        return "\n".join(path.read_text() for path in found)

    def leases(self):
        return [lease for lease in self.pool.live_leases() if lease["tenant"] == "kube"]

    # Pods.

    def start_pod(self, program="steady", gpus=1, same_box=False, extended="", config=None):
        self.count += 1
        name = f"pod-{self.count}"
        container = {"name": "c", "image": PROGRAMS, "imagePullPolicy": "Never", "command": [f"/bin/{program}"], "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"restartPolicy": "Never", "hostNetwork": True, "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False, "containers": [container],
                "tolerations": [{"operator": "Exists"}]}
        if extended:
            container["resources"] = {"limits": {extended: gpus}}
        else:
            devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.dxpu.dev", "count": gpus}}]}
            if same_box:
                devices["constraints"] = [{"requests": ["gpu"], "matchAttribute": "dxpu.dev/box"}]
            if config:
                parameters = {"apiVersion": "dxpu.dev/v1", "kind": "GpuConfig"} | config
                devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": "dxpu.dev", "parameters": parameters}}]
            self.cluster.api.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": {"devices": devices}}})
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
        self.cluster.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        return name

    def unschedulable(self, name):
        is_so = lambda: any(one.get("reason") == "Unschedulable" for one in self.pod(name)["status"].get("conditions", []))
        kit.until(self.why(name), is_so, PATIENCE)

    def runs(self, name):
        kit.until(self.why(name), lambda: self.phase(name) == "Running", PATIENCE)

    def works(self, name):
        kit.until(self.why(name), lambda: "working" in self.log_of(name), PATIENCE)

    def succeeds(self, name):
        kit.until(self.why(name), lambda: self.phase(name) in ("Succeeded", "Failed"), PATIENCE)
        kit.hold(self.phase(name) == "Succeeded", name, "failed:", self.log_of(name), self.why(name)())

    def delete(self, name, wait=True, **options):
        self.cluster.api.delete("Pod", name, **options)
        if wait:
            kit.until(self.why(name), lambda: name not in self.pods(), PATIENCE)

    def all_returned(self):
        kit.until(lambda: f"leases are returned: {self.leases()}\n{self.logs()}", lambda: not self.leases(), PATIENCE)
        claims = lambda: [claim["metadata"]["name"] for claim in self.cluster.api.list("ResourceClaim")]
        kit.until(lambda: f"claims go: {claims()}\n{self.logs()}", lambda: not claims(), PATIENCE)
        self.pool.all_free(PATIENCE)
        left = [*self.cluster.cdi_dir.glob("*"), *(self.cluster.run_dir.glob("*") if self.cluster.run_dir.exists() else [])]
        kit.hold(not left, "the plugin has left", left)
