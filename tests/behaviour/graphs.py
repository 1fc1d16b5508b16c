"""What a CUDA driver answers about graphs and stream capture, as text: one line per question.

Run it on NVIDIA's driver and through dxpu, and compare. It uses nothing but ctypes and libcuda.so.1. Nodes are shown by
the letter they were given, never by their handle. Codes are CUresult; a capture's status is 0 none, 1 active, 2 invalidated.
"""
import ctypes as c
import os
import struct
import tempfile
import threading

cuda = c.CDLL("libcuda.so.1")

PTX = rb"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 target, .param .u32 value)
{
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [target];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %rd1, %rd1;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry nothing(.param .u64 target) { ret; }
""" + b"\0"

CAPTURE_GLOBAL, CAPTURE_LOCAL, CAPTURE_RELAXED = 0, 1, 2
NON_BLOCKING, BLOCKING = 1, 0
EXTERNAL = 1


def word(value):
    if value is None or isinstance(value, bytes):
        return c.c_char_p(value)
    return c.c_uint64(value & (2**64 - 1)) if isinstance(value, int) else value


def call(name, *arguments):
    return getattr(cuda, name)(*[word(argument) for argument in arguments])


def made(name, *arguments):
    """Calls what returns its result through the first argument."""
    place = c.c_uint64(0)
    code = call(name, c.byref(place), *arguments)
    return place.value if code == 0 else -code


def ok(code):
    assert code == 0, f"unexpected error {code}"


def show(label, *answers):
    print(label, "->", *answers, flush=True)


def section(name):
    print(f"\n[{name}]", flush=True)


def array(values):
    return (c.c_uint64 * max(1, len(values)))(*values)


def elsewhere(body):
    """Runs `body` on another thread, in the same context."""
    answers = []

    def run():
        ok(call("cuCtxSetCurrent", CONTEXT))
        answers.append(body())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]


ok(call("cuInit", 0))
CONTEXT = made("cuDevicePrimaryCtxRetain", 0)
ok(call("cuCtxSetCurrent", CONTEXT))
MODULE = made("cuModuleLoadData", PTX)
STORE = made("cuModuleGetFunction", MODULE, b"store")
NOTHING = made("cuModuleGetFunction", MODULE, b"nothing")
DEVICE = made("cuMemAlloc_v2", 1 << 16)
PINNED = made("cuMemHostAlloc", 1 << 16, 0)


def stream(flags=NON_BLOCKING):
    return made("cuStreamCreate", flags)


def event():
    return made("cuEventCreate", 2)


def launch(where, value=7):
    target, number = c.c_uint64(DEVICE), c.c_uint32(value)
    pointers = (c.c_void_p * 2)(c.addressof(target), c.addressof(number))
    return call("cuLaunchKernel", STORE, 1, 1, 1, 1, 1, 1, 0, where, pointers, None)


def begin(where, mode=CAPTURE_GLOBAL):
    return call("cuStreamBeginCapture_v2", where, mode)


def end(where):
    """The code, and whether there is a graph."""
    graph = c.c_uint64(1)
    code = call("cuStreamEndCapture", where, c.byref(graph))
    end.graph = graph.value
    return code, graph.value != 0


def status(where):
    answer = c.c_uint32(9)
    code = call("cuStreamIsCapturing", where, c.byref(answer))
    return answer.value if code == 0 else f"error {code}"


def frontier(where):
    """Code, graph and how many nodes the next one will depend on."""
    state, graph, nodes, count = c.c_uint32(), c.c_uint64(), c.c_uint64(), c.c_size_t()
    code = call("cuStreamGetCaptureInfo_v2", where, c.byref(state), None, c.byref(graph), c.byref(nodes), c.byref(count))
    frontier.graph = graph.value
    frontier.nodes = [c.c_uint64.from_address(nodes.value + 8 * i).value for i in range(count.value)] if code == 0 else []
    return code, count.value


def record(what, where, flags=0):
    return call("cuEventRecordWithFlags", what, where, flags)


def wait(where, what, flags=0):
    return call("cuStreamWaitEvent", where, what, flags)


section("begin and end")
s, t, u, b = stream(), stream(), stream(), stream(BLOCKING)
e, f = event(), event()
show("end without begin", *end(s))
show("begin on the legacy stream", begin(0))
show("begin on the thread's stream", begin(2), *end(2))
show("begin in no mode", begin(s, 3))
show("begin, begin again, status", begin(s), begin(s), status(s))
show("end", *end(s))
for mode in (CAPTURE_GLOBAL, CAPTURE_LOCAL, CAPTURE_RELAXED):
    ok(begin(s, mode))
    show("end on another thread", mode, *elsewhere(lambda: end(s)), status(s))

section("forks and joins")
for label, steps in [
    ("a fork without work", ""),
    ("a fork with work", "T"),
    ("joined", "Tj"),
    ("work after the join", "TjT"),
    ("joined twice", "TjTj"),
    ("the fork's work dropped", "Td"),
    ("the origin's dependencies dropped", "TjD"),
]:
    ok(begin(s))
    ok(launch(s))
    ok(record(e, s))
    ok(wait(t, e))
    for step in steps:
        if step == "T":
            ok(launch(t))
        elif step == "j":
            ok(record(f, t))
            ok(wait(s, f))
        else:
            dropped = t if step == "d" else s
            ok(call("cuStreamUpdateCaptureDependencies_v2", dropped, None, None, 0, 1))
    show(label, "frontier", *frontier(s), "end", *end(s), "status", status(s), status(t))
ok(begin(s)), ok(record(e, s)), ok(wait(t, e))
show("end on the fork", *end(t), status(s), status(t), *end(s))
ok(begin(s)), ok(begin(t)), ok(record(e, s))
show("merge", wait(t, e), status(s), status(t), *end(s), *end(t))
ok(begin(s)), ok(record(e, s))
show("the legacy stream joins", wait(0, e), status(s), *end(s))

section("events")
ok(begin(s)), ok(record(e, s))
show("query a captured event", call("cuEventQuery", e), status(s), *end(s))
show("query it after the end", call("cuEventQuery", e), "wait", wait(t, e))
show("record it again", record(e, t), call("cuEventSynchronize", e), call("cuEventQuery", e))
ok(begin(s))
show("wait for an event never recorded", wait(s, event()), status(s))
show("wait for one recorded outside", wait(s, e), status(s), *end(s))
show("external outside", record(e, t, EXTERNAL), wait(t, e, EXTERNAL), "no such flag", record(e, t, 2), wait(t, e, 2))
ok(begin(s))
show("external inside", record(e, s, EXTERNAL), wait(s, e, EXTERNAL), status(s), *end(s))

section("the legacy stream")
for kind in (NON_BLOCKING, BLOCKING):
    captured = b if kind == BLOCKING else s
    for label, use in [
        ("fill", lambda: call("cuMemsetD8Async", DEVICE, 0, 16, 0)),
        ("copy", lambda: call("cuMemcpyDtoD_v2", DEVICE, DEVICE + 64, 16)),
        ("launch", lambda: launch(0)),
        ("ask", lambda: status(0)),
    ]:
        ok(begin(captured))
        show(label, "kind", kind, use(), status(captured), *end(captured))

section("unsafe calls")
unsafe = {
    "cuMemAlloc": lambda: min(0, made("cuMemAlloc_v2", 256)),
    "cuMemHostAlloc": lambda: min(0, made("cuMemHostAlloc", 256, 0)),
    "cuStreamQuery": lambda: call("cuStreamQuery", t),
    "cuEventQuery": lambda: call("cuEventQuery", e),
    "cuCtxSynchronize": lambda: call("cuCtxSynchronize"),
    "cuStreamSynchronize": lambda: call("cuStreamSynchronize", s),
    "cuStreamCreate": lambda: min(0, stream()),
    "cuModuleLoadData": lambda: min(0, made("cuModuleLoadData", PTX)),
    "cuCtxSetLimit": lambda: call("cuCtxSetLimit", 1, 1 << 20),
}
for name, body in unsafe.items():
    for mode in (CAPTURE_GLOBAL, CAPTURE_LOCAL, CAPTURE_RELAXED):
        answers = []
        for run in (lambda body: body(), elsewhere):
            ok(call("cuStreamSynchronize", t)), ok(record(e, t)), ok(call("cuStreamSynchronize", t))
            ok(begin(s, mode)), ok(launch(s))
            answers += [run(body), status(s)]
            end(s)
        show(name, "mode", mode, "here", *answers[:2], "elsewhere", *answers[2:])


def nodes(graph):
    count = c.c_size_t()
    ok(call("cuGraphGetNodes", graph, None, c.byref(count)))
    all_nodes = array([0] * count.value)
    ok(call("cuGraphGetNodes", graph, all_nodes, c.byref(count)))
    return list(all_nodes)[: count.value]


def kind(node):
    answer = c.c_uint32()
    ok(call("cuGraphNodeGetType", node, c.byref(answer)))
    return answer.value


class Drawing:
    """A graph of empty nodes, named by letters: "a b:a" is two nodes, the second behind the first."""

    def __init__(self, text=""):
        self.graph = made("cuGraphCreate", 0)
        self.names = {}
        for item in text.split():
            name, _, before = item.partition(":")
            self.add(name, before)

    def add(self, name, before=""):
        behind = array([self[letter] for letter in before])
        node = made("cuGraphAddEmptyNode", self.graph, behind, len(before))
        if node > 0:
            self.names[node] = name
        return min(0, node)

    def __getitem__(self, name):
        return next(node for node, known in self.names.items() if known == name)

    def edge(self, verb, *pairs):
        ends = [array([self[pair[i]] for pair in pairs]) for i in (0, 1)]
        return call(f"cuGraph{verb}Dependencies", self.graph, *ends, len(pairs))

    def letters(self, values):
        return "".join(self.names.get(value, "?") for value in values)

    def roots(self):
        count = c.c_size_t(len(self.names))
        found = array([0] * len(self.names))
        ok(call("cuGraphGetRootNodes", self.graph, found, c.byref(count)))
        return self.letters(list(found)[: count.value])

    def edges(self):
        count = c.c_size_t(64)
        upstream, downstream = array([0] * 64), array([0] * 64)
        ok(call("cuGraphGetEdges", self.graph, upstream, downstream, c.byref(count)))
        return " ".join(self.letters(pair) for pair in list(zip(upstream, downstream))[: count.value])

    def instantiate(self, flags=0):
        return made("cuGraphInstantiateWithFlags", self.graph, flags)


section("nodes and edges")
drawing = Drawing("a b:a c:a d:cb e")
show("nodes", drawing.letters(nodes(drawing.graph)), "roots", drawing.roots(), "edges", drawing.edges())
show("the same edge", drawing.edge("Add", "ab"), "to itself", drawing.edge("Add", "aa"), "none", drawing.edge("Remove", "ba"))
show("a circle", drawing.edge("Add", "da"), "instantiate", drawing.instantiate(), "open it", drawing.edge("Remove", "da"))
show("a good and a bad edge", drawing.edge("Add", "ed", "ab"), drawing.edges())
show("a dependency twice", drawing.add("f", "aa"))
roots = Drawing("a b c d e")
for verb, edge in (("Add", "ab"), ("Remove", "ab")):
    ok(roots.edge(verb, edge))
    show("roots after", verb, edge, roots.roots())
ok(call("cuGraphDestroyNode", roots["c"]))
show("roots without c", roots.roots())
clone = made("cuGraphClone", drawing.graph)
show("a node in the clone", made("cuGraphNodeFindInClone", drawing["a"], clone) > 0,
     "in itself", made("cuGraphNodeFindInClone", drawing["a"], drawing.graph),
     "in a clone of the clone", made("cuGraphNodeFindInClone", drawing["a"], made("cuGraphClone", clone)))
show("destroy nothing", call("cuGraphDestroy", 0), "create with flags", made("cuGraphCreate", 1))

section("updates")
for old, new in [("a b:a", "a"), ("a b", "a b:a"), ("a b:a", "a b"), ("a b:a c:b", "a b:a c:a"),
                 ("a b:a c:a d:bc", "a b:a c:a d:cb"), ("a b c:ab d:ab", "a b c:ab d:ba"), ("a b c:a d:b", "a b c:a d:a")]:
    exec_, other = Drawing(old).instantiate(), Drawing(new)
    other.names[0] = "-"
    info = (c.c_uint64 * 3)()
    code = call("cuGraphExecUpdate_v2", exec_, other.graph, info)
    show(f"{old} => {new}", code, info[0] & 0xffffffff, other.letters(info[1:3]))


def memset(dst, pitch, value, element, width, height):
    return (c.c_uint8 * 40)(*struct.pack("<QQIIQQ", dst, pitch, value, element, width, height))


def kernel(function, *arguments, grid=1):
    values = [c.c_uint64(argument) for argument in arguments]
    pointers = (c.c_void_p * max(1, len(values)))(*[c.addressof(value) for value in values])
    block = (c.c_uint8 * 72)(*struct.pack("<Q7I4xQQQQ", function, grid, 1, 1, 1, 1, 1, 0, c.addressof(pointers), 0, 0, 0))
    block.keep = values, pointers
    return block


section("parameters")
graph = made("cuGraphCreate", 0)
show("no function", made("cuGraphAddKernelNode_v2", graph, None, 0, kernel(0)))
show("no blocks", made("cuGraphAddKernelNode_v2", graph, None, 0, kernel(STORE, DEVICE, 1, grid=0)))
for fill in [(0, 5, 1, 16, 1), (0, 5, 3, 16, 1), (0, 5, 4, 0, 1), (0, 5, 4, 4, 0), (4, 5, 4, 16, 2), (64, 5, 4, 16, 2)]:
    show("memset", *fill, min(0, made("cuGraphAddMemsetNode", graph, None, 0, memset(DEVICE, *fill), CONTEXT)))
k = made("cuGraphAddKernelNode_v2", graph, None, 0, kernel(STORE, DEVICE, 1))
for attribute in range(1, 16):
    value = (c.c_uint64 * 8)()
    show("attribute", attribute, call("cuGraphKernelNodeGetAttribute", k, attribute, value), value[0])

section("executable graphs")
graph = made("cuGraphCreate", 0)
k = made("cuGraphAddKernelNode_v2", graph, None, 0, kernel(STORE, DEVICE, 7))
m = made("cuGraphAddMemsetNode", graph, array([k]), 1, memset(DEVICE + 4, 0, 0xAB, 1, 4, 1), CONTEXT)
n = made("cuGraphAddEmptyNode", graph, array([m]), 1)
exec_ = made("cuGraphInstantiateWithFlags", graph, 0)


def run():
    """Launches and shows the first two words."""
    ok(call("cuMemsetD8_v2", DEVICE, 0, 8))
    ok(call("cuCtxSynchronize"))  # the graph runs in a stream that does not wait for the legacy one
    code = call("cuGraphLaunch", exec_, s)
    ok(call("cuStreamSynchronize", s))
    words = (c.c_uint32 * 2)()
    ok(call("cuMemcpyDtoH_v2", words, DEVICE, 8))
    return code, *[hex(value) for value in words]


show("flags that do not exist", made("cuGraphInstantiateWithFlags", graph, 16))
show("launch", *run())
show("set a parameter", call("cuGraphExecKernelNodeSetParams_v2", exec_, k, kernel(STORE, DEVICE, 9)), *run())
show("another function", call("cuGraphExecKernelNodeSetParams_v2", exec_, k, kernel(NOTHING, DEVICE)), *run())
show("not a kernel", call("cuGraphExecKernelNodeSetParams_v2", exec_, m, kernel(STORE, DEVICE, 9)))
show("switch off", call("cuGraphNodeSetEnabled", exec_, m, 0), *run())
show("switch on", call("cuGraphNodeSetEnabled", exec_, m, 5), *run())
show("switch an empty node", call("cuGraphNodeSetEnabled", exec_, n, 0))
show("a longer line", call("cuGraphExecMemsetNodeSetParams", exec_, m, memset(DEVICE + 4, 0, 1, 2, 2, 1), CONTEXT), *run())
show("two lines", call("cuGraphExecMemsetNodeSetParams", exec_, m, memset(DEVICE + 4, 64, 1, 2, 2, 2), CONTEXT))
ok(begin(s))
show("launch in a capture", call("cuGraphLaunch", exec_, s), status(s), *end(s))
show("nothing", call("cuGraphLaunch", 0, s), call("cuGraphExecDestroy", 0))

section("child graphs")
parent = made("cuGraphCreate", 0)
node = made("cuGraphAddChildGraphNode", parent, None, 0, graph)
embedded = c.c_uint64()
ok(call("cuGraphChildGraphNodeGetGraph", node, c.byref(embedded)))
show("another graph", embedded.value != graph, len(nodes(embedded.value)))
show("destroy it", call("cuGraphDestroy", embedded.value), "instantiate it", made("cuGraphInstantiateWithFlags", embedded.value, 0))
exec_ = made("cuGraphInstantiateWithFlags", parent, 0)
show("launch", *run())
show("set an inner node", call("cuGraphExecKernelNodeSetParams_v2", exec_, nodes(embedded.value)[0], kernel(STORE, DEVICE, 3)), *run())
show("a child of another shape", call("cuGraphExecChildGraphNodeSetParams", exec_, node, made("cuGraphCreate", 0)))

section("memory of graphs")


def alloc_params(size):
    return (c.c_uint8 * 120)(*struct.pack("<IIII72xQQQQ", 1, 0, 1, 0, 0, 0, size, 0))


graph = made("cuGraphCreate", 0)
params = alloc_params(4096)
node = made("cuGraphAddMemAllocNode", graph, None, 0, params)
address = struct.unpack_from("<Q", bytes(params), 112)[0]
show("nothing", made("cuGraphAddMemAllocNode", graph, None, 0, alloc_params(0)))
show("clone", made("cuGraphClone", graph), "destroy the node", call("cuGraphDestroyNode", node))
exec_ = made("cuGraphInstantiateWithFlags", graph, 0)
show("instantiate again", made("cuGraphInstantiateWithFlags", graph, 0))
show("launch", call("cuGraphLaunch", exec_, s), "launch again", call("cuGraphLaunch", exec_, s))
show("free", call("cuMemFreeAsync", address, s), "free again", call("cuMemFreeAsync", address, s), "launch", call("cuGraphLaunch", exec_, s))
show("destroy and instantiate", call("cuGraphExecDestroy", exec_), min(0, made("cuGraphInstantiateWithFlags", graph, 0)))
ok(call("cuStreamSynchronize", s)), ok(call("cuMemFree_v2", address))
graph = made("cuGraphCreate", 0)
params = alloc_params(4096)
node = made("cuGraphAddMemAllocNode", graph, None, 0, params)
address = struct.unpack_from("<Q", bytes(params), 112)[0]
show("free node", min(0, made("cuGraphAddMemFreeNode", graph, array([node]), 1, address)),
     "twice", made("cuGraphAddMemFreeNode", graph, array([node]), 1, address),
     "not of a graph", made("cuGraphAddMemFreeNode", graph, None, 0, DEVICE))
exec_ = made("cuGraphInstantiateWithFlags", graph, 0)
show("launch and again", call("cuGraphLaunch", exec_, s), call("cuGraphLaunch", exec_, s), call("cuStreamSynchronize", s))

section("host memory in graphs")
source, target = (c.c_uint32 * 4).from_address(PINNED), (c.c_uint32 * 4).from_address(PINNED + 64)
heard = []
listen = c.CFUNCTYPE(None, c.c_void_p)(lambda number: heard.append((number, target[0])))
ok(begin(s))
ok(call("cuMemcpyHtoDAsync_v2", DEVICE, source, 16, s))
ok(call("cuMemcpyDtoHAsync_v2", target, DEVICE, 16, s))
ok(call("cuLaunchHostFunc", s, listen, c.c_void_p(5)))
show("captured", *end(s), [kind(node) for node in nodes(end.graph)])
exec_ = made("cuGraphInstantiateWithFlags", end.graph, 0)
for value in (11, 22, 33):
    source[0] = value
    ok(call("cuGraphLaunch", exec_, s)), ok(call("cuStreamSynchronize", s))
    show("launch", value, target[0], heard[-1])

section("fills of what is no memory")
for label, address, bytes_ in [("wild", 0x80, 65536), ("nothing", 0, 64), ("beyond its end", DEVICE, 1 << 40)]:
    ok(begin(s))
    show(label, call("cuMemsetD8Async", address, 0, bytes_, s), status(s), *end(s), [kind(node) for node in nodes(end.graph)],
         "instantiate", made("cuGraphInstantiateWithFlags", end.graph, 0))
ok(begin(s))
show("unaligned", call("cuMemsetD32Async", 0x82, 0, 16, s), *end(s))
ok(begin(s))
code = call("cuMemsetD8Async", PINNED, 3, 64, s)
show("pinned", code, status(s), *end(s), len(nodes(end.graph)))
exec_ = made("cuGraphInstantiateWithFlags", end.graph, 0)
for value in (1, 2):
    c.memset(PINNED, value, 65)
    show("launch", call("cuGraphLaunch", exec_, s), call("cuStreamSynchronize", s))
    assert c.string_at(PINNED, 65) == bytes([3] * 64 + [value])
graph = made("cuGraphCreate", 0)
for label, address in [("wild", 0x80), ("nothing", 0)]:
    show("a node,", label, min(0, made("cuGraphAddMemsetNode", graph, None, 0, memset(address, 0, 1, 1, 64, 1), CONTEXT)))

section("drawings")
drawing = Drawing("a b:a")
path = os.path.join(tempfile.mkdtemp(), "graph.dot")
show("no directory", call("cuGraphDebugDotPrint", drawing.graph, b"/nonexistent/graph.dot", 0))
show("print", call("cuGraphDebugDotPrint", drawing.graph, path.encode(), 0))
with open(path) as file:
    lines = [line for line in file.read().splitlines() if "->" in line]
show("edges", len(lines), lines[0].count("_node_"))
os.unlink(path)
