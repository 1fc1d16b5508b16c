"""Every check that compares a native and a remote process: its file, its time limit, and how it must be run."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Check:
    name: str
    # Seconds for one run.
    limit: float = 150
    # Remote ways besides native.
    modes: tuple = ("tcp",)
    # It measures time or fills the memory: nothing else may run beside it.
    is_alone: bool = False
    # Its last error may end the process badly, natively too: then it must end the same way.
    may_end_badly: bool = False
    environment: dict = dataclasses.field(default_factory=dict)
    file: str = ""

    @property
    def path(self):
        return f"checks/{self.file or self.name}.py"


# JAX would take three quarters of the memory for itself and choose algorithms by timing them.
_JAX = {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"}
_BOTH = ("tcp", "shm")

CHECKS = [
    Check("torch_compile", limit=280),
    Check("jax_ops", limit=240, environment=_JAX | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    Check("triton_kernels", limit=200),
    Check("torch_eager"),
    Check("torch_autograd"),
    Check("torch_graphs"),
    Check("torch_amp"),
    Check("torch_loader"),
    Check("torch_multiprocessing", modes=_BOTH),
    Check("torch_segments", environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    Check("torch_cudnn", environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
    Check("torch_attention"),
    Check("torch_blas"),
    Check("torch_libraries"),
    Check("torch_nvrtc"),
    Check("torch_green"),
    Check("torch_profiler"),
    Check("torch_assert", may_end_badly=True),
    Check("cupy_ops", limit=200),
    Check("cupy_kernels", limit=200),
    Check("workload_resnet", modes=_BOTH),
    Check("workload_bert", modes=_BOTH),
    Check("workload_gpt2", modes=_BOTH),
    Check("workload_mlp", modes=_BOTH),
    Check("stress", modes=_BOTH),
    Check("torch_streams", is_alone=True),
    Check("torch_memory", is_alone=True),
    Check("pools", modes=_BOTH, is_alone=True),
    # As an unmodified program runs: with its own ideas of memory and algorithms.
    Check("jax_default", limit=240, is_alone=True, file="jax_ops"),
]
