//! Questions to the committed table.

use cuda_table::{
    Class, Kind, Row, check_exports, check_prototypes, check_rows, exports, proc_address_steps, rows,
};
use std::collections::BTreeSet;

fn table() -> Vec<Row<'static>> {
    rows().unwrap_or_else(|error| panic!("{error}"))
}

fn row(symbol: &str) -> Row<'static> {
    let found = table().into_iter().find(|row| row.symbols().iter().any(|other| other.name == symbol));
    found.unwrap_or_else(|| panic!("{symbol} has no row"))
}

#[test]
fn every_export_has_exactly_one_row() {
    assert_eq!(check_exports(&table()), []);
    assert_eq!(table().iter().flat_map(Row::symbols).count(), exports().count());
}

#[test]
fn every_row_is_sound_by_itself() {
    assert_eq!(check_rows(&table()), []);
}

#[test]
fn every_covered_symbol_takes_what_its_prototype_says() {
    assert_eq!(check_prototypes(&table()), []);
}

#[test]
fn whoever_gets_bytes_back_waits_for_a_command_that_brings_them() {
    for row in table() {
        if row.arguments.iter().any(|argument| matches!(argument.kind, Kind::Download { .. })) {
            assert_eq!(row.class, Class::Awaited, "{}", row.symbol);
            assert!(row.via.iter().any(|via| via.command == "ReadBack"), "{}", row.symbol);
        }
    }
}

#[test]
fn a_local_call_sends_nothing_and_every_other_one_says_what_it_sends() {
    for row in table() {
        match row.class {
            Class::Local | Class::Refused { .. } => assert!(row.via.is_empty(), "{}", row.symbol),
            Class::OneWay | Class::Awaited => assert!(!row.via.is_empty(), "{}", row.symbol),
        }
    }
}

#[test]
fn every_refusal_has_a_reason_in_words() {
    for row in table() {
        if let Class::Refused { code, reason } = row.class {
            assert!(code.starts_with("CUDA_ERROR_"), "{}", row.symbol);
            assert!(reason.split(' ').count() >= 5, "{}: {reason}", row.symbol);
        }
    }
}

#[test]
fn whatever_cu_get_proc_address_answers_has_a_row() {
    let known: BTreeSet<String> = table().iter().flat_map(Row::symbols).map(|symbol| symbol.name).collect();
    for step in proc_address_steps().unwrap_or_else(|error| panic!("{error}")) {
        assert!(known.contains(step.symbol), "{} for {}", step.symbol, step.name);
    }
}

#[test]
fn only_what_needs_no_device_is_callable_before_init() {
    let early: BTreeSet<&str> = table().iter().filter(|row| row.preinit).map(|row| row.symbol).collect();
    let expected = [
        "cuCoredumpGetAttributeGlobal",
        "cuCoredumpSetAttributeGlobal",
        "cuDriverGetVersion",
        "cuGetErrorName",
        "cuGetErrorString",
        "cuGetExportTable",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuInit",
        "cuLogsCurrent",
        "cuLogsDumpToFile",
        "cuLogsDumpToMemory",
        "cuLogsRegisterCallback",
        "cuLogsUnregisterCallback",
    ];
    assert_eq!(early, BTreeSet::from(expected));
}

/// A training step asks these thousands of times; one round trip in it and the design fails.
#[test]
fn what_pytorch_asks_all_the_time_is_local() {
    for symbol in [
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuCtxGetDevice",
        "cuDevicePrimaryCtxGetState",
        "cuDeviceGetAttribute",
        "cuFuncGetAttribute",
        "cuKernelGetAttribute",
        "cuKernelGetParamInfo",
        "cuPointerGetAttribute",
        "cuStreamIsCapturing",
        "cuStreamGetCaptureInfo_v3",
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "cuMemGetAllocationGranularity",
    ] {
        assert_eq!(row(symbol).class, Class::Local, "{symbol}");
    }
}

#[test]
fn the_calls_of_a_training_step_wait_for_nothing() {
    for symbol in [
        "cuLaunchKernel",
        "cuLaunchKernelEx_ptsz",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuMemsetD8Async",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuGraphLaunch",
        "cuEventCreate",
        "cuStreamCreateWithPriority",
        "cuMemFree_v2",
    ] {
        assert_eq!(row(symbol).class, Class::OneWay, "{symbol}");
    }
}

/// A body that works on a default stream is told which, by argument or at the end.
#[test]
fn every_variant_reaches_its_body() {
    for row in table().iter().filter(|row| row.variant.is_some()) {
        let has_stream = row.arguments.iter().any(|argument| argument.kind == Kind::Stream);
        assert!(has_stream != row.takes_default_stream(), "{}", row.symbol);
    }
    assert!(row("cuLaunchKernelEx").takes_default_stream());
    assert!(row("cuMemcpyHtoD_v2").takes_default_stream());
    assert!(!row("cuMemcpyHtoDAsync_v2").takes_default_stream());
}
