"""JAX: XLA loads its own modules, captures CUDA graphs for sequences of operations, and calls cuBLAS, cuDNN, cuFFT and cuSOLVER."""

import jax
import jax.numpy as jnp
from say import attempts, near, note, same


def devices():
    note("devices", jax.devices())
    same("platform", jax.default_backend())
    same("count", jax.device_count())
    same("kind", jax.devices()[0].device_kind)


def compiled_functions():
    function = jax.jit(lambda x: jnp.sin(x) * 2 + jnp.where(x > 0, x, -(x**2)))
    return [function(jnp.linspace(-3, 3, n)) for n in (10, 1000, 100003)]


def whole_numbers():
    x = jnp.arange(100000, dtype=jnp.int32)
    return [
        jnp.cumsum(x % 7),
        jnp.sort((x * 7919) % 10007),
        jnp.bincount(x % 31, length=31),
        x.reshape(100, -1).sum(0),
        jnp.argmax(x % 999),
    ]


def gradients():
    def loss(parameters, x):
        w, b = parameters
        return jnp.mean(jnp.tanh(x @ w + b) ** 2)

    key = jax.random.key(0)
    parameters = jax.random.normal(key, (64, 32)), jnp.zeros(32)
    x = jax.random.normal(jax.random.key(1), (128, 64))
    step = jax.jit(jax.value_and_grad(loss))
    for n in range(5):
        value, gradient = step(parameters, x)
        parameters = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)
        near(f"loss-{n}", value, 1e-3)


def mapped():
    function = jax.vmap(jax.vmap(lambda a, b: jnp.dot(a, b), (None, 0)), (0, None))
    a = jax.random.normal(jax.random.key(2), (30, 16))
    near("vmap", jnp.linalg.norm(function(a, a)), 1e-4)
    return jax.vmap(lambda n: n * n)(jnp.arange(50))


def products():
    a = jax.random.normal(jax.random.key(3), (512, 512))
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        near(f"matmul-{dtype.__name__}", jnp.linalg.norm((a.astype(dtype) @ a.astype(dtype)).astype(jnp.float32)), 1e-2)


def convolution():
    x = jax.random.normal(jax.random.key(4), (4, 3, 32, 32))
    w = jax.random.normal(jax.random.key(5), (8, 3, 3, 3))
    near("conv", jnp.linalg.norm(jax.lax.conv(x, w, (1, 1), "SAME")), 1e-2)


def fourier():
    x = jax.random.normal(jax.random.key(6), (8, 1024))
    near("fft", jnp.linalg.norm(jnp.fft.fft(x)), 1e-4)
    near("rfft2", jnp.linalg.norm(jnp.fft.rfft2(x)), 1e-4)


def linear_algebra():
    a = jax.random.normal(jax.random.key(7), (60, 60))
    positive = a @ a.T + 60 * jnp.eye(60)
    near("cholesky", jnp.linalg.norm(jnp.linalg.cholesky(positive)), 1e-3)
    near("eigh", jnp.linalg.eigh(positive)[0][30], 1e-3)
    near("svd", jnp.linalg.svd(a, compute_uv=False)[0], 1e-3)
    near("solve", jnp.linalg.norm(jnp.linalg.solve(positive, a)), 1e-3)
    near("qr", jnp.abs(jnp.linalg.qr(a)[1][0, 0]), 1e-3)


def random_numbers():
    keys = jax.random.split(jax.random.key(8), 4)
    return [
        jax.random.uniform(keys[0], (1000,)),
        jax.random.randint(keys[1], (1000,), 0, 99),
        jax.random.permutation(keys[2], 500),
        jax.random.bits(keys[3], (77,)),
    ]


def loops():
    def body(carry, x):
        return carry * 0.9 + x, carry

    last, all_of_them = jax.lax.scan(body, jnp.float32(0), jnp.arange(100, dtype=jnp.float32))
    count = jax.lax.while_loop(lambda state: state[0] < 50, lambda state: (state[0] + 1, state[1] * 2 % 1013), (0, 3))
    found = [last, all_of_them, *count]
    found.append(jax.lax.fori_loop(0, 200, lambda n, x: (x * 5 + n) % 4099, jnp.arange(64)))
    return [*found, jax.lax.cond(last > 1, lambda: jnp.ones(3), lambda: jnp.zeros(3))]


def host_callbacks():
    import numpy

    def double(x):
        return numpy.asarray(x) * 2

    shape = jax.ShapeDtypeStruct((5,), jnp.float32)
    return jax.jit(lambda x: jax.pure_callback(double, shape, x) + 1)(jnp.arange(5.0))


def memory():
    """Arrays come and go: XLA's allocator, donated buffers, copies to the host and back."""
    x = jnp.ones((1 << 24,), jnp.float32)
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(20):
        x = step(x)
    import numpy

    back = numpy.asarray(x)
    same("after-20", float(back.sum()))
    again = jax.device_put(back)
    return [again[:10], jnp.asarray(back[::1000])]


attempts(
    devices,
    compiled_functions,
    whole_numbers,
    gradients,
    mapped,
    products,
    convolution,
    fourier,
    linear_algebra,
    random_numbers,
    loops,
    host_callbacks,
    memory,
)
