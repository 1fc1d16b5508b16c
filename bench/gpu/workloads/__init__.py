"""All workloads, in the order of the report. Knows no framework: only the process that runs a workload imports one."""

import dataclasses
import importlib


@dataclasses.dataclass(frozen=True)
class Workload:
    """How a workload is found, run and timed."""

    name: str
    title: str
    # Module and function that prepares it.
    source: str
    # So many steps are issued before one synchronise; a sample is their mean.
    block: int = 1
    # Each step ends with its results in the program's hands: it is timed alone, and no synchronise is added.
    waits_itself: bool = False
    # How long one repetition lasts, at least.
    seconds: float = 0.6
    warm_up_steps: int = 5
    # Of a copy: the rate is shown too.
    bytes_moved: int = 0

    def prepare(self, where):
        module, function = self.source.split(":")
        return getattr(importlib.import_module(f".{module}", __name__), function)(where)


COPY_BYTES = 256 << 20

_ALL = [
    Workload(
        "kernel_sync", "kernel + synchronize", "small:kernel_and_synchronize", waits_itself=True, seconds=0.3, warm_up_steps=50
    ),
    Workload("item", "`(x+1).item()`", "small:item", waits_itself=True, seconds=0.3, warm_up_steps=50),
    Workload("mlp_train", "16-layer MLP training, tiny kernels", "small:mlp_training", block=20, warm_up_steps=20),
    Workload("bert_infer", "BERT-base inference, 1 x 128", "language:bert_inference", block=10),
    Workload("bert_train", "BERT-base training, 8 x 128", "language:bert_training", block=5, seconds=0.8),
    Workload("resnet_infer_1", "ResNet-50 inference, batch 1", "resnet:inference", block=10),
    Workload(
        "resnet_infer_64_host",
        "ResNet-50 inference, batch 64, input and output on the host",
        "resnet:inference_from_the_host",
        waits_itself=True,
    ),
    Workload("resnet_train_32", "ResNet-50 training, batch 32", "resnet:training_32", block=5, seconds=0.8),
    Workload("resnet_train_128", "ResNet-50 training, batch 128", "resnet:training_128", block=5, seconds=0.8),
    Workload(
        "resnet_infer_graph", "ResNet-50 inference, batch 1, as a CUDA graph", "resnet:inference_graph", block=20, seconds=0.4
    ),
    Workload("resnet_train_graph", "ResNet-50 training, batch 32, as a CUDA graph", "resnet:training_graph", block=5),
    Workload(
        "ssd_train", "SSDlite320 training as in torchvision, batch 8", "detection:ssd_training", block=2, seconds=0.8
    ),
    Workload(
        "ssd_matched_train",
        "SSDlite320 training, batch 128, short kernels",
        "detection:ssd_matched_training",
        block=2,
        seconds=0.8,
    ),
    Workload("bert_train_32", "BERT-base training, 32 x 128", "language:bert_training_32", block=2, seconds=0.8),
    Workload("encoder_train", "BERT-size encoder training, 16 x 512, bf16", "language:encoder_training", block=5, seconds=1.5),
    Workload("pool_blocks", "1,000 blocks of a pool and back", "small:pool_blocks", seconds=0.3),
    Workload("driver_calls", "2,000 calls of the driver that do nothing", "small:driver_calls", seconds=0.3),
    Workload("gpt2", "GPT-2, 64 tokens greedy", "language:gpt2_decoding", waits_itself=True, seconds=1.2, warm_up_steps=1),
    Workload("matmul", "bf16 product of 8192 x 8192 matrices", "small:matmul", block=10, seconds=0.4),
    *(
        Workload(
            f"{direction}_{kind}",
            f"{way} 256 MiB, {kind}",
            f"copies:{direction}_{kind}",
            waits_itself=True,
            seconds=0.5,
            warm_up_steps=2,
            bytes_moved=COPY_BYTES,
        )
        for direction, way in (("h2d", "host to device"), ("d2h", "device to host"))
        for kind in ("pinned", "pageable")
    ),
]
WORKLOADS = {workload.name: workload for workload in _ALL}
# What `bench/gpu/run` measures unless told otherwise; the others are for `bench/gpu/distance`, and to compare allocators.
DISTANCE_ONLY = ["ssd_train", "ssd_matched_train", "bert_train_32"]
ALLOCATORS_ONLY = ["encoder_train", "pool_blocks", "driver_calls"]
STANDARD = [name for name in WORKLOADS if name not in DISTANCE_ONLY + ALLOCATORS_ONLY]

# What counts in the geometric means: whole steps of programs, each kind once (a graph of inference, not one of training too).
STEPS = [
    "mlp_train",
    "bert_infer",
    "bert_train",
    "resnet_infer_1",
    "resnet_infer_64_host",
    "resnet_train_32",
    "resnet_train_128",
    "resnet_infer_graph",
    "gpt2",
    "matmul",
]
