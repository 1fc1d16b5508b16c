//! Variables declared `__managed__`.

use super::*;

unsafe extern "C" {
    fn cuModuleUnload(module: Handle) -> u32;
    fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: Handle, name: *const i8) -> u32;
    fn cuCtxCreate_v2(context: *mut Handle, flags: u32, device: i32) -> u32;
    fn cuLibraryLoadData(
        library: *mut Handle,
        code: *const c_void,
        jit_options: *mut u32,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
        count: u32,
    ) -> u32;
    fn cuLibraryGetManaged(address: *mut u64, bytes: *mut usize, library: Handle, name: *const i8) -> u32;
    fn cuLibraryGetModule(module: *mut Handle, library: Handle) -> u32;
}

/// `step()`: word += 1, plain += word, the first and last word of large += 1.
const VARIABLES: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 word = 41;
.visible .global .align 4 .u32 plain = 5;
.visible .global .attribute(.managed) .align 8 .b8 large[1048576];
.visible .entry step()
{
    .reg .b32 %r<8>;
    ld.global.u32 %r1, [word];
    add.u32 %r1, %r1, 1;
    st.global.u32 [word], %r1;
    ld.global.u32 %r2, [plain];
    add.u32 %r2, %r2, %r1;
    st.global.u32 [plain], %r2;
    ld.global.u32 %r3, [large];
    add.u32 %r3, %r3, 1;
    st.global.u32 [large], %r3;
    ld.global.u32 %r4, [large+1048572];
    add.u32 %r4, %r4, 1;
    st.global.u32 [large+1048572], %r4;
    ret;
}
";

struct Loaded {
    module: Handle,
    step: Handle,
    word: &'static mut u32,
    plain: u64,
    large: &'static mut [u32],
}

fn variable(module: Handle, name: &CStr) -> (u64, usize) {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the pointers are those of live variables.
    good(unsafe { cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name.as_ptr()) });
    (address, bytes)
}

fn load() -> Loaded {
    let (mut module, mut step) = (0, 0);
    // SAFETY: the image is a text with its zero; the pointers are those of live variables.
    unsafe {
        good(cuModuleLoadData(&mut module, VARIABLES.as_ptr().cast()));
        good(cuModuleGetFunction(&mut step, module, c"step".as_ptr()));
    }
    let (word, plain, large) =
        (variable(module, c"word"), variable(module, c"plain"), variable(module, c"large"));
    assert_eq!((word.1, plain.1, large.1), (4, 4, 1 << 20));
    // SAFETY: managed variables of these sizes, until the module goes.
    let (word, large) =
        unsafe { (&mut *(word.0 as *mut u32), std::slice::from_raw_parts_mut(large.0 as *mut u32, 1 << 18)) };
    Loaded { module, step, word, plain: plain.0, large }
}

impl Loaded {
    fn step(&self) {
        let none = std::ptr::null_mut();
        // SAFETY: a kernel without parameters.
        good(unsafe { cuLaunchKernel(self.step, 1, 1, 1, 1, 1, 1, 0, 0, none, none.cast()) });
    }

    fn plain(&self) -> u32 {
        let mut value = 0u32;
        // SAFETY: four bytes each.
        good(unsafe { cuMemcpyDtoH_v2((&raw mut value).cast(), self.plain, 4) });
        value
    }

    fn unload(self) {
        // SAFETY: nothing uses the variables behind this.
        good(unsafe { cuModuleUnload(self.module) });
    }
}

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
fn is_managed(address: u64) -> bool {
    let mut value = 0u32;
    // SAFETY: four bytes.
    good(unsafe { cuPointerGetAttribute((&raw mut value).cast(), 8, address) });
    value != 0
}

pub(super) fn variables() {
    let _gpu = begin();
    let one = load();
    assert_eq!((*one.word, one.large[0]), (41, 0), "first values");
    one.step();
    assert_eq!(*one.word, 42, "a touch waits for the kernel");
    *one.word = 99;
    one.large[(1 << 18) - 1] = 7;
    one.step();
    synchronize();
    assert_eq!((*one.word, one.large[0], one.large[(1 << 18) - 1]), (100, 2, 8));
    assert_eq!(one.plain(), 5 + 42 + 100, "plain variables are not copied with their neighbours");
    assert!(is_managed((&raw const *one.word) as u64) && !is_managed(one.plain));

    // Another module may have variables on the same pages.
    let other = load();
    *one.word = 7;
    *other.word = 1000;
    other.step();
    one.step();
    assert_eq!((*one.word, *other.word, *one.large.first().unwrap()), (8, 1001, 3));
    let (page, gone) = ((&raw const *other.word) as u64, other.plain);
    other.unload();
    one.step();
    assert_eq!(*one.word, 9);
    assert_ne!(page, gone);
    one.unload();
    // The same addresses may come again, with first values.
    let again = load();
    assert_eq!(*again.word, 41);
    library();
}

fn library() {
    let mut library = 0;
    let none = std::ptr::null_mut::<u32>();
    // SAFETY: the image is a text with its zero, and there are no options.
    good(unsafe {
        cuLibraryLoadData(&mut library, VARIABLES.as_ptr().cast(), none, none.cast(), 0, none, none.cast(), 0)
    });
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the pointers are those of live variables.
    let mut find =
        |name: &CStr| unsafe { cuLibraryGetManaged(&mut address, &mut bytes, library, name.as_ptr()) };
    assert_eq!(find(c"plain"), 500);
    assert_eq!(find(c"nothing"), 500);
    good(find(c"word"));
    assert_eq!(bytes, 4);
    // SAFETY: a managed variable of four bytes.
    assert_eq!(unsafe { *(address as *const u32) }, 41);
    // Another context would have another copy of it.
    let (mut context, mut module) = (0, 0);
    // SAFETY: the pointers are those of live variables.
    unsafe {
        good(cuCtxCreate_v2(&mut context, 0, 0));
        assert_eq!(cuLibraryGetModule(&mut module, library), 801);
    }
}
