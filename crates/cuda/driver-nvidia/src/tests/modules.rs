//! Modules and the linker.

use super::session::*;
use crate::fake::{COMPLAINT, REMARK};
use cuda_abi::CudaError;
use cuda_driver::{Descriptions, Driver};
use cuda_wire::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const MODULE: ModuleId = ModuleId(1);

#[test]
fn a_module_is_described_whole() {
    let session = Session::new();
    let info = session.load(MODULE, CONTEXT).unwrap();
    let parameter = |offset| ParameterInfo { offset, bytes: 8 };
    let names: Vec<&str> = info.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["lazy_one", "nothing", "store"], "by name, whatever the driver's order is");
    assert_eq!(info.kernels[STORE as usize].parameters, [parameter(0), parameter(8)]);
    assert_eq!(info.kernels[NOTHING as usize].parameters, []);
    assert!(info.kernels.iter().all(|kernel| kernel.attributes.len() == 10), "lazy ones are loaded");
    let [table] = &info.variables[..] else { panic!("one variable") };
    assert_eq!((table.name.as_str(), table.bytes), ("table", 64));
    assert_eq!(info.info_log, REMARK);
    session.enqueue(STREAM, fill(table.address, 64, 3)).unwrap();
    session.drain();
    session.module_unload(MODULE).unwrap();
    assert_eq!(session.module_unload(MODULE), Err(CudaError::INVALID_HANDLE));
    session.check_nothing_left();
}

/// Descriptions in memory.
#[derive(Default)]
struct Kept(Mutex<BTreeMap<[u8; 32], Vec<u8>>>);

impl Descriptions for Kept {
    fn get(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(key).cloned()
    }

    fn put(&self, key: &[u8; 32], description: &[u8]) {
        self.0.lock().unwrap().insert(*key, description.to_vec());
    }
}

#[test]
fn a_known_module_is_described_without_loading_its_kernels() {
    let kept = Arc::new(Kept::default());
    let described = |hash, options, may_load: bool| {
        let session = Session::new();
        session.know(kept.clone());
        if !may_load {
            session.fake.fail("cuFuncLoad", 1, CudaError::LAUNCH_FAILED);
        }
        let image = ImageSource::Inline { bytes: Bytes(PTX.as_bytes()) };
        let answer = session.module_load(MODULE, CONTEXT, hash, image, options);
        answer.map(|info| info.kernels)
    };
    let first = described([1; 32], vec![], true).unwrap();
    assert_eq!(described([1; 32], vec![], false), Ok(first), "the second session knows it");
    assert_eq!(described([2; 32], vec![], false), Err(CudaError::LAUNCH_FAILED), "another image");
    let options = vec![JitOption { option: 0, value: 32 }];
    assert_eq!(described([1; 32], options, false), Err(CudaError::LAUNCH_FAILED), "other options");
}

/// ResNet-50 as a graph did not outlive its second session: the node of a kernel that was known, and so not loaded, was refused.
#[test]
fn a_kernel_that_is_known_and_not_loaded_takes_all_that_others_take() {
    let kept = Arc::new(Kept::default());
    let session = || {
        let session = Session::new();
        session.know(kept.clone());
        session.load(MODULE, CONTEXT).unwrap();
        session
    };
    // The first session describes it, so the others do not load it.
    session();
    let kernel = KernelRef { module: MODULE, index: LAZY_ONE };
    let parameters = Bytes(&[0; 8]);
    let [grid, block] = [[1; 3]; 2];
    let (shared_bytes, cooperative, attributes) = (100 << 10, false, vec![]);
    let launch = Op::Launch { kernel, grid, block, shared_bytes, cooperative, attributes, parameters };
    let nodes = vec![GraphNode { op: launch, after: vec![], enabled: true }];
    assert_eq!(session().graph_instantiate(ExecId(1), CONTEXT, nodes), Ok(()));
    assert_eq!(session().kernel_set_attribute(kernel, 8, 1 << 16), Ok(()));
    assert_eq!(session().active_clusters(kernel, [1; 3], [1; 3], 0, Vec::new()), Ok(4));
    assert_eq!(session().largest_cluster(kernel, [1; 3], [1; 3], 0, Vec::new()), Ok(8));
}

#[test]
fn a_description_of_other_kernels_is_not_believed() {
    let kept = Arc::new(Kept::default());
    let load = |text: &str| {
        let session = Session::new();
        session.know(kept.clone());
        // The hash is the worker's word; this one lies.
        let image = ImageSource::Inline { bytes: Bytes(text.as_bytes()) };
        session.module_load(MODULE, CONTEXT, [1; 32], image, vec![]).unwrap().kernels.len()
    };
    let fewer = PTX.replace(".visible .entry nothing() { ret; }\n", "");
    assert_eq!([load(PTX), load(&fewer), load(PTX), load(PTX)], [3, 2, 3, 3]);
    kept.0.lock().unwrap().values_mut().for_each(|description| description.truncate(5));
    assert_eq!(load(PTX), 3, "nor is half of one");
}

#[test]
fn a_text_that_does_not_compile_says_why() {
    let session = Session::new();
    let image = ImageSource::Inline { bytes: Bytes(b".version 8.0\nBROKEN\n") };
    let refused = session.module_load(MODULE, CONTEXT, [0; 32], image, Vec::new());
    assert_eq!(refused.map(drop), Err(CudaError::INVALID_PTX));
    assert_eq!(session.take_message().as_deref(), Some(COMPLAINT));
    assert_eq!(session.take_message(), None);
    session.check_nothing_left();
}

#[test]
fn a_module_that_cannot_be_described_is_unloaded() {
    for symbol in ["cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncGetName", "cuFuncLoad"] {
        let session = Session::new();
        session.fake.fail(symbol, 1, CudaError::LAUNCH_FAILED);
        assert_eq!(session.load(MODULE, CONTEXT).map(drop), Err(CudaError::LAUNCH_FAILED), "{symbol}");
        session.check_nothing_left();
    }
}

#[test]
fn the_linker_joins_texts_and_its_failure_is_an_answer() {
    let session = Session::new();
    let input =
        |text: &'static str| LinkInput { kind: 1, name: "a".to_owned(), bytes: Bytes(text.as_bytes()) };
    let made = session.link(CONTEXT, vec![input("one"), input("two")], Vec::new()).unwrap();
    assert_eq!((made.cubin.0.as_slice(), made.status), (&b"one\0two\0"[..], 0));
    let refused = session.link(CONTEXT, vec![input("one"), input("BROKEN")], Vec::new()).unwrap();
    assert_eq!((refused.status, refused.error_log.as_str()), (CudaError::INVALID_PTX.code(), COMPLAINT));
    assert!(refused.cubin.0.is_empty());
    for symbol in ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete"] {
        session.fake.fail(symbol, 1, CudaError::LAUNCH_FAILED);
        let failed = session.link(CONTEXT, vec![input("one")], Vec::new()).unwrap();
        assert_eq!(failed.status, CudaError::LAUNCH_FAILED.code(), "{symbol}");
    }
    session.check_nothing_left();
}

#[test]
fn clusters_are_asked_of_the_driver() {
    let session = Session::new();
    session.load(MODULE, CONTEXT).unwrap();
    let kernel = KernelRef { module: MODULE, index: STORE };
    assert_eq!(session.active_clusters(kernel, [1; 3], [1; 3], 0, Vec::new()), Ok(4));
    assert_eq!(session.largest_cluster(kernel, [1; 3], [1; 3], 0, Vec::new()), Ok(8));
    session.kernel_set_attribute(kernel, 8, 1 << 16).unwrap();
    assert_eq!(session.fake.shared_limit("store"), 1 << 16);
}
