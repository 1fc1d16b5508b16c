//! The rules one by one, and properties of every map.

use super::{
    descriptor::{Descriptor, Field},
    *,
};
use cuda_abi::CUtensorMap;
use proptest::prelude::*;

/// A good call to spoil.
#[derive(Clone, Debug)]
struct Call {
    element: u32,
    address: u64,
    sizes: Vec<u64>,
    strides: Vec<u64>,
    steps: Vec<u32>,
    tile: Vec<u32>,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
}

const FLOAT32: u32 = 7;
const INT32: u32 = 3;

impl Call {
    /// Rank 3, floats, boxes of 16 × 8 × 2.
    fn new() -> Self {
        Self {
            element: FLOAT32,
            address: 0x7000_0000_0000,
            sizes: vec![64, 32, 16],
            strides: vec![256, 8192],
            steps: vec![1; 3],
            tile: vec![16, 8, 2],
            interleave: 0,
            swizzle: 0,
            promotion: 0,
            fill: 0,
        }
    }

    fn tensor(&self) -> Tensor<'_> {
        Tensor {
            element: self.element,
            address: self.address,
            sizes: &self.sizes,
            strides: &self.strides,
            element_strides: &self.steps,
            interleave: self.interleave,
            swizzle: self.swizzle,
            promotion: self.promotion,
            fill: self.fill,
        }
    }

    fn encode(&self) -> Result<CUtensorMap, Refusal> {
        tiled(&self.tensor(), &self.tile)
    }
}

#[track_caller]
fn check(expected: Option<Refusal>, spoil: impl FnOnce(&mut Call)) {
    let mut call = Call::new();
    spoil(&mut call);
    assert_eq!(call.encode().err(), expected, "{call:?}");
}

#[track_caller]
fn good(spoil: impl FnOnce(&mut Call)) {
    check(None, spoil);
}

#[track_caller]
fn invalid(spoil: impl FnOnce(&mut Call)) {
    let mut call = Call::new();
    spoil(&mut call);
    let refusal = call.encode().expect_err("a rule is broken");
    assert_eq!(refusal.error(), CudaError::INVALID_VALUE, "{refusal:?} {call:?}");
}

#[track_caller]
fn unknown(spoil: impl FnOnce(&mut Call)) {
    let mut call = Call::new();
    spoil(&mut call);
    let refusal = call.encode().expect_err("never observed");
    assert_eq!(refusal.error(), CudaError::NOT_SUPPORTED, "{refusal:?} {call:?}");
}

#[test]
fn ranks_are_1_to_5() {
    assert!(tiled_rank(0).is_err() && tiled_rank(6).is_err() && tiled_rank(u32::MAX).is_err());
    assert_eq!((tiled_rank(1), tiled_rank(5)), (Ok(1), Ok(5)));
    assert!(im2col_rank(2).is_err() && im2col_rank(6).is_err());
    assert_eq!((im2col_rank(3), im2col_rank(5)), (Ok(3), Ok(5)));
    good(|call| {
        (call.sizes, call.strides, call.steps, call.tile) = (vec![64], vec![], vec![1], vec![16]);
    });
}

#[test]
fn addresses_and_strides_are_aligned() {
    good(|call| call.address += 16);
    invalid(|call| call.address += 8);
    good(|call| call.address = 0);
    good(|call| call.address = (1 << 57) - 16);
    invalid(|call| call.address = 1 << 57);
    good(|call| call.strides[0] += 16);
    invalid(|call| call.strides[0] += 4);
    good(|call| call.strides[1] = (1 << 40) - 16);
    invalid(|call| call.strides[1] = 1 << 40);
}

#[test]
fn slices_of_32_bytes_are_stricter() {
    let interleaved = |call: &mut Call| (call.interleave, call.swizzle, call.tile[0]) = (2, 1, 8);
    good(interleaved);
    invalid(|call| (interleaved(call), call.address += 16).1);
    invalid(|call| (interleaved(call), call.strides[1] += 16).1);
    invalid(|call| {
        interleaved(call);
        (call.sizes, call.strides, call.steps, call.tile) = (vec![64, 32], vec![256], vec![1; 2], vec![8, 8]);
    });
}

#[test]
fn slices_may_have_any_swizzle_and_rows_longer_than_it() {
    for interleave in [1, 2] {
        for swizzle in 0..4 {
            good(|call| (call.interleave, call.swizzle, call.tile[0]) = (interleave, swizzle, 64));
        }
    }
}

#[test]
fn sizes_are_1_to_2_to_the_32() {
    good(|call| call.sizes[2] = 1 << 32);
    invalid(|call| call.sizes[2] = (1 << 32) + 1);
    invalid(|call| call.sizes[0] = 0);
}

#[test]
fn boxes_are_1_to_256_in_rows_of_16_bytes() {
    good(|call| call.tile = vec![4, 256, 1]);
    invalid(|call| call.tile[1] = 257);
    invalid(|call| call.tile[2] = 0);
    invalid(|call| call.tile[0] = 0);
    invalid(|call| call.tile[0] = 260);
    invalid(|call| call.tile[0] = 5);
    invalid(|call| (call.interleave, call.tile[0]) = (1, 5));
    invalid(|call| (call.interleave, call.tile[0]) = (2, 2));
}

#[test]
fn a_box_has_room_in_shared_memory() {
    good(|call| call.tile = vec![256, 228, 1]);
    invalid(|call| call.tile = vec![256, 229, 1]);
    invalid(|call| (call.element, call.tile) = (8, vec![256, 256, 256]));
}

#[test]
fn a_swizzled_row_fits_its_span() {
    for (swizzle, elements) in [(1, 8), (2, 16), (3, 32)] {
        good(|call| (call.swizzle, call.tile[0]) = (swizzle, elements));
        invalid(|call| (call.swizzle, call.tile[0]) = (swizzle, elements + 4));
    }
}

#[test]
fn element_strides_are_1_to_8() {
    good(|call| call.steps = vec![1, 2, 8]);
    invalid(|call| call.steps[1] = 0);
    invalid(|call| call.steps[2] = 9);
}

#[test]
fn a_copy_counts_whole_element_strides() {
    let bytes = |steps: [u32; 3]| {
        let call = Call { steps: steps.to_vec(), ..Call::new() };
        Descriptor::of(&call.encode().expect("good")).get(Field::COPY_BYTES)
    };
    assert_eq!(bytes([1, 1, 1]), 16 * 8 * 2 * 4);
    assert_eq!(bytes([1, 3, 2]), 16 * 2 * 4);
    assert_eq!(bytes([3, 8, 1]), 5 * 2 * 4);
    assert_eq!(bytes([1, 1, 3]), 0, "a stride wider than the box");
}

#[test]
fn enums_have_ends() {
    invalid(|call| call.element = 13);
    invalid(|call| call.element = u32::MAX);
    invalid(|call| call.interleave = 3);
    invalid(|call| call.swizzle = 4);
    good(|call| call.promotion = 3);
    invalid(|call| call.promotion = 4);
    good(|call| call.fill = 1);
    invalid(|call| call.fill = 2);
}

#[test]
fn only_floats_are_filled_with_nan() {
    good(|call| call.element = INT32);
    invalid(|call| (call.element, call.fill) = (INT32, 1));
}

#[test]
fn what_was_never_observed_is_refused_and_not_guessed() {
    unknown(|call| (call.steps[1], call.tile) = (2, vec![256, 256, 1]));
}

#[test]
fn a_broken_rule_comes_before_the_unknown() {
    invalid(|call| (call.steps[1], call.tile, call.promotion) = (2, vec![256, 256, 1], 4));
}

#[test]
fn arrays_of_different_lengths_are_refused() {
    invalid(|call| call.tile.truncate(2));
    invalid(|call| call.strides.truncate(1));
    invalid(|call| call.steps.truncate(1));
    invalid(|call| call.sizes.clear());
}

#[test]
fn a_map_lies_on_whole_words() {
    assert_eq!(check_place(0x1040), Ok(()));
    assert_eq!(check_place(0x1008), Ok(()));
    assert_eq!(check_place(0x1004).err().map(Refusal::error), Some(CudaError::NOT_SUPPORTED));
}

/// Rank 4: 64 channels, 56 × 48 pixels, 32 images.
fn columns(lower: [i32; 2], upper: [i32; 2], channels: u32, pixels: u32) -> Result<CUtensorMap, Refusal> {
    let tensor = Tensor {
        element: 6,
        address: 0x7000_0000_0000,
        sizes: &[64, 56, 48, 32],
        strides: &[128, 128 * 56, 128 * 56 * 48],
        element_strides: &[1; 4],
        interleave: 0,
        swizzle: 0,
        promotion: 0,
        fill: 0,
    };
    Im2col { lower: &lower, upper: &upper, channels, pixels }.encode(&tensor)
}

#[test]
fn columns_have_their_own_bounds() {
    let error = |result: Result<CUtensorMap, Refusal>| result.err().map(Refusal::error);
    assert_eq!(error(columns([-128, 0], [0, 127], 64, 224)), None);
    assert_eq!(error(columns([-129, 0], [0, 0], 64, 128)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, 128], 64, 128)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, -47], 64, 128)), None);
    assert_eq!(error(columns([0, 0], [0, -48], 64, 128)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, 0], 64, 0)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, 0], 8, 1024)), None);
    assert_eq!(error(columns([0, 0], [0, 0], 8, 1025)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, 0], 0, 128)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, 0], 257, 128)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, 0], 4, 128)), Some(CudaError::INVALID_VALUE));
    assert_eq!(error(columns([0, 0], [0, 0], 256, 456)), None);
    assert_eq!(error(columns([0, 0], [0, 0], 256, 457)), Some(CudaError::INVALID_VALUE));
}

#[test]
fn axes_are_shorter_than_2_to_the_31_and_batches_need_not_be() {
    let encode = |sizes: [u64; 3], upper: i32| {
        let tensor =
            Tensor { sizes: &sizes, strides: &[256, 8192], element_strides: &[1; 3], ..Call::new().tensor() };
        Im2col { lower: &[0], upper: &[upper], channels: 8, pixels: 64 }.encode(&tensor).is_ok()
    };
    assert!(encode([1 << 32, (1 << 31) - 1, 1 << 32], 0));
    assert!(!encode([64, (1 << 31) - 1, 16], 1), "the box is longer than the axis");
    assert!(!encode([64, 1 << 31, 16], 0));
    assert!(!encode([64, 1 << 32, 16], 0));
}

/// As many axes as the corners have, each of 2^20 pixels.
fn corners(lower: &[i32], upper: &[i32]) -> Result<CUtensorMap, Refusal> {
    let rank = lower.len() + 2;
    let tensor = Tensor {
        sizes: &[1 << 20; RANK_MAX][..rank],
        strides: &[256; RANK_MAX][..rank - 1],
        element_strides: &[3; RANK_MAX][..rank],
        ..Call::new().tensor()
    };
    Im2col { lower, upper, channels: 8, pixels: 64 }.encode(&tensor)
}

#[test]
fn corners_share_their_bits_among_the_axes() {
    for (axes, end) in [(1, 1 << 15), (2, 1 << 7), (3, 1 << 4)] {
        let zero = vec![0; axes];
        for axis in 0..axes {
            for (offset, fits) in [(end - 1, true), (end, false), (-end, true), (-end - 1, false)] {
                let mut corner = zero.clone();
                corner[axis] = offset;
                assert_eq!(corners(&corner, &zero).is_ok(), fits, "{corner:?}");
                assert_eq!(corners(&zero, &corner).is_ok(), fits, "{corner:?}");
            }
        }
    }
}

#[test]
fn steps_do_not_shorten_a_column() {
    let map = corners(&[0], &[0]).expect("good");
    assert_eq!(Descriptor::of(&map).get(Field::COPY_BYTES), 8 * 64 * 4);
}

#[test]
fn a_new_address_keeps_everything_else_and_the_alignment() {
    let map = Call::new().encode().expect("good");
    let moved = replace_address(&map, 0x7123_4567_8910).expect("aligned");
    assert_eq!(moved.opaque[0], 0x7123_4567_8910);
    assert_eq!(moved.opaque[1..], map.opaque[1..]);
    assert!(replace_address(&map, 0x7123_4567_8918).is_err());
    assert!(replace_address(&map, 0).is_err(), "null is taken for a missing argument");
    assert!(replace_address(&map, (1 << 57) - 16).is_ok());
    assert!(replace_address(&map, 1 << 57).is_err());

    let mut call = Call::new();
    (call.interleave, call.swizzle, call.tile[0]) = (2, 1, 8);
    let map = call.encode().expect("good");
    assert!(replace_address(&map, 0x7123_4567_8910).is_err(), "slices of 32 bytes need more");
    assert!(replace_address(&map, 0x7123_4567_8920).is_ok());
}

/// The call of rank 5 failed for its odd rows, after the driver had written the fields that no success shows.
#[test]
fn a_failed_sample_shows_the_fields_of_high_dimensions() {
    let of_rank_5 = |sample: &samples::Sample| sample.code == 1 && sample.has("box", "5,6,7,8,9");
    let sample = samples::all().into_iter().find(of_rank_5).expect("committed");
    let theirs = Descriptor::of(&sample.map.expect("touched"));
    let mut ours = Descriptor::default();
    ours.set_address(0x6000_0800_0000);
    ours.set(Field::RANK, 4);
    ours.set(Field::ELEMENT, 7);
    for dimension in 0..5 {
        ours.set(Field::size(dimension), 100 + dimension as u32);
        ours.set(Field::tile(dimension), 4 + dimension as u32);
        ours.set(Field::step(dimension), dimension as u32);
    }
    for (index, stride) in [0x1010, 0x2_0200, 0x303_0300, 0x4040_4040].into_iter().enumerate() {
        ours.set_stride(index + 1, stride);
    }
    assert_eq!(ours.finish(), theirs.finish());
}

fn calls() -> impl Strategy<Value = Call> {
    let enums = (0u32..16, 0u32..4, 0u32..5, 0u32..5, 0u32..3);
    let dimension = (1u64..=1 << 32, 0u64..1 << 36, 1u32..=256, 1u32..=8);
    (enums, 0u64..1 << 57, prop::collection::vec(dimension, 1..=5), prop::bool::weighted(0.8)).prop_map(
        |((element, interleave, swizzle, promotion, fill), address, dimensions, tame)| {
            let mut call = Call {
                element,
                address: address & !31,
                sizes: dimensions.iter().map(|dimension| dimension.0).collect(),
                strides: dimensions[1..].iter().map(|dimension| dimension.1 * 16).collect(),
                tile: dimensions.iter().map(|dimension| dimension.2).collect(),
                steps: dimensions.iter().map(|dimension| dimension.3).collect(),
                interleave,
                swizzle,
                promotion,
                fill,
            };
            if tame {
                (call.element, call.interleave, call.swizzle, call.fill) = (element % 13, 0, 0, 0);
                call.tile = call.tile.iter().map(|size| size % 4 + 1).collect();
                call.tile[0] = 16;
            }
            call
        },
    )
}

proptest! {
    /// Whatever goes in can be read out again, so no field runs into another.
    #[test]
    fn every_field_holds_its_value(call in calls()) {
        let Ok(map) = call.encode() else { return Ok(()) };
        let map = Descriptor::of(&map);
        prop_assert_eq!(map.finish().opaque[0], call.address);
        prop_assert_eq!(map.get(Field::RANK) as usize, call.sizes.len() - 1);
        prop_assert_eq!(map.get(Field::INTERLEAVE), call.interleave);
        prop_assert_eq!(map.get(Field::SWIZZLE), call.swizzle);
        prop_assert_eq!(map.get(Field::PROMOTION), call.promotion);
        prop_assert_eq!(map.get(Field::FILLS_WITH_NAN), call.fill);
        prop_assert_eq!(map.get(Field::IS_IM2COL), 0);
        for (dimension, size) in call.sizes.iter().enumerate() {
            prop_assert_eq!(u64::from(map.get(Field::size(dimension))) + 1, *size);
            prop_assert_eq!(map.get(Field::tile(dimension)) + 1, call.tile[dimension]);
            prop_assert_eq!(map.get(Field::step(dimension)) + 1, call.steps[dimension]);
        }
        for (index, stride) in call.strides.iter().enumerate() {
            prop_assert_eq!(map.stride(index + 1), *stride);
        }
    }

    /// The same for the corners of columns, whatever their signs.
    #[test]
    fn every_corner_holds_its_offsets(
        (lower, upper) in (1usize..=3).prop_flat_map(|axes| {
            let end = [1 << 15, 1 << 7, 1 << 4][axes - 1];
            let corner = || prop::collection::vec(-end..end, axes);
            (corner(), corner())
        })
    ) {
        let map = Descriptor::of(&corners(&lower, &upper).expect("good"));
        let axes = lower.len();
        for (corner, offsets) in [lower, upper].iter().enumerate() {
            for (axis, offset) in offsets.iter().enumerate() {
                let bits = 16 / axes as u32;
                let field = map.get(Field::corner(corner, axis, axes));
                prop_assert_eq!((field as i32) << (32 - bits) >> (32 - bits), *offset);
            }
        }
        prop_assert_eq!(map.get(Field::PIXELS) + 1, 64);
        prop_assert_eq!(map.get(Field::CHANNELS) + 1, 8);
    }

    /// No argument makes it panic.
    #[test]
    fn nonsense_is_answered(
        numbers in prop::array::uniform5(any::<u32>()),
        address in any::<u64>(),
        sizes in prop::collection::vec(any::<u64>(), 0..12),
        strides in prop::collection::vec(any::<u64>(), 0..7),
        steps in prop::collection::vec(any::<u32>(), 0..7),
        tile in prop::collection::vec(prop_oneof![any::<u32>(), Just(256)], 0..12),
        corners in prop::collection::vec(any::<i32>(), 0..4),
    ) {
        let [element, interleave, swizzle, promotion, fill] = numbers;
        let (element, interleave, swizzle) = (element % 20, interleave % 4, swizzle % 5);
        let tensor = Tensor {
            element, address, sizes: &sizes, strides: &strides, element_strides: &steps,
            interleave, swizzle, promotion: promotion % 5, fill: fill % 3,
        };
        let _ = tiled(&tensor, &tile);
        let _ = Im2col { lower: &corners, upper: &corners, channels: element, pixels: fill }.encode(&tensor);
        let _ = replace_address(&CUtensorMap { opaque: [address; 16] }, address);
    }
}
