//! What the real driver made of many calls, against what the code here makes of them.
//!
//! Every `samples/*.txt` is read, one call a line: `tiled type=7 rank=2 … -> CODE BYTES`. `tests/gpu/tensor-map` makes
//! such files on a machine with a GPU. A call that the driver answered and the code here refuses as unknown is a gap
//! that the sample closes, so it fails too. Only cuTensorMapEncodeIm2colWide is not made here; what its samples
//! say is tested apart.

use super::{Im2col, Refusal, Tensor, check_place, im2col_rank, replace_address, tiled, tiled_rank};
use cuda_abi::{CUtensorMap, CudaError};
use std::{collections::HashMap, fs, path::Path};

/// One line.
pub(super) struct Sample {
    /// File and line, to find it.
    place: String,
    function: String,
    arguments: HashMap<String, String>,
    pub(super) code: u32,
    /// The map after the call; `None` after an error that left nothing of interest.
    pub(super) map: Option<CUtensorMap>,
}

/// The function that is refused although the H200's driver takes it: its maps are for newer devices.
const WIDE: &str = "wide";
/// `CUtensorMapIm2ColWideMode` has two.
const WIDE_MODE_MAX: u32 = 1;

/// What the client answers: a map, or a code and why.
type Answer = Result<CUtensorMap, (CudaError, String)>;

pub(super) fn all() -> Vec<Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tensor_map/samples");
    let entries = fs::read_dir(folder).expect("the samples are there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    let mut samples = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (index, line) in text.lines().enumerate() {
            if !line.is_empty() && !line.starts_with('#') {
                let place = format!("{name}:{}", index + 1);
                samples.push(read(&place, line).unwrap_or_else(|| panic!("{place}: cannot read {line}")));
            }
        }
    }
    samples
}

fn read(place: &str, line: &str) -> Option<Sample> {
    let (call, answer) = line.split_once(" -> ")?;
    let (function, arguments) = call.split_once(' ')?;
    let arguments = arguments
        .split(' ')
        .map(|word| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect::<Option<_>>()?;
    let (code, map) = answer.split_once(' ')?;
    Some(Sample {
        place: place.to_owned(),
        function: function.to_owned(),
        arguments,
        code: code.parse().ok()?,
        map: if matches!(map, "untouched" | "partial") { None } else { Some(bytes(map)?) },
    })
}

/// Bytes from the first on; what is missing is 0.
fn bytes(text: &str) -> Option<CUtensorMap> {
    let mut all = [0; 128];
    for index in 0..text.len().div_ceil(2) {
        *all.get_mut(index)? = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    let opaque = core::array::from_fn(|index| {
        u64::from_le_bytes(all[8 * index..8 * index + 8].try_into().expect("eight bytes"))
    });
    Some(CUtensorMap { opaque })
}

impl Sample {
    /// Whether the call had this argument.
    pub(super) fn has(&self, key: &str, value: &str) -> bool {
        self.arguments.get(key).is_some_and(|own| own == value)
    }

    fn text(&self, key: &str) -> &str {
        self.arguments.get(key).unwrap_or_else(|| panic!("{}: no {key}", self.place))
    }

    fn number<T: TryFrom<i128>>(&self, key: &str) -> T {
        self.parse(self.text(key))
    }

    fn parse<T: TryFrom<i128>>(&self, text: &str) -> T {
        let number = match text.strip_prefix("0x") {
            Some(digits) => i128::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let number = number.ok().and_then(|number| T::try_from(number).ok());
        number.unwrap_or_else(|| panic!("{}: {text} is no such number", self.place))
    }

    /// An array; null is CUDA_ERROR_INVALID_VALUE before anything else, as at the border of libcuda.
    fn array<T: TryFrom<i128>>(&self, key: &str) -> Result<Vec<T>, (CudaError, String)> {
        match self.text(key) {
            "null" => Err((CudaError::INVALID_VALUE, format!("{key} is null"))),
            "" => Ok(Vec::new()),
            text => Ok(text.split(',').map(|word| self.parse(word)).collect()),
        }
    }

    /// What libcuda answers, in the order of its checks.
    fn answer(&self) -> Answer {
        match self.arguments.get("when").map(String::as_str) {
            Some("before-init") => return Err((CudaError::NOT_INITIALIZED, "before cuInit".to_owned())),
            Some("without-context") => return Err((CudaError::INVALID_CONTEXT, "no context".to_owned())),
            _ => {}
        }
        if self.function == WIDE {
            return Err((CudaError::NOT_SUPPORTED, "the table refuses it".to_owned()));
        }
        self.answer_to_arguments()
    }

    /// What the arguments alone decide.
    fn answer_to_arguments(&self) -> Answer {
        let why = |refusal: Refusal| (refusal.error(), format!("{refusal:?}"));
        match self.arguments.get("map").map(String::as_str) {
            Some("null") => return Err((CudaError::INVALID_VALUE, "the map is null".to_owned())),
            // The distance from a multiple of 128.
            Some(offset) => check_place(self.parse(offset)).map_err(why)?,
            None => {}
        }
        if self.function == "replace" {
            let map = bytes(self.text("from")).unwrap_or_else(|| panic!("{}: not bytes", self.place));
            return replace_address(&map, self.number("address")).map_err(why);
        }

        let (sizes, strides, steps) = (self.array("sizes")?, self.array("strides")?, self.array("steps")?);
        let arrays: [Vec<i64>; 2] = match self.function.as_str() {
            "tiled" => [self.array("box")?, Vec::new()],
            "im2col" | WIDE => [self.array("lower")?, self.array("upper")?],
            other => panic!("{}: unknown function {other}", self.place),
        };
        let rank: u32 = self.number("rank");
        let rank =
            if self.function == "tiled" { tiled_rank(rank) } else { im2col_rank(rank) }.map_err(why)?;
        let tensor = Tensor {
            element: self.number("type"),
            address: self.number("address"),
            sizes: &sizes[..rank],
            strides: &strides[..rank - 1],
            element_strides: &steps[..rank],
            interleave: self.number("interleave"),
            swizzle: self.number("swizzle"),
            promotion: self.number("l2"),
            fill: self.number("fill"),
        };
        if self.function == "tiled" {
            let tile: Vec<u32> = arrays[0].iter().map(|size| *size as u32).collect();
            return tiled(&tensor, &tile[..rank]).map_err(why);
        }
        let corners = arrays.map(|corner| corner.iter().map(|offset| *offset as i32).collect::<Vec<_>>());
        let columns = Im2col {
            lower: &corners[0][..rank - 2],
            upper: &corners[1][..rank - 2],
            channels: self.number("channels"),
            pixels: self.number("pixels"),
        };
        columns.encode(&tensor).map_err(why)
    }
}

fn words(map: &CUtensorMap) -> String {
    map.opaque.iter().map(|word| format!("{word:016x} ")).collect()
}

#[test]
fn no_sample_is_contradicted() {
    let samples = all();
    assert!(samples.len() >= 1239, "the samples are committed");
    let mut wrong = Vec::new();
    for sample in &samples {
        match sample.answer() {
            Ok(ours) if sample.code == 0 => {
                let theirs = sample.map.unwrap_or_else(|| panic!("{}: success without a map", sample.place));
                if ours != theirs {
                    wrong.push(format!(
                        "{}:\n  ours   {}\n  theirs {}",
                        sample.place,
                        words(&ours),
                        words(&theirs)
                    ));
                }
            }
            Err((error, _)) if error.code() == sample.code || error == CudaError::NOT_SUPPORTED => {}
            Ok(_) => wrong.push(format!("{}: we succeed, the driver says {}", sample.place, sample.code)),
            Err((error, why)) => {
                wrong.push(format!("{}: we say {error:?} ({why}), the driver {}", sample.place, sample.code));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} samples:\n{}", wrong.len(), samples.len(), wrong.join("\n"));
}

#[test]
fn what_was_observed_is_not_refused_as_unknown() {
    let gaps: Vec<String> = all()
        .iter()
        .filter(|sample| sample.function != WIDE)
        .filter_map(|sample| match sample.answer() {
            Err((error, why)) if error == CudaError::NOT_SUPPORTED && sample.code != error.code() => {
                Some(format!("{}: {why}, the driver says {}", sample.place, sample.code))
            }
            _ => None,
        })
        .collect();
    assert!(gaps.is_empty(), "{} gaps:\n{}", gaps.len(), gaps.join("\n"));
}

/// On an H200 the driver checks a wide call like one of im2col, and its mode leaves no trace in the map: nothing there
/// would read it. No sample has a corner other than 0, so where it would lie is open.
#[test]
fn the_h200_makes_ordinary_columns_of_a_wide_call() {
    let samples: Vec<Sample> = all().into_iter().filter(|sample| sample.function == WIDE).collect();
    assert!(samples.iter().any(|sample| sample.code == 0) && samples.iter().any(|sample| sample.code != 0));
    for sample in samples {
        let theirs = if sample.code == 0 { sample.map } else { None };
        let ours = sample.answer_to_arguments().ok();
        let ours = ours.filter(|_| sample.number::<u32>("mode") <= WIDE_MODE_MAX);
        assert_eq!(ours, theirs, "{}", sample.place);
        let error = sample.answer().expect_err("refused on purpose").0;
        assert_eq!(error, CudaError::NOT_SUPPORTED, "{}", sample.place);
    }
}
