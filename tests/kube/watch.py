"""Claims and pods as they change, each with the time at which this process heard of it."""
import contextlib
import json
import threading
import time

from api import PLACES
from cluster import NODE


class Watch:
    def __init__(self, cluster):
        self.events = {"Pod": [], "ResourceClaim": []}
        self.streams = []
        for kind, seen in self.events.items():
            # From any state on: with an etcd older than 3.4.31 the server cannot tell whether its newest one is fresh, and ends the watch.
            stream = cluster.api.open(f"{PLACES[kind].format('default')}?watch=true&resourceVersion=0&timeoutSeconds=300", seconds=300)
            self.streams.append(stream)
            threading.Thread(target=self.read, args=(stream, seen), daemon=True).start()

    @staticmethod
    def read(stream, seen):
        # The stream is closed under this thread's hands.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            for line in stream:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    seen.append((time.monotonic(), event["object"]))
                elif event["type"] == "ERROR":
                    print(f"  a watch ended: {event['object']}", flush=True)

    def first(self, kind, holds):
        return next((at for at, one in list(self.events[kind]) if holds(one)), None)

    def bound(self, pod):
        return self.first("Pod", lambda one: one["metadata"]["name"] == pod and one["spec"].get("nodeName") == NODE)

    def running(self, pod):
        """When a container of the pod was first seen to run, or to have run."""
        is_up = lambda one: any({"running", "terminated"} & status.get("state", {}).keys() for status in one["status"].get("containerStatuses", []))
        return self.first("Pod", lambda one: one["metadata"]["name"] == pod and is_up(one))

    def allocated(self, pod):
        return self.first("ResourceClaim", lambda one: is_of(one, pod) and one.get("status", {}).get("allocation"))

    def granted(self, pod):
        def is_granted(one):
            conditions = [condition for device in one.get("status", {}).get("devices", []) for condition in device.get("conditions", [])]
            return is_of(one, pod) and any(condition["type"] == "dxpu.dev/granted" and condition["status"] == "True" for condition in conditions)
        return self.first("ResourceClaim", is_granted)

    def end(self):
        for stream in self.streams:
            with contextlib.suppress(OSError):
                stream.close()


def is_of(claim, pod):
    return any(owner["name"] == pod for owner in claim["metadata"].get("ownerReferences", []))
