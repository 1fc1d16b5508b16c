"""The offline side: does what it is told on standard input, group after group behind the gate, until the stop word is set."""

import json
import sys

import torch
from device import Kernels, SharedWords, now, settle, wait_until_zero, write_value
from model import resnet50

GATE, STOP, DONE = 0, 1, 16
RING = 1 << 20
SWEEP_BYTES = 96 << 20
# Groups that may be queued; the driver's own calls block at about 1,000 operations.
AHEAD = 128


class Offline:
    def __init__(self, path):
        torch.cuda.init()
        self.ring = torch.zeros(2 * RING, dtype=torch.int64, device="cuda")
        self.counter = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.buffer = torch.zeros(SWEEP_BYTES // 4, dtype=torch.int32, device="cuda")
        self.words = SharedWords(path)
        self.words.register()
        self.kernels = Kernels()
        self.stream = torch.cuda.Stream()
        self.blocks = 2 * torch.cuda.get_device_properties(0).multi_processor_count
        self.training = {}

    def gate(self, stream=None):
        wait_until_zero(stream or self.stream.cuda_stream, self.words.pointer(GATE))

    def is_stopped(self):
        return self.words.words[STOP] != 0

    def clear_ring(self):
        ends = self.ring.view(RING, 2)
        ends[:, 0], ends[:, 1] = torch.iinfo(torch.int64).max, 0
        self.counter.zero_()
        torch.cuda.synchronize()

    def groups(self, launch, at, in_group):
        """Kernels in groups of so many, each group behind a wait, until told to stop."""
        words, stream, count = self.words.words, self.stream.cuda_stream, 0
        words[DONE] = 0
        while not self.is_stopped() and count < RING:
            if count % in_group == 0:
                self.gate()
            at.value = count
            launch(stream)
            count += 1
            if count % 16 == 0:
                write_value(stream, self.words.pointer(DONE), count)
                while count - words[DONE] > AHEAD * in_group and not self.is_stopped():
                    pass
        self.stream.synchronize()
        return count

    def spin(self, us, blocks, in_group):
        launch, held = self.kernels.launcher("spin", blocks, 1024, self.ring.data_ptr(), 0, us * 1000)
        return self.groups(launch, held[1], in_group)

    def sweep(self, in_group):
        values = (self.ring.data_ptr(), 0, self.buffer.data_ptr(), SWEEP_BYTES)
        launch, held = self.kernels.launcher("sweep", self.blocks, 1024, *values)
        return self.groups(launch, held[1], in_group)

    def train(self, in_group):
        """Steps of ResNet-50 training, fp32, batch 32; a wait in front of every so many operations of the framework."""
        if in_group not in self.training:
            self.training[in_group] = self.prepare_training(in_group)
        step, kind = self.training[in_group]
        self.kind = kind
        steps = 0
        while not self.is_stopped():
            step()
            self.stream.synchronize()
            steps += 1
        return steps

    def prepare_training(self, in_group):
        from torch.utils._python_dispatch import TorchDispatchMode

        offline = self
        tick, _ = self.kernels.launcher("tick", 1, 1, self.ring.data_ptr(), self.counter.data_ptr(), RING - 1)

        class Gated(TorchDispatchMode):
            seen = 0

            def __torch_dispatch__(self, function, types, arguments=(), options=None):
                stream = torch.cuda.current_stream().cuda_stream
                if self.seen % in_group == 0:
                    offline.gate(stream)
                self.seen += 1
                result = function(*arguments, **(options or {}))
                tick(stream)
                return result

        torch.manual_seed(0)
        model = resnet50().cuda().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        x, y = torch.randn(32, 3, 224, 224, device="cuda"), torch.arange(32, device="cuda")

        def plain():
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        def gated():
            with Gated():
                plain()

        with torch.cuda.stream(self.stream):
            tick(self.stream.cuda_stream)
            settle("tick")
            for _ in range(3):
                plain()
        settle("training without waits")
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                gated()

            def replay():
                with torch.cuda.stream(self.stream):
                    graph.replay()

            # The graph has addresses of these alone, which do not keep them alive.
            replay.kept = (graph, model, optimizer, x, y)
            return replay, "graph"
        except Exception as error:
            print(f"training cannot be captured with waits in it ({error}); it runs eagerly", file=sys.stderr)
            torch.cuda.synchronize()

            def eager():
                with torch.cuda.stream(self.stream):
                    gated()

            return eager, "eager"

    def do(self, order):
        what, self.kind = order["what"], ""
        self.clear_ring()
        began = now()
        in_group = order.get("in_group", 1)
        if what == "tiny":
            count = self.spin(1, 1, in_group)
        elif what == "spin":
            count = self.spin(order["us"], self.blocks, in_group)
        elif what == "sweep":
            count = self.sweep(in_group)
        elif what == "train":
            count = self.train(in_group)
        elif what == "blocked":
            self.gate()
            count = 0
            while not self.is_stopped():
                pass
            self.stream.synchronize()
        else:
            count = 0
            while not self.is_stopped():
                pass
        seconds = (now() - began) / 1e9
        torch.cuda.synchronize()
        used = int(self.counter.item()) if what == "train" else count
        ring = self.ring.view(RING, 2)[: min(used, RING)].cpu().numpy()
        with open(order["file"], "wb") as file:
            file.write(ring.astype("<u8").tobytes())
        return {"count": count, "seconds": seconds, "kind": self.kind}


def main():
    offline = Offline(sys.argv[1])
    # Kernels are compiled and models built before anything is measured.
    offline.words.words[STOP] = 1
    offline.clear_ring()
    stream = offline.stream.cuda_stream
    for name, values in (("spin", (0, 1000)), ("sweep", (0, offline.buffer.data_ptr(), SWEEP_BYTES))):
        run, _ = offline.kernels.launcher(name, offline.blocks, 1024, offline.ring.data_ptr(), *values)
        run(stream)
        settle(name)
    offline.gate()
    write_value(stream, offline.words.pointer(DONE), 1)
    settle("a wait for an open gate, and a write")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(offline.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
