"""What a CUDA driver answers about arrays, textures and surfaces, as text: one line per question.

Run it on NVIDIA's driver and through dxpu, and compare. It uses nothing but ctypes and libcuda.so.1. Handles are never shown.
Codes are CUresult.
"""
import ctypes as c
import struct

cuda = c.CDLL("libcuda.so.1")
ref, P, SZ = c.byref, c.c_void_p, c.c_size_t
FLOAT, HALF, U8 = 0x20, 0x10, 0x01
LAYERED, SURFACE, CUBEMAP, GATHER, SPARSE, DEFERRED = 1, 2, 4, 8, 0x40, 0x80

PTX = rb"""
.version 7.0
.target sm_70
.address_size 64
.global .texref picture;
.global .surfref canvas;
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<3>; .reg .f32 %f<9>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    cvt.rn.f32.u32 %f1, %r1;
    tex.1d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1}];
    mul.wide.u32 %rd2, %r1, 16;
    add.s64 %rd3, %rd1, %rd2;
    st.global.v4.f32 [%rd3], {%f3, %f4, %f5, %f6};
    mov.u32 %r2, 0;
    sust.b.1d.b32.zero [canvas, {%r2}], {%r1};
    ret;
}
""" + b"\0"


def show(what, code, *more):
    print(" ".join([what, "->", str(code), *[str(part) for part in more]]))


def section(name):
    print(f"[{name}]")


def descriptor(width, height, depth, form=FLOAT, channels=1, flags=0):
    return c.create_string_buffer(struct.pack("QQQIII4x", width, height, depth, form, channels, flags), 40)


def array(*shape, **more):
    handle = P()
    code = cuda.cuArray3DCreate_v2(ref(handle), descriptor(*shape, **more))
    return code, handle


def resource(kind, *words):
    return c.create_string_buffer(struct.pack("I4x", kind) + b"".join(struct.pack("Q", word) for word in words), 144)


def texture(what, modes=(0, 0, 0), filter_mode=0, flags=0, anisotropy=0, view=None):
    how = c.create_string_buffer(struct.pack("3IIII", *modes, filter_mode, flags, anisotropy), 104)
    handle = c.c_uint64()
    return cuda.cuTexObjectCreate(ref(handle), what, how, view), handle


def copy_in(target, x=0, y=0, width=16, height=1, host=(c.c_char * 65536)()):
    words = struct.pack("QQI4xQQQQ", 0, 0, 1, c.addressof(host), 0, 0, width)
    words += struct.pack("QQI4xQQQQ", x, y, 3, 0, 0, target.value or 0, 0)
    return cuda.cuMemcpy2D_v2(c.create_string_buffer(words + struct.pack("QQ", width, height), 128))


section("arrays")
none = P()
show("before cuInit", cuda.cuArray3DCreate_v2(ref(none), descriptor(16, 0, 0)))
cuda.cuInit(0)
show("no context", cuda.cuArray3DCreate_v2(ref(none), descriptor(16, 0, 0)))
context = P()
cuda.cuDevicePrimaryCtxRetain(ref(context), 0)
cuda.cuCtxSetCurrent(context)
show("null place", cuda.cuArray3DCreate_v2(None, descriptor(16, 0, 0)))
show("null descriptor", cuda.cuArray3DCreate_v2(ref(none), None))
for name, shape, more in [
    ("1d", (16, 0, 0), {}),
    ("2d", (16, 8, 0), {}),
    ("3d", (16, 8, 4), {}),
    ("1d layered", (16, 0, 4), {"flags": LAYERED}),
    ("2d layered", (16, 8, 4), {"flags": LAYERED}),
    ("cube", (16, 16, 6), {"flags": CUBEMAP}),
    ("cubes", (16, 16, 12), {"flags": CUBEMAP | LAYERED}),
    ("gather", (16, 8, 0), {"flags": GATHER}),
    ("no width", (0, 0, 0), {}),
    ("no height", (16, 0, 4), {}),
    ("no layers", (16, 0, 0), {"flags": LAYERED}),
    ("odd cube", (16, 8, 6), {"flags": CUBEMAP}),
    ("seven faces", (16, 16, 7), {"flags": CUBEMAP}),
    ("gather in 1d", (16, 0, 0), {"flags": GATHER}),
    ("gather in 3d", (16, 8, 4), {"flags": GATHER}),
    ("too wide", (1 << 20, 0, 0), {}),
    ("too high", (16, 1 << 20, 0), {}),
    ("three channels", (16, 0, 0), {"channels": 3}),
    ("no channels", (16, 0, 0), {"channels": 0}),
    ("no such format", (16, 0, 0), {"form": 7}),
    ("no such flag", (16, 8, 0), {"flags": 0x100}),
    ("half", (16, 8, 0), {"form": HALF, "channels": 4}),
    ("unorm of one channel as four", (16, 8, 0), {"form": 0xC0, "channels": 4}),
    ("unorm of four channels", (16, 8, 0), {"form": 0xC2, "channels": 4}),
]:
    code, made = array(*shape, **more)
    seen = c.create_string_buffer(40)
    told = () if code else (cuda.cuArray3DGetDescriptor_v2(seen, made), struct.unpack("QQQIII4x", seen.raw))
    show(name, code, *told)
    if not code:
        show(f"{name} destroy", cuda.cuArrayDestroy(made))

section("ends")
code, made = array(16, 8, 0)
cuda.cuArrayDestroy(made)
show("destroyed null", cuda.cuArrayDestroy(None))
show("descriptor of null", cuda.cuArray3DGetDescriptor_v2(c.create_string_buffer(40), None))
code, plain = array(16, 8, 0)
_, line = array(16, 0, 0)
_, surface = array(16, 8, 0, flags=SURFACE)
requirements = c.create_string_buffer(32)
show("requirements", cuda.cuArrayGetMemoryRequirements(requirements, plain, 0))
show("sparse properties", cuda.cuArrayGetSparseProperties(c.create_string_buffer(48), plain))
show("plane", cuda.cuArrayGetPlane(ref(none), plain, 0))
width = SZ()
for form, channels in [(U8, 1), (FLOAT, 1), (FLOAT, 4), (FLOAT, 3), (7, 1)]:
    show(f"linear width {form} {channels}", cuda.cuDeviceGetTexture1DLinearMaxWidth(ref(width), form, channels, 0), width.value)

section("levels")
mipmap, level = P(), P()
show("no levels", cuda.cuMipmappedArrayCreate(ref(mipmap), descriptor(16, 8, 0), 0))
show("99 levels", cuda.cuMipmappedArrayCreate(ref(mipmap), descriptor(16, 8, 0), 99))
for number in (0, 3, 4, 5, 98):
    code = cuda.cuMipmappedArrayGetLevel(ref(level), mipmap, number)
    seen = c.create_string_buffer(40)
    told = () if code else (cuda.cuArray3DGetDescriptor_v2(seen, level), struct.unpack("QQQIII4x", seen.raw))
    show(f"level {number}", code, *told)

section("copies")
show("row", copy_in(plain))
show("whole", copy_in(plain, width=64, height=8))
show("past the row", copy_in(plain, x=4, width=64))
show("past the rows", copy_in(plain, y=1, width=64, height=8))
show("half an element", copy_in(plain, x=2, width=4))
show("odd width", copy_in(plain, width=6))
show("nothing", copy_in(plain, width=0))
show("null array", copy_in(P()))
host = (c.c_char * 4096)()
show("HtoA", cuda.cuMemcpyHtoA_v2(line, SZ(0), host, SZ(64)))
show("HtoA past the end", cuda.cuMemcpyHtoA_v2(line, SZ(4), host, SZ(64)))
show("HtoA of several rows", cuda.cuMemcpyHtoA_v2(plain, SZ(0), host, SZ(128)))
show("HtoA of a second row", cuda.cuMemcpyHtoA_v2(plain, SZ(64), host, SZ(64)))
show("AtoH", cuda.cuMemcpyAtoH_v2(host, line, SZ(8), SZ(8)))
show("AtoA", cuda.cuMemcpyAtoA_v2(line, SZ(0), plain, SZ(0), SZ(64)))

section("textures")
memory = c.c_uint64()
cuda.cuMemAlloc_v2(ref(memory), SZ(65536))
of_plain = resource(0, plain.value)
show("array", texture(of_plain)[0])
show("null array", texture(resource(0, 0))[0])
show("mipmapped", texture(resource(1, mipmap.value))[0])
show("no such kind", texture(resource(4, plain.value))[0])
show("no such mode", texture(of_plain, modes=(4, 0, 0))[0])
show("no such filter", texture(of_plain, filter_mode=2)[0])
show("no such flag", texture(of_plain, flags=0x80)[0])
show("anisotropy of 17", texture(of_plain, anisotropy=17)[0])
_, bytes_array = array(16, 8, 0, form=U8)
show("linear of integers", texture(resource(0, bytes_array.value), filter_mode=1, flags=1)[0])
show("linear of fractions", texture(resource(0, bytes_array.value), filter_mode=1)[0])
one = FLOAT | 1 << 32
show("memory", texture(resource(2, memory.value, one, 4096))[0])
show("memory unaligned", texture(resource(2, memory.value + 4, one, 4096))[0])
show("memory of nothing", texture(resource(2, memory.value, one, 0))[0])
show("memory past its end", texture(resource(2, memory.value, one, 1 << 30))[0])
show("memory of the host", texture(resource(2, c.addressof(host) & ~511, one, 64))[0])
show("memory of three channels", texture(resource(2, memory.value, FLOAT | 3 << 32, 4096))[0])
show("rows", texture(resource(3, memory.value, one, 16, 8, 512))[0])
show("rows of an odd pitch", texture(resource(3, memory.value, one, 16, 8, 100))[0])
show("rows wider than the pitch", texture(resource(3, memory.value, one, 1024, 8, 512))[0])
view = c.create_string_buffer(struct.pack("I4xQQQ4I", 0x16, 16, 8, 0, 0, 0, 0, 0), 112)
show("view", texture(of_plain, view=view)[0])
show("view of memory", texture(resource(2, memory.value, one, 4096), view=view)[0])
_, object_ = texture(of_plain)
show("asked for its view", cuda.cuTexObjectGetResourceViewDesc(c.create_string_buffer(112), object_))
show("destroyed", cuda.cuTexObjectDestroy(object_))
show("destroyed 0", cuda.cuTexObjectDestroy(c.c_uint64(0)))
made = c.c_uint64()
show("surface", cuda.cuSurfObjectCreate(ref(made), resource(0, surface.value)))
show("surface without the flag", cuda.cuSurfObjectCreate(ref(made), of_plain))
show("surface of memory", cuda.cuSurfObjectCreate(ref(made), resource(2, memory.value, one, 4096)))

section("references")
module, reference, canvas = P(), P(), P()
show("module", cuda.cuModuleLoadData(ref(module), PTX))
show("texture reference", cuda.cuModuleGetTexRef(ref(reference), module, b"picture"))
show("surface reference", cuda.cuModuleGetSurfRef(ref(canvas), module, b"canvas"))
show("no such reference", cuda.cuModuleGetTexRef(ref(none), module, b"nothing"))
show("variable of its name", cuda.cuModuleGetGlobal_v2(ref(c.c_uint64()), ref(SZ()), module, b"picture"))
word, other = c.c_uint(), c.c_int()
show("default mode", cuda.cuTexRefGetAddressMode(ref(word), reference, 0), word.value)
show("default filter", cuda.cuTexRefGetFilterMode(ref(word), reference), word.value)
show("default flags", cuda.cuTexRefGetFlags(ref(word), reference), word.value)
show("default format", cuda.cuTexRefGetFormat(ref(word), ref(other), reference), word.value, other.value)
show("default anisotropy", cuda.cuTexRefGetMaxAnisotropy(ref(other), reference), other.value)
show("array of none", cuda.cuTexRefGetArray(ref(none), reference))
show("address of none", cuda.cuTexRefGetAddress_v2(ref(c.c_uint64()), reference))
show("set array", cuda.cuTexRefSetArray(reference, line, 1))
show("set surface", cuda.cuSurfRefSetArray(canvas, surface, 0))
show("set surface without the flag", cuda.cuSurfRefSetArray(canvas, plain, 0))
offset = SZ()
show("set address", cuda.cuTexRefSetAddress_v2(ref(offset), reference, memory, SZ(64)), offset.value)
unaligned = c.c_uint64(memory.value + 4)
show("set address unaligned", cuda.cuTexRefSetAddress_v2(ref(offset), reference, unaligned, SZ(64)), offset.value)
show("set address unaligned without a place", cuda.cuTexRefSetAddress_v2(None, reference, unaligned, SZ(64)))
show("dimension 3", cuda.cuTexRefSetAddressMode(reference, 3, 0))
show("filter 2", cuda.cuTexRefSetFilterMode(reference, 2))
show("destroy of a module's", cuda.cuTexRefDestroy(reference))
